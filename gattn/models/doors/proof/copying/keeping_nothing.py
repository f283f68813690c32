"""Proves that a model keeps nothing of a call, so that no later call can continue its texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from gattn.models.doors.proof.probing.one_run.walking import Given

_PLAIN = (Tensor, int, float, str, bool, type(None), torch.dtype, torch.device)


def keeps_nothing(given: Given, passed: Sequence[Given], output: Any) -> bool:
    """Return whether what a run was given is as before, and holds no cache, nor what it gave.

    A cache is an object, a list or a tensor that is written to, or comes with the answer, which
    has to be one tensor. `passed` are the copies of what was `given` that the run took.
    """
    if len(passed) != 1 or not _is_one(output):
        return False
    before, after = (_values(one) for one in (given, passed[0]))
    if len(before) != len(after) or not all(isinstance(x, _PLAIN) for x in (*before, *after)):
        return False
    return all(_is_same(one, other) for one, other in zip(before, after, strict=True))


def _values(given: Given) -> list[Any]:
    args, kwargs = given
    return [*args, *(kwargs[name] for name in sorted(kwargs))]


def _is_one(output: Any) -> bool:
    """Return whether an output is one tensor, perhaps beside places that hold nothing."""
    held = [x for x in tree_leaves(output) if x is not None]
    return len(held) == 1 and isinstance(held[0], Tensor)


def _is_same(one: Any, other: Any) -> bool:
    if not isinstance(one, Tensor):
        return True
    return one.layout == torch.strided and torch.equal(one, other)
