"""Edits in words: what they do, and where."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gattn.drawing.results.effects.rows import Edited

_WORDS = {
    "what": "{}",
    "part": "{}",
    "side": "{} side",
    "from_": "from {}",
    "renormalize": "not renormalized",
}
"""How values are written that do not read well after their name."""


def value_said(name: str, value: Any) -> str:
    """Write a value: "factor 0.5", "query side"."""
    return _WORDS.get(name, f"{name} {{}}").format(listed(value))


def listed(value: Any) -> str:
    """Write a number, a text or a list of them."""
    return ", ".join(map(listed, value)) if isinstance(value, (list, tuple)) else str(value)


def heads_said(where: Mapping[str, Any]) -> str:
    """Name layers and heads: "2.0", "layer 2", "layers 1, 2, head 0"; "" if it is all of them."""
    layer, head = where["layer"], where["head"]
    if isinstance(layer, int) and isinstance(head, int):
        return f"{layer}.{head}"
    if isinstance(layer, tuple) and all(isinstance(place, tuple) for place in layer):
        return ", ".join(f"{one}.{other}" for one, other in layer)
    return ", ".join(
        f"{name}{'s' * (not isinstance(value, int))} {listed(value)}"
        for name, value in (("layer", layer), ("head", head))
        if value is not None
    )


def edge_said(ends: Mapping[str, str]) -> str:
    """Write an edge as information flows: "lamp → river", or "from lamp" to all queries."""
    query, key = ends["query"], ends["key"]
    if query and key:
        return f"{key} → {query}"
    return f"to {query}" if query else f"from {key}" if key else ""


def kind_said(kind: str, others: Mapping[str, Any]) -> str:
    """Write what an edit does: "Scale, factor 0.5"."""
    return ", ".join(filter(None, [kind, values_said(others)]))


def kind_in_brackets(kind: str, others: Mapping[str, Any]) -> str:
    """Write what an edit does for a list of several: "Scale (factor 0.5)"."""
    return f"{kind} ({values_said(others)})" if others else kind


def values_said(others: Mapping[str, Any]) -> str:
    """Write the values of an edit: "factor 0.5"."""
    return ", ".join(value_said(*one) for one in others.items())


def is_everywhere(edit: Edited) -> bool:
    """Return whether an edit names no place at all, though it could."""
    return not edit.has("layer", "head", "query", "key") and "edges" not in edit.others
