"""Edits that keep some edges."""
