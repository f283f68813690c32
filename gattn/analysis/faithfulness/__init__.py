"""How far to trust a ranking of edges or tokens."""
