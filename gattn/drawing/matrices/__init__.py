"""Matrices as images, at the resolution at which they are shown."""
