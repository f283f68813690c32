"""Runs a survey."""

import gattn.surveys.needed  # noqa: F401
