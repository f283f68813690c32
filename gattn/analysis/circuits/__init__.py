"""The smallest graphs of attention that keep a model's answer."""
