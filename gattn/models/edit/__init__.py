"""Edits, and what they change in a call."""
