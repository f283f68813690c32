"""Follows texts through calls with caches of the model's own."""
