"""Puts edited attention in place of what functions read of it later."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from gattn.errors import EditError
from gattn.models.doors.functions.calling.raw_call import named
from gattn.models.doors.functions.softmaxes.follow.following import seen_before
from gattn.models.doors.functions.softmaxes.follow.operands import operands
from gattn.models.doors.functions.softmaxes.follow.source import Source


def with_edits(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, Any] | None:
    """Put edited attention in place of what a function reads of it later; None if it reads none."""
    found: dict[int, Tensor] = {}
    for one in operands(args, kwargs):
        followed = seen_before(one)
        if followed is None or not followed.source.is_edited:
            continue
        source = followed.source
        if source.operand is None or source.operand() is not one:
            may_miss = one.is_floating_point() and (not followed.altered or bool(followed.viewed))
            if may_miss and not _is_written(source, one):
                raise EditError(
                    f"{named(source.module)} reads its attention again after it met the "
                    "values, from a copy that edits do not reach. Nothing more was edited."
                )
        elif source.edited is not None:
            found[id(one)] = source.edited
    if not found:
        return None

    placed = tuple(_placed(x, found) for x in args)
    return placed, {name: _placed(x, found) for name, x in kwargs.items()}


def _placed(given: Any, found: Mapping[int, Tensor]) -> Any:
    """Put in what was found, in lists too."""
    if isinstance(given, (list, tuple)):
        return type(given)(_placed(one, found) for one in given)
    return found.get(id(given), given)


def _is_written(source: Source, one: Tensor) -> bool:
    """Return whether a tensor shares the memory that edited attention was written into."""
    operand = None if source.operand is None else source.operand()
    if source.edited is not None or operand is None:
        return source.edited is None
    whole = source.attention()
    known = [x for x in (operand, whole) if x is not None]
    own = one.untyped_storage().data_ptr()
    return any(x.untyped_storage().data_ptr() == own for x in known)
