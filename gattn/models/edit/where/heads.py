"""Which layers and heads an edit names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias, cast

from gattn.errors import SelectionError
from gattn.names import choices
from gattn.names.places import Named, list_places, read_heads

Numbers: TypeAlias = int | str | Sequence[int] | Sequence[tuple[int, int] | str] | None


def numbers_of(name: str, chosen: Numbers) -> list[int] | None:
    """Read which layers or heads were named, before there is a model to say which it has."""
    numbers = choices.numbers_of(name, cast("choices.LayerChoice", chosen), may_repeat=True)
    if numbers and min(numbers) < 0:
        raise SelectionError(choices.from_the_end(name, chosen))
    return numbers


def named_by(layer: Any) -> Named | None:
    """Read (layer, head), text such as "2.1", or several of these; None for anything else."""
    if isinstance(layer, str):
        try:
            return read_heads(layer)
        except ValueError as error:
            hint = "; tokens are named by query= and key=" if "<-" in layer else ""
            raise SelectionError(f"layer is {error}; not {layer!r:.80}{hint}.") from error
    if isinstance(layer, tuple) and len(layer) == 2 and all(map(choices.is_number, layer)):
        layer = [layer]
    if not isinstance(layer, (list, tuple)) or all(map(choices.is_number, layer)):
        return None
    if not any(isinstance(one, (str, tuple)) for one in layer):
        return None
    try:
        stack, heads = list_places(layer)
    except ValueError as error:
        raise SelectionError(
            f"A list names layers, such as [2, 3], or heads, such as [(2, 1), '3.0'], not "
            f"{layer!r:.80}: it takes {error}."
        ) from error
    return Named(stack, *heads[0]) if len(heads) == 1 else Named(stack, heads=tuple(heads))


def places_of(layer: Any) -> tuple[tuple[int, int], ...] | None:
    """Return the places (layer, head) that an edit's `layer` holds, if it does."""
    holds = isinstance(layer, tuple) and bool(layer) and isinstance(layer[0], tuple)
    return cast("tuple[tuple[int, int], ...]", layer) if holds else None
