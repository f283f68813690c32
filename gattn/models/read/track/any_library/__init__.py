"""Follows the calls of a model of any library, by what was proved of them."""
