"""Reads an attention call as graph attention."""
