"""Files: saves graphs and loads them."""

from gattn.files.paths import load, save

__all__ = ["load", "save"]
