"""Live Hugging Face models: load by name, capture, edit; the embedded model lives here."""

from gattn.models.capturing import capture, capture_many, capturing
from gattn.models.editing import edited
from gattn.models.edits import Cut, ModelScore, Restrict, Scale, Swap, Use
from gattn.models.effects import effect
from gattn.models.estimates import estimate
from gattn.models.loading import load_model, offline_models

__all__ = [
    "Cut",
    "ModelScore",
    "Restrict",
    "Scale",
    "Swap",
    "Use",
    "capture",
    "capture_many",
    "capturing",
    "edited",
    "effect",
    "estimate",
    "load_model",
    "offline_models",
]
