"""Proves which nodes of the data the nodes of each graph layer are."""
