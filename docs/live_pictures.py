"""The pictures of the concepts' pages, drawn by gattn while the site is built."""

from typing import Any


def setup(app: Any) -> dict[str, bool]:
    """Draw before the pages are read."""
    return {"parallel_read_safe": True}
