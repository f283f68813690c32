"""Tells ids, which an embedding looks up, from other integers that a model is given."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakTensorKeyDictionary

from gattn.models.doors.proof.probing.one_run.inputs import leaves
from gattn.models.doors.proof.probing.one_run.state import place_of

_TAKES = frozenset(("index", "gather", "index_select", "take", "_unsafe_index"))
_LOOKUPS = _TAKES | {"embedding", "_embedding_bag", "embedding_bag"}
_PLACES = frozenset(
    f"{name}{end}"
    for name in (
        *("index_put", "index_add", "index_copy", "index_fill", "index_reduce"),
        *("scatter", "scatter_add", "scatter_reduce", "_index_put_impl", "bincount"),
        *("segment_reduce", "repeat_interleave"),
    )
    for end in ("", "_")
)
_KEEPS = frozenset(
    (
        *("_to_copy", "clone", "detach", "alias", "view", "_unsafe_view", "slice", "select"),
        *("squeeze", "unsqueeze", "expand", "t", "transpose", "permute"),
        *("add", "sub", "mul", "remainder", "clamp", "clamp_min", "clamp_max", "abs"),
        *("where", "masked_fill"),
    )
)
"""The kernels that keep integers where they are, if they write to no part of others."""


class Integers:
    """Follows the integers that a model is given to the kernels that read them.

    Ids may be exchanged for one another. Integers that say to which row of other tensors something
    belongs, such as the graph of each node or the ends of edges, may not: the model may fail.

    Parameters
    ----------
    constants : collection of int
        Where the memory of the model's parameters and buffers begins.
    """

    def __init__(self, constants: Collection[int]) -> None:
        self._constants = constants
        self._dims: dict[int, int] = {}
        self._ids: set[int] = set()
        self._placing: set[int] = set()
        self._origins: Any = WeakTensorKeyDictionary()
        self._made: Any = WeakTensorKeyDictionary()
        self._is_written = False
        self.are_moved = False
        """Whether an embedding may have looked ids up in another order than they were given."""

    def begin(self, given: Any) -> None:
        """Follow the integers among what the model is given."""
        for number, x in enumerate(leaves(given)):
            if isinstance(x, Tensor) and _is_integer(x) and x.dim():
                self._dims[number] = x.dim()
                self._origins[x] = {number}

    def note(self, kernel: str, given: Sequence[Any], result: Any) -> bool:
        """Look at a kernel that ran, and return whether it looked up the ids that were given."""
        if not self._dims:
            return False
        tensors = [x for x in given if isinstance(x, Tensor)]
        origins: set[int] = set().union(*(self._origins.get(x, ()) for x in tensors))
        if not origins:
            return False
        if is_lookup := kernel in _LOOKUPS and place_of(tensors[0]) in self._constants:
            self._ids |= origins
            self.are_moved |= self._is_written or any(x in self._made for x in tensors)
        elif kernel in _TAKES or kernel in _PLACES:
            self._placing |= origins
        for x in tree_leaves(result):
            if isinstance(x, Tensor) and _is_integer(x):
                self._origins[x] = self._origins.get(x, set()) | origins
                if kernel not in _KEEPS or any(one in self._made for one in tensors):
                    self._made[x] = True
                    self._is_written |= kernel.endswith("_")  # Others may have the same memory.
        return is_lookup

    @property
    def are_looked_up(self) -> bool:
        """Whether an embedding looks some of them up."""
        return bool(self._ids)

    @property
    def looked_up(self) -> Sequence[int]:
        """Which of the inputs, by their number among all, an embedding looks up."""
        return sorted(self._ids)

    @property
    def exchangeable(self) -> Sequence[int]:
        """Which of the inputs, by their number among all, are ids; or else the first that may be.

        Those that have other dimensions than the first ids, such as positions, are left out.
        """
        if self._ids:
            first = self._dims[min(self._ids)]
            return [number for number in self.looked_up if self._dims[number] == first]
        return [number for number in self._dims if number not in self._placing][:1]


def _is_integer(x: Tensor) -> bool:
    return not x.is_floating_point() and not x.is_complex() and x.dtype != torch.bool


class Lookups(TorchFunctionMode):
    """Lets embeddings give NaN for ids that code made of NaN, as `(hour * 24).long()` may be."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run a function; an embedding gives NaN for ids that it does not have."""
        given = kwargs or {}
        if func is not nn.functional.embedding or len(args) < 2:
            return func(*args, **given)
        ids, weight = args[:2]
        with torch._C.DisableTorchFunction():
            is_missing = (ids < 0) | (ids >= len(weight))
            if bool(is_missing.any()):
                found = func(ids.masked_fill(is_missing, 0), *args[1:], **given)
                return found.masked_fill(is_missing[..., None], torch.nan)
        return func(*args, **given)
