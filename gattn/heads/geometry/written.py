"""Geometry as text and columns, for graph files and results."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gattn.heads.geometry.base import Geometry
from gattn.heads.geometry.grid import Grid
from gattn.heads.geometry.layout import Layout
from gattn.heads.geometry.times import Times

KINDS: Mapping[str, type[Geometry]] = {kind.__name__: kind for kind in (Grid, Times, Layout)}


def to_text(geometry: Geometry) -> str:
    """Write what the coordinates do not say, as JSON."""
    return json.dumps({"kind": type(geometry).__name__, **geometry.facts()})


def axes_of(text: str) -> tuple[str, ...]:
    """Return the coordinates that belong to a text of `to_text`."""
    return KINDS[_facts(text)["kind"]].AXES


def from_text(text: str, coordinates: Mapping[str, NDArray[np.float64]]) -> Geometry:
    """Read what `to_text` wrote, with its coordinates; anything else is a ValueError."""
    facts = _facts(text)
    try:
        return KINDS[facts["kind"]].of(facts, coordinates)
    except (KeyError, TypeError) as error:
        raise ValueError(f"{text:.200} is not a geometry: {error!r}") from error


def _facts(text: Any) -> dict[str, Any]:
    facts = json.loads(text) if isinstance(text, str) else None
    if not isinstance(facts, dict) or facts.get("kind") not in KINDS:
        raise ValueError(f"a geometry has a kind, one of {', '.join(KINDS)}, not {text!r:.200}")
    return facts
