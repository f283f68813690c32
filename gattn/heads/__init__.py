"""Attention graphs, and traces of them."""
