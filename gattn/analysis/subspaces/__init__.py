"""Subspaces of queries and keys that edges of one kind share."""
