"""Copies of a model and its inputs, which a proof runs."""
