"""Live Hugging Face models: load by name, capture; the embedded model lives here."""

from gattn.models.capturing import capture, capture_many
from gattn.models.loading import load_model, offline_models

__all__ = ["capture", "capture_many", "load_model", "offline_models"]
