"""Analyses: what the graphs say, one a file."""

from gattn.analysis.heads import head_table

__all__ = ["head_table"]
