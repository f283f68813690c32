"""Runs a model, and takes what its attention adds to the residual stream, or reads of it, apart."""
