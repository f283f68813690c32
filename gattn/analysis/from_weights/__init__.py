"""Reads heads from their weights alone, without a text."""
