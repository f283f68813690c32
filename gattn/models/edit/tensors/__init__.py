"""Edits that hold tensors: pairs of tokens, and what comes from other runs."""
