"""Files: what is saved comes back."""

from gattn.files.paths import load, save

__all__ = ["load", "save"]
