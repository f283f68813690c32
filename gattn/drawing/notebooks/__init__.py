"""What notebooks show: the page in a frame, pictures, tables."""

from gattn.drawing.notebooks.bundle import mime_bundle, notebook_html

__all__ = ["mime_bundle", "notebook_html"]
