"""The page: attention graphs as one HTML file that needs only a browser."""

from gattn.drawing.page.page import notebook_html, to_html

__all__ = ["notebook_html", "to_html"]
