"""Sees the attention calls of a live model."""
