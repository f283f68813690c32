"""Proves what each attention call of a model means, before any is trusted."""
