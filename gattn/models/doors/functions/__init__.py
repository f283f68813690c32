"""The doors to attention that a model computes by torch's functions."""
