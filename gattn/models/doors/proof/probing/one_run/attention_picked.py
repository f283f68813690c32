"""Tells where code picks numbers out of attention by values, perhaps only for a log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gattn.models.doors.functions.softmaxes.follow.following import seen_before

_GETS = frozenset((Tensor.__getitem__, Tensor.masked_select, torch.masked_select))


def picks_attention(func: Any, args: Sequence[Any]) -> bool:
    """Return whether a function picks numbers of attention by a mask, or by a number in a tensor.

    Values may decide how many these are, or which slice it takes.
    """
    if func not in _GETS or seen_before(args[0]) is None or not args[0].is_floating_point():
        return False
    given = args[1] if len(args) > 1 else None
    where = given if isinstance(given, (tuple, list)) else (given,)
    return any(isinstance(x, Tensor) and (x.dtype == torch.bool or not x.dim()) for x in where)
