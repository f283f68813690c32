"""Follows the calls of a model: their stacks and layers, tokens, and the caches they continue."""
