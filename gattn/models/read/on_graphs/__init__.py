"""Reads attention over the edges of a graph."""
