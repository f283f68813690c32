"""The page: attention graphs as one HTML file that needs only a browser."""

from gattn.drawing.page.page import to_html, to_payload, write_component
from gattn.drawing.page.why import page_bytes

__all__ = ["page_bytes", "to_html", "to_payload", "write_component"]
