"""Scores of heads, from sums over edges: of an edge list, or of blocks while a model runs."""
