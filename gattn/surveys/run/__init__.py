"""Runs a survey."""
