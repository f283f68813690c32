"""The doors to attention over the edges of a graph: torch-geometric's, and gattn's own layers."""
