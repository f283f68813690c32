"""The page: attention graphs as one HTML file that needs only a browser."""

from gattn.drawing.page.page import notebook_html, to_html
from gattn.drawing.page.why import page_bytes

__all__ = ["notebook_html", "page_bytes", "to_html"]
