"""Which heads of a layer are read, and how they become one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from gattn.errors import SelectionError
from gattn.names.choices import HeadChoice, is_number, numbers_or_places, written

Reduction: TypeAlias = "str | ArrayLike"
"""How the heads of a layer become one: "mean", "max", "min", or one weight per head.

Weights are (heads,) or (layers, heads), of the heads that are read; they are divided by their
sum."""


def rows_of(
    heads: HeadChoice, layers: Sequence[int], numbers: Sequence[int]
) -> list[list[int]] | None:
    """Give the rows of the heads that are read in each layer; None for all of them.

    Raises
    ------
    SelectionError
        Where there is no such head.
    """
    chosen = numbers_or_places(heads)
    if chosen is None:
        return None
    places: list[tuple[int, int]] = []
    for one in chosen:
        some = [one] if isinstance(one, tuple) else [(layer, one) for layer in layers]
        if any(layer not in layers or head not in numbers for layer, head in some):
            raise SelectionError(
                f"No head {written(one)}; there are layers {list(layers)} with heads "
                f"{list(numbers)}."
            )
        places += some
    of_layers = ([head for at, head in places if at == layer] for layer in layers)
    return [[list(numbers).index(head) for head in some] for some in of_layers]


def shares_of(reduce: ArrayLike, layers: int, heads: int) -> Tensor:
    """Read weights of heads, (layers, heads), divided by their sums.

    Raises
    ------
    SelectionError
        Where they are not.
    """
    try:
        weights = torch.as_tensor(np.asarray(reduce, dtype=np.float64))
    except (TypeError, ValueError) as error:
        raise SelectionError(wrong_reduction(reduce)) from error
    size = (layers, heads)
    if weights.shape not in (size, size[1:]):
        raise SelectionError(
            f"Weights of heads are (heads,) or (layers, heads), {size[1:]} or {size} here, not "
            f"{tuple(weights.shape)}."
        )
    weights = weights.expand(size)
    whole = weights.sum(1, keepdim=True)
    if bool((weights < 0).any()) or not bool((whole > 0).all() and whole.isfinite().all()):
        raise SelectionError("Weights of heads are at least 0, and some of each layer above.")
    return weights / whole


def wrong_reduction(reduce: object) -> str:
    """Say what a reduction is."""
    return f"reduce is 'mean', 'max', 'min', or one weight per head, not {reduce!r:.80}."


def described(heads: HeadChoice, reduce: Reduction) -> str:
    """Write "mean of heads", "head 2" or "max of heads 1.0, 2.1"."""
    chosen = numbers_or_places(heads)
    if chosen is not None and len(chosen) == 1 and not isinstance(chosen[0], tuple):
        return f"head {chosen[0]}"
    named = [f"{n[0]}.{n[1]}" if isinstance(n, tuple) else str(n) for n in chosen or ()]
    which = f"heads {', '.join(named)}" if len(named) != 1 else f"head {named[0]}"
    return f"{reduce if isinstance(reduce, str) else 'weighted mean'} of {which.strip()}"


def facts_of(heads: HeadChoice, reduce: Reduction) -> dict[str, Any]:
    """Give what a result's facts say of its heads."""
    chosen = numbers_or_places(heads)
    facts: dict[str, Any] = {} if chosen is None else {"heads": list(map(written, chosen))}
    if is_number(heads):
        facts = {"heads": facts["heads"][0]}
    return facts | {"reduce": reduce if isinstance(reduce, str) else np.asarray(reduce).tolist()}
