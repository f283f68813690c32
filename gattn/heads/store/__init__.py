"""Kept edges, collected while their attention is computed."""
