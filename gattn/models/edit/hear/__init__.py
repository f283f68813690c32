"""Edits of what heads read of the residual stream."""
