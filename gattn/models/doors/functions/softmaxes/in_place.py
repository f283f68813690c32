"""Follows softmaxes into whose memory zeros are put, also through another tensor, as a view."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from gattn.models.doors.functions.calling.memory import memory_of
from gattn.models.doors.functions.softmaxes.changes.masking import (
    SHRINKS,
    Lost,
    left,
    lost,
    puts_into,
)
from gattn.models.doors.functions.softmaxes.follow.following import (
    Followed,
    note,
    seen_before,
    softmaxes,
)
from gattn.models.doors.functions.softmaxes.follow.operands import operands
from gattn.models.doors.functions.softmaxes.ranks import of_largest, of_values

Finish = Callable[[], bool]


def begin(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Finish | None:
    """Return what notes that a function has put zeros, once it ran; None if it puts none.

    It returns whether zeros were all that the function put.
    """
    if not puts_into(func, args, kwargs):
        return None
    with _disable_current_modes():  # What follows is no part of the model.
        written, before = args[0], args[0].detach().clone()
    known = _in_memory_of(written)

    def finish() -> bool:
        given = operands(args[1:], kwargs)
        others = [x for x in given if isinstance(x, Tensor)]
        took = lost(func, others, before, written.detach())
        if took is None:
            return False
        for x, followed in known:
            _note(func, x, followed, _placed(took, written, x), given)
        return True

    return finish


def _note(func: Any, x: Tensor, followed: Followed, took: Lost, given: list[Any]) -> None:
    """Note what is left of a softmax in one tensor."""
    if followed.altered or followed.scores.is_meta:
        note(x, followed)
        return
    found = left(func, followed, took, x)
    now = of_largest(found, followed, x, x)
    note(x, of_values(now, followed, given, shrinks=func in SHRINKS) if now is found else now)


def _in_memory_of(written: Tensor) -> list[tuple[Tensor, Followed]]:
    """List the tensors with numbers of a softmax that lie in the memory of one of them."""
    own = memory_of(written)
    alive = [x for one, _, _ in softmaxes.known.copy().values() if (x := one()) is not None]
    same = [x for x in alive if x is written or (own is not None and memory_of(x) == own)]
    found = [(x, seen_before(x)) for x in same if x.dtype == written.dtype]
    return [(x, followed) for x, followed in found if followed is not None]


def _placed(took: Lost, written: Tensor, x: Tensor) -> Lost:
    """Say of the numbers of another tensor in the same memory what was taken."""
    if x is written:
        return took
    size = x.untyped_storage().nbytes() // x.element_size()
    with _disable_current_modes():

        def placed(some: Tensor) -> Tensor:
            whole = torch.zeros(size, dtype=torch.bool, device=x.device)
            where = written.stride(), int(written.storage_offset())
            whole.as_strided(written.shape, *where).copy_(some)
            return whole.as_strided(x.shape, x.stride(), int(x.storage_offset()))

        return Lost(placed(took.all), placed(took.nan))
