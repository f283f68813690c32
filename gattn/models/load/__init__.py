"""Loads models and tokenizers, and encodes texts."""
