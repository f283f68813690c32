"""Reads surveys, and answers questions about them."""
