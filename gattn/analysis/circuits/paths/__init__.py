"""Circuits of paths: which heads hear which, by their queries, keys or values."""
