"""Proves that values belong to the keys of listed edges: they were gathered by these."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from gattn.models.doors.graphs.frames import plain
from gattn.models.doors.graphs.landing import SUMS, summed_by
from gattn.models.doors.proof.nodes.graphs_apart import are_same
from gattn.models.doors.proof.nodes.moved_rows import MovedRows, Moves
from gattn.models.doors.proof.nodes.rules import Rules
from gattn.models.doors.proof.probing.one_run.picking import tensors_in
from gattn.models.read.on_graphs.seen_edges import Ends

_GATHERS = frozenset(("index", "index_select", "gather", "embedding"))
_MOST_GATHERS = 64

Place = tuple[str, int]


@dataclass(frozen=True, eq=False)
class _Gathered:
    """The rows that were gathered, of a table with so many, which moves had brought there."""

    index: Tensor
    count: int
    moves: Moves


class AlongEdges:
    """Follows which tensors have the edges of a layer as rows, and by which lists of nodes.

    Parameters
    ----------
    constants : collection of int
        Where the memory of the model's parameters and buffers begins.
    """

    def __init__(self, constants: Collection[int]) -> None:
        self._of: Any = WeakTensorKeyDictionary()
        self._rules = Rules(constants, self._of.get)
        self._mixed: Any = WeakTensorKeyDictionary()
        self._moved = MovedRows(constants)
        self._last: deque[_Gathered] = deque(maxlen=_MOST_GATHERS)
        self._is_begun = False
        self._wanted: dict[Place, tuple[Ends, set[Moves]]] = {}
        self._met: set[Place] = set()
        self._others: set[Place] = set()

    def begin(self, given: Sequence[Any]) -> None:
        """Note what the model is given, which no list of nodes has gathered."""
        for x in given:
            if isinstance(x, Tensor) and x.dim():
                self._of[x] = ()

    def note(
        self, func: Any, kernel: str, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any
    ) -> None:
        """Look at a kernel that ran."""
        if kernel in _GATHERS and (found := _gathered(kernel, args)) is not None:
            table, index = found
            inner = () if table in self._mixed else self._of.get(table) or ()
            # Edges may be put in another order.
            before = (_Gathered(x.index[index], x.count, x.moves) for x in inner)
            one = _Gathered(index.clone(), len(table), self._moved.of(table))
            self._of[result] = (one, *before)
            self._last.append(one)
            self._is_begun = True
            self._moved.note(func, kernel, args, kwargs, result)
            return
        self._moved.note(func, kernel, args, kwargs, result, self._landed(kernel, args, kwargs))
        if not self._is_begun:
            return
        rows: Any = self._rules.rows(func, kernel, args, kwargs, result)
        given, some = tensors_in((args, kwargs)), tensors_in((result,))
        is_sum, is_mixed = kernel.rstrip("_") in SUMS, any(x in self._mixed for x in given)
        for x in some:
            is_kept = rows is not None and self._rules.has_rows(x, kernel, some)
            is_made = is_mixed or (not is_kept and any(self._of.get(one) for one in given))
            if is_kept:
                self._of[x] = rows
            else:
                self._of.pop(x, None)
            if is_made and not is_sum:
                self._mixed[x] = True

    def _landed(self, kernel: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Moves | None:
        """Return what moved rows that a sum brings from edges back to the nodes they come from.

        None if it is no such sum.
        """
        by = summed_by(args, kwargs) if kernel.rstrip("_") in SUMS else None
        if by is None or by.nodes is None or not isinstance(by.summed, Tensor):
            return None
        known = self._of.get(by.summed) or ()
        if not any(are_same(one.index, by.nodes) for one in known):
            return None
        return frozenset().union(*(one.moves for one in known))

    def expect(self, place: Place, ends: Ends, *, are_others: bool) -> None:
        """Expect the values of a layer's attention, whose keys may be others than its queries."""
        by = (
            {one.moves for one in self._last if are_same(one.index, index)}
            for index in (ends.key, ends.query)
        )
        self._wanted[place] = ends, next(filter(None, by), {frozenset()})
        if are_others and not ends.is_bipartite:
            self._others.add(place)

    def values(self, query: Tensor, some: Sequence[Tensor], order: Tensor | None) -> None:
        """Look at what the attention into `query` is multiplied with, its edges in some order."""
        for place, (ends, moves) in self._wanted.items():
            if ends.query is not query:
                continue
            key = ends.key if order is None else ends.key[order]
            if any(self._are_of(x, key, ends, moves) for x in some):
                self._met.add(place)
                self._last.clear()

    def _are_of(self, x: Tensor, key: Tensor, ends: Ends, moves: set[Moves]) -> bool:
        count = None if ends.is_bipartite else ends.num_keys
        return x not in self._mixed and any(
            are_same(one.index, key) and count in (None, one.count) and moves == {one.moves}
            for one in self._of.get(x) or ()
        )

    @property
    def not_proved(self) -> dict[Place, str]:
        """Why it is not proved which nodes' values a layer's attention weighs."""
        return {
            place: _NOT_PROVED for place in self._wanted if place not in self._met - self._others
        }


_NOT_PROVED = (
    "it cannot be proved that the attention of each edge weighs the values of the node at its "
    "other end: expected values that are gathered by one row of the edge_index, as in "
    "x[edge_index[0]], from as many nodes as attend, whose rows were moved only as those of the "
    "scores were (a flip, sort or index of the values alone gives edges the values of other "
    "nodes), and that are not mixed across edges before the attention is "
    "multiplied with them. For keys that are other nodes than queries, use torch-geometric's "
    "MessagePassing with a pair of features"
)


def _gathered(kernel: str, args: Sequence[Any]) -> tuple[Tensor, Tensor] | None:
    """Return a table whose rows are gathered, and by which index."""
    if kernel == "embedding":
        table, index = args[0], args[1]
    elif kernel == "index":
        table, index = args[0], args[1][0] if len(args[1]) == 1 else None
    else:
        table, index = args[0], None if args[1] % max(args[0].dim(), 1) else args[2]
    if not isinstance(index, Tensor) or index.dtype != torch.long or not table.is_floating_point():
        return None
    index = plain(index)
    if kernel == "gather" and index.dim() > 1:
        columns = index.flatten(1)
        index = columns[:, 0] if columns.shape[1] else columns.flatten()
        if not torch.equal(columns, index[:, None].expand_as(columns)):
            return None
    return (table, index) if index.dim() == 1 else None
