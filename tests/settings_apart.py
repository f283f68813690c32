"""Settings of a model, in a module of their own."""

shift = 0
