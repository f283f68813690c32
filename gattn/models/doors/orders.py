"""Follows what values decide as a model runs: integers, masks, and numbers that its code reads.

Such are the order of a sort and the nodes that a pool picks. What was proved of which node is which
holds as long as values decide the same.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from hashlib import blake2b
from types import CodeType
from typing import Any

import torch
from torch import Tensor, nn

from gattn.models.doors.functions.calling.handling import is_first
from gattn.models.doors.functions.calling.owners import owner
from gattn.models.doors.functions.mode import watches
from gattn.models.doors.functions.softmaxes.follow.known import Observers
from gattn.models.doors.graphs.frames import frames

_DRAWS = frozenset(("randperm", "randint", "randint_like", "bernoulli", "bernoulli_"))
_READS = frozenset(("item", "__bool__", "__int__", "__float__", "is_nonzero", "equal", "allclose"))
_OF_SHAPES = ("new_", "empty"), ("_as", "_like")
"""The names of functions that take only a shape of values begin or end so."""


def decides(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> bool:
    """Return whether a function makes integers, masks or a plain number of values, or of chance."""
    name = getattr(func, "__name__", "")
    if name in _DRAWS:
        return True
    if name.startswith(_OF_SHAPES[0]) or name.endswith(_OF_SHAPES[1]):
        return False
    given = _tensors((*args, *kwargs.values()))
    if not any(x.is_floating_point() for x in given):
        return False
    if isinstance(result, (bool, int, float)):
        return name in _READS
    return any(map(_is_integer, _tensors((result,))))


def digest(result: Any) -> bytes:
    """Describe the integers and masks of a result."""
    if isinstance(result, (bool, int, float)):
        return repr(result).encode()
    found = blake2b(digest_size=16)
    for x in _tensors((result,)):
        if _is_integer(x):
            with torch._C.DisableTorchFunction():
                found.update(x.detach().contiguous().cpu().numpy().tobytes())
    return found.digest()


def _tensors(given: Sequence[Any]) -> list[Tensor]:
    found: list[Tensor] = []
    for x in given:
        if isinstance(x, Tensor):
            found.append(x)
        elif isinstance(x, (tuple, list)):
            found += _tensors(x)
    return found


def _is_integer(x: Tensor) -> bool:
    return not x.is_floating_point() and not x.is_complex()


class Orders:
    """Compares what values decide in a call of a model with what they decided in a proof.

    Parameters
    ----------
    wanted : sequence of bytes, optional
        What they decided then, one digest after another; empty where no value did. None where that
        is to be noted, in `decided`.
    idle : collection of code
        The hooks whose decisions do not count: a proof ran without them.
    """

    def __init__(
        self, wanted: Sequence[bytes] | None = None, idle: Collection[CodeType] = ()
    ) -> None:
        self._wanted, self._count, self._is_same = wanted or (), 0, True
        self._idle = idle
        self.switched: nn.Module | None = None
        """The module in which they first decided otherwise."""
        self.decided: list[bytes] | None = [] if wanted is None else None
        if wanted or wanted is None:
            _orders.add(self)

    def end(self) -> None:
        """See no more functions."""
        _orders.remove(self)

    def note(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        """Look at a function that ran."""
        if not self._is_same or not decides(func, args, kwargs, result):
            return
        if self.decided is not None:
            self.decided.append(digest(result))
            return
        if self._idle and any(one.f_code in self._idle for one in frames(sys._getframe(1))):
            return
        number, self._count = self._count, self._count + 1
        known = self._wanted[number] if number < len(self._wanted) else None
        self._is_same = known == b"" or known == digest(result)
        if not self._is_same:
            self.switched = owner()

    def are_as_proved(self, count: int) -> bool:
        """Return whether values decided as in the proof so far, as many times."""
        return not self._wanted or (self._is_same and self._count == count)


_orders: Observers[Orders] = Observers()


def _see(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> Any:
    if is_first():
        for orders in _orders:
            orders.note(func, args, kwargs, result)
    return result


watches[_orders] = _see
