"""The page: attention graphs as one HTML file to look at, which needs nothing but a browser."""

from gattn.drawing.page.page import notebook_html, to_html

__all__ = ["notebook_html", "to_html"]
