"""The residual stream before a layer as a sum of what wrote it."""
