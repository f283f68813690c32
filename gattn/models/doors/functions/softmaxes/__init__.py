"""Softmaxes, followed to the product with values that makes them attention."""
