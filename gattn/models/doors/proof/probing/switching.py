"""Finds where values decide, without an index, which tokens come into a slot: by a mask of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

from gattn.models.doors.proof.probing.one_run.picking import tensors_in
from gattn.models.watch.inside import is_inside

_SUMS = frozenset(("add", "sub", "rsub", "add_", "sub_", "lerp", "where"))
_SUMS |= {"__add__", "__radd__", "__iadd__", "__sub__", "__rsub__", "__isub__"}


class Switching(TorchFunctionMode):
    """Looks at sums and choices between other tokens, weighed by masks that values made.

    It watches runs in which marked tokens are NaN: `where(x.mean() > 3, x.flip(1), x)` chooses
    between tensors with other marks, by a mask that was made of NaN.

    Attributes
    ----------
    moves : bool
        Whether there was one in the present run.
    """

    def __init__(self) -> None:
        super().__init__()
        self.moves = False
        self._switches: Any = WeakTensorKeyDictionary()
        """Masks that values made, and numbers that were made of nothing else."""
        self._switched: Any = WeakTensorKeyDictionary()
        """What was multiplied with these."""

    def __enter__(self) -> Switching:
        """Begin a run."""
        self.moves = False
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run a function, and look at it."""
        given = kwargs or {}
        result = func(*args, **given)
        if not is_inside() and isinstance(result, Tensor) and not self.moves:
            with torch._C.DisableTorchFunction():
                self._look(getattr(func, "__name__", ""), args, given, result)
        return result

    def _look(
        self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], result: Tensor
    ) -> None:
        given = tensors_in((args, kwargs))
        if result.dtype == torch.bool:
            if any(x in self._switches or _has_nan(x) for x in given):
                self._switches[result] = True
            return
        switches = [x for x in given if x in self._switches]
        others = [x for x in given if x not in self._switches]
        if switches and not others:
            self._switches[result] = True
        elif switches or any(x in self._switched for x in given):
            self._switched[result] = True
            self.moves = name in _SUMS and len(others) > 1 and _cross(*others[:2])


def _has_nan(x: Tensor) -> bool:
    return x.is_floating_point() and bool(x.isnan().any())


def _cross(one: Tensor, other: Tensor) -> bool:
    """Return whether each of two tensors has marks where the other has none."""
    if not (one.is_floating_point() and other.is_floating_point()):
        return False
    first, second = torch.broadcast_tensors(one.isnan(), other.isnan())
    return bool((first & ~second).any()) and bool((second & ~first).any())
