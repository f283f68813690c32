"""Pictures of layers, one above the other."""
