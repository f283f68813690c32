"""What can be drawn over an image, read as one number per patch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import xarray as xr
from torch import Tensor

from gattn.drawing.over_image.from_arrays import labelled, of_array
from gattn.drawing.over_image.from_effects import of_effects
from gattn.drawing.over_image.from_heads import of_heads
from gattn.drawing.over_image.patches import Patches
from gattn.errors import SelectionError
from gattn.heads.head import AttentionGraph
from gattn.models.effects.effect_tables import Effects


def patches_of(
    shown: Any, query: Any = None, *, key: Any = None, grid: Any = None, values: str = "attention"
) -> Patches:
    """Read one number per patch from heads, whose mean is taken, from effects, or from an array.

    Raises
    ------
    SelectionError
        If there is no such query or key, or both are given.
    ShapeError
        If it is not known where the tokens lie.
    """
    if query is not None and key is not None:
        raise SelectionError("Give a query or a key, not both: what it reads, or what reads it.")
    if isinstance(shown, AttentionGraph):
        return of_heads([shown], query, key, grid, values)
    if isinstance(shown, xr.DataArray | np.ndarray | Tensor):
        if key is not None or values != "attention":
            raise SelectionError("An array is drawn by query=; key= and values= are for heads.")
        return of_array(labelled(shown, query, grid), query, grid)
    if isinstance(shown, Effects):
        if values != "attention":
            raise SelectionError("Effects are drawn by query= or key=; values= is for heads.")
        return of_effects(shown, query, key, grid)
    heads = list(shown) if isinstance(shown, Iterable) and not isinstance(shown, str) else [shown]
    if not heads or not all(isinstance(head, AttentionGraph) for head in heads):
        raise SelectionError(
            "Over an image are drawn a head, several heads of one run, effects of edits, or an "
            f"array with one number per token, not {shown!r:.80}."
        )
    return of_heads(heads, query, key, grid, values)
