"""Reads surveys, and answers questions about them."""

import gattn.surveys.needed  # noqa: F401
