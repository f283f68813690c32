"""Which heads of a layer are read, and how they become one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from gattn.errors import SelectionError
from gattn.names.choices import (
    REDUCTIONS,
    HeadChoice,
    is_number,
    no_head,
    numbers_or_places,
    written,
)

Reduction: TypeAlias = "str | ArrayLike"
"""How the heads of a layer become one: "mean", "max", "min", or one weight per head.

Weights are (heads,) or (layers, heads), of the heads that are read; they are divided by their
sum."""


def rows_of(
    heads: HeadChoice, layers: Sequence[int], numbers: Sequence[int]
) -> list[list[int]] | None:
    """Return the rows of the heads that are read in each layer; None for all of them."""
    places = places_of(heads, layers)
    if places is None:
        return None
    for one in numbers_or_places(heads) or ():
        layer, head = one if isinstance(one, tuple) else (layers[0], one)
        if layer not in layers or head not in numbers:
            raise SelectionError(no_head(heads, one, layers, numbers))
    of_layers = ([head for at, head in places if at == layer] for layer in layers)
    return [[list(numbers).index(head) for head in some] for some in of_layers]


def places_of(heads: HeadChoice, layers: Sequence[int]) -> list[tuple[int, int]] | None:
    """Return the places (layer, head) of the heads that are read; None for all of them."""
    chosen = numbers_or_places(heads)
    if chosen is None:
        return None
    several = ([one] if isinstance(one, tuple) else [(n, one) for n in layers] for one in chosen)
    return [place for some in several for place in some]


def ways_of(reduce: Reduction, counts: Sequence[int]) -> Sequence[str | Tensor]:
    """Return for each layer how its heads become one, of which so many are read.

    Returns
    -------
    list
        The reduction's name, or the heads' weights divided by their sum.
    """
    wrong = f"reduce is 'mean', 'max', 'min', or one weight per head, not {reduce!r:.80}."
    if isinstance(reduce, str):
        if reduce not in REDUCTIONS:
            raise SelectionError(wrong)
        return [reduce] * len(counts)
    if len(set(counts)) > 1:
        raise SelectionError(
            "Weights go with the same number of heads in every layer: name heads by their "
            "numbers, or leave heads= out."
        )
    try:
        weights = torch.as_tensor(np.asarray(reduce, dtype=np.float64), device="cpu")
    except (TypeError, ValueError) as error:
        raise SelectionError(wrong) from error
    size = (len(counts), counts[0])
    if weights.shape not in (size, size[1:]):
        raise SelectionError(
            f"Weights of heads are (heads,) or (layers, heads), {size[1:]} or {size} here, not "
            f"{tuple(weights.shape)}."
        )
    weights = weights.expand(size)
    whole = weights.sum(1, keepdim=True)
    if bool((weights < 0).any()) or not bool((whole > 0).all() and whole.isfinite().all()):
        raise SelectionError(
            "Weights of heads must be ≥ 0, with at least one above 0 in each layer."
        )
    return list(weights / whole)


def reduced(matrix: Tensor, mass: Tensor, kept: Tensor, way: str | Tensor) -> tuple[Tensor, Tensor]:
    """Make the heads of a layer one; see `gattn.analysis.reading.layers.Layers`."""
    if not len(matrix):
        return matrix.sum(0), mass.sum(0)
    if isinstance(way, Tensor):
        share = way.to(matrix)
        return torch.einsum("h,hqk->qk", share, matrix), share.to(mass) @ mass
    if way == "mean":
        return matrix.mean(0), mass.mean(0)
    one: Tensor = getattr(matrix, f"a{way}")(0)
    if len(matrix) == 1:
        return one, mass[0]
    return one, one.sum(-1) + (mass - kept).clamp_min(0).sum(0)


def described(heads: HeadChoice, reduce: Reduction) -> str:
    """Write "mean of heads", "head 2" or "max of heads 1.0, 2.1"."""
    chosen = [str(written(one)) for one in numbers_or_places(heads) or ()]
    if len(chosen) == 1 and "." not in chosen[0]:
        return f"head {chosen[0]}"
    which = f"head{'s' * (len(chosen) != 1)} {', '.join(chosen)}".strip()
    return f"{reduce if isinstance(reduce, str) else 'weighted mean'} of {which}"


def facts_of(heads: HeadChoice, reduce: Reduction) -> dict[str, Any]:
    """Give what a result's facts say of its heads."""
    chosen = numbers_or_places(heads)
    facts: dict[str, Any] = {} if chosen is None else {"heads": list(map(written, chosen))}
    if is_number(heads):
        facts = {"heads": facts["heads"][0]}
    return facts | {"reduce": reduce if isinstance(reduce, str) else np.asarray(reduce).tolist()}
