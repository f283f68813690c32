"""A layer runs again, and what its modules gave is held."""
