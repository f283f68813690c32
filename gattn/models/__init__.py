"""Live Hugging Face models: load by name, capture, edit; the embedded model lives here."""

from gattn.models.edit.edges import Cut, Scale
from gattn.models.edit.graphs import Restrict, Use
from gattn.models.edit.swap import ModelScore, Swap
from gattn.models.effects.effect import effect
from gattn.models.effects.estimates import estimate
from gattn.models.load.loading import load_model, offline_models
from gattn.models.run.capturing import capture, capture_many, capturing
from gattn.models.run.editing import edited

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
