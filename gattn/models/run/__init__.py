"""Runs live models: captures and edits."""
