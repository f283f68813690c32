"""Follows which kernels moved rows of a tensor to other rows."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from gattn.models.doors.functions.calling.memory import Memory, memory_of
from gattn.models.doors.graphs.landing import SUMS
from gattn.models.doors.proof.nodes.rules import Rows, Rules
from gattn.models.doors.proof.probing.moving import MOVES
from gattn.models.doors.proof.probing.one_run.picking import tensors_in
from gattn.models.doors.proof.probing.one_run.state import place_of

Moves = frozenset[tuple[str, int]]
"""The kernels that moved rows, by their names and numbers."""

_NONE: Moves = frozenset()
_GATHERS = frozenset(("index", "index_select", "gather", "embedding"))
_TURNS = frozenset(("transpose", "permute"))


class MovedRows:
    """Follows what moved rows: tensors with the same nodes as rows went through the same moves.

    Parameters
    ----------
    constants : collection of int
        Where the memory of the model's parameters and buffers begins.
    """

    def __init__(self, constants: Collection[int]) -> None:
        self._constants = constants
        self._moves: Any = WeakTensorKeyDictionary()
        self._turned: Any = WeakTensorKeyDictionary()
        self._parts: dict[Memory | None, Moves] = {}
        self._count = 0
        self._rules = Rules(constants, self._in_place)

    def of(self, x: Tensor) -> Moves:
        """Return what moved rows of a tensor."""
        found: Moves = self._moves.get(x, _NONE)
        return found | self._parts.get(memory_of(x), _NONE)

    def note(
        self,
        func: Any,
        kernel: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        result: Any,
        landed: Moves | None = None,
    ) -> None:
        """Look at a kernel that ran; if it sums edges up at their nodes, `landed` moved these."""
        given, found = tensors_in((args, kwargs)), tensors_in((result,))
        is_written = getattr(getattr(func, "_schema", None), "is_mutable", False)
        before = {memory_of(x) for x in given}
        for x in found:
            if (where := memory_of(x)) not in before:
                self._parts.pop(where, None)
        if not given:
            return
        keeps = self._rules.rows(func, kernel, args, kwargs, result) is not None
        if landed is None:
            moves = self._made(kernel, args, given, keeps)
        else:
            moves = self.of(given[0]) | landed
        is_view = not is_written and any(memory_of(x) in before for x in found)
        nodes = [x for x in given if place_of(x) not in self._constants]
        is_turned = (is_view and not keeps) or any(x in self._turned for x in nodes)
        if is_written and not _has_all_rows(given[0]):
            moves |= self._next(kernel)
        if is_written and moves and (where := memory_of(given[0])):
            self._parts[where] = self._parts.get(where, _NONE) | moves
        for x in found:
            if moves:
                self._moves[x] = moves
            if is_turned:
                self._turned[x] = True

    def _made(
        self, kernel: str, args: Sequence[Any], given: Sequence[Tensor], keeps: bool
    ) -> Moves:
        """Return what moved the rows of a kernel's result."""
        if kernel.startswith("new_") or kernel.endswith("_like"):
            return _NONE
        if kernel.rstrip("_") in SUMS and isinstance(args[2], Tensor):
            own, source = self.of(given[0]), self.of(given[-1])
            if not _is_permutation(args[2], given[0]):  # Messages land at their nodes.
                return own | {one for one in source if one[0] not in _GATHERS}
            return own | source | self._next("permuted")
        if kernel in _GATHERS and not keeps and place_of(given[0]) not in self._constants:
            is_one = len(given) == 2 and _is_permutation(given[1], given[0])
            return self.of(given[0]) | self._next("permuted" if is_one else kernel)
        moves = _NONE.union(*(self.of(x) for x in given))
        is_lookup = kernel in _GATHERS and place_of(given[0]) in self._constants
        is_move = (kernel in MOVES and kernel not in _TURNS) or kernel == "stack"
        return moves | self._next(kernel) if is_move and not keeps and not is_lookup else moves

    def _next(self, kernel: str) -> Moves:
        self._count += 1
        return frozenset(((kernel, self._count),))

    def _in_place(self, x: Tensor) -> Rows | None:
        is_turned = x in self._turned and place_of(x) not in self._constants
        return None if is_turned else ()


def _is_permutation(index: Tensor, table: Tensor) -> bool:
    """Return whether an index lists each row of a table once."""
    if index.dtype != torch.long or not index.dim() or not table.dim():
        return False
    index = index.flatten(1)[:, :1].flatten() if index.dim() > 1 else index
    return len(index) == len(table) > 1 and len(set(index.tolist())) == len(index)


def _has_all_rows(x: Tensor) -> bool:
    """Return whether a tensor has all rows of its memory, of which it may have some columns."""
    whole = x.untyped_storage().nbytes() if x.layout == torch.strided else 0
    return not whole or not x.dim() or len(x) * x.stride(0) * x.itemsize >= whole
