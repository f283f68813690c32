"""Names of tokens, heads and layers: how they are read, and how they are shown."""
