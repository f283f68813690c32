"""Attention flow: how much can come through all layers from each token to each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

from gattn.analysis.propagation.mixed import NOTED, Mixed, Residual
from gattn.analysis.reading.arguments import Tokens, rows_of_tokens
from gattn.analysis.reading.attention import Attention
from gattn.analysis.reading.layers_of import layers_of
from gattn.analysis.reading.reductions import Reduction
from gattn.analysis.reading.results import Array
from gattn.names.choices import HeadChoice
from gattn.progress import walk

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]

_SCALE = 2**30
"""What a capacity of 1 is: scipy takes whole numbers of 32 bits, and sums may be above 1."""


def flow(
    attention: Attention,
    *,
    tokens: Sequence[str] = (),
    queries: Tokens = None,
    keys: Tokens = None,
    heads: HeadChoice = None,
    reduce: Reduction = "mean",
    residual: Residual = None,
    from_layer: int | None = None,
    progress: bool = True,
) -> Array:
    r"""Find how much can flow through all layers from each token to each other.

    The layers are unrolled: a node is a token after a layer, the edge from token j before layer l
    to token i after it carries :math:`\tilde A^{(l)}_{ij}` at most (as in `rollout`), and the flow
    from key j to query i is the maximum flow from j before the first layer to i after the last. It
    is at least the rollout :math:`R_{ij}`, and at most 1. The flows to a query do not sum to 1:
    ``found / found.sum("key")`` makes shares of them.

    Parameters
    ----------
    attention, heads, reduce, residual, from_layer
        As in `rollout`.
    tokens : sequence of str
        The texts of an array's tokens.
    queries, keys : int, str, or sequence of these, optional
        The tokens after all layers that it flows to, and those before them that it flows from:
        positions, negative from the end, or texts; by default all. All pairs of a few hundred
        tokens take long: then an estimate is printed first.
    progress : bool
        Whether to show a progress bar and that estimate.

    Returns
    -------
    Array (query, key)
        The flow from each key to each query. Capacities are rounded down to multiples of 1 / 2**30,
        and dropped edges carry nothing: each flow is a lower bound, and the coordinate
        ``error_bound`` (query, key) says how much it may lack at most.

    Raises
    ------
    ShapeError, SelectionError
        As in `rollout`; also if there is no such token.

    References
    ----------
    Abnar and Zuidema (2020), Quantifying attention flow in transformers.
    """
    mixed = Mixed.of(
        layers_of(attention, tokens, differing=True), heads, reduce, residual, from_layer
    )
    layers = mixed.layers
    ends = rows_of_tokens(queries, layers.positions, layers.tokens, "query", layers.geometry)
    starts = rows_of_tokens(keys, layers.positions, layers.tokens, "key", layers.geometry)
    matrices = [matrix.cpu().double().numpy() for matrix, _ in mixed]
    lost = [some.cpu().double().numpy() for _, some in mixed]
    networks = [_Unrolled.of(matrices)]
    if max(some.max() for some in lost) > NOTED:
        networks.append(_Unrolled.of(matrices, lost))
    else:
        lost = [np.zeros_like(some) for some in lost]
    found = np.zeros((2, len(ends), len(starts)))
    pairs = _pairs(_reach(matrices, lost)[np.ix_(ends, starts)], ends, starts)
    fewer = "choose some with queries= and keys="
    at, toward = -1, list[_Toward]()
    for row, column in walk(pairs, "flow", "pair", progress=progress, fewer=fewer):
        if row != at:
            at, toward = row, [network.toward(ends[row]) for network in networks]
        bounds = [some.bounds(starts[column]) for some in toward]
        found[:, row, column] = bounds[0][0], bounds[-1][1] - bounds[0][0]
    flows, error = found
    worst = float(error.max(initial=0))
    why = "lower bounds" if len(networks) > 1 else "capacities were rounded down"
    notes = [*mixed.notes(), f"{why}: flows lack at most {worst:.1g}"]
    result = mixed.array(flows, "flow", notes, {"query": ends, "key": starts})
    return result.assign_coords(error_bound=(("query", "key"), error))


def _reach(matrices: Sequence[Floats], lost: Sequence[Floats]) -> NDArray[np.bool_]:
    """Say from which keys anything can come to which queries."""
    reach = np.eye(len(matrices[0]), dtype=np.float32)
    for matrix, some in zip(matrices, lost, strict=True):
        reach = ((matrix + some[:, None] > 0).astype(np.float32) @ reach > 0).astype(np.float32)
    return reach > 0


def _pairs(
    reach: NDArray[np.bool_], queries: Sequence[int], keys: Sequence[int]
) -> list[tuple[int, int]]:
    """List what is to be computed, query by query, and first a pair of about mean cost."""
    rows, columns = reach.nonzero()
    if not len(rows):
        return []
    size = (np.asarray(queries)[rows] - np.asarray(keys)[columns]) ** 2
    first = np.abs(size - size.mean()).argmin()
    order = np.lexsort((columns, columns != columns[first], rows, rows != rows[first]))
    return list(zip(rows[order].tolist(), columns[order].tolist(), strict=True))


@dataclass(frozen=True, eq=False)
class _Unrolled:
    """The unrolled layers: nodes by token, then layer, and after them a hub for each layer.

    A hub carries what dropped edges may have carried: it takes from every token, and gives each as
    much as it lost.
    """

    capacity: csr_array
    layers: int

    @classmethod
    def of(cls, matrices: Sequence[Floats], lost: Sequence[Floats] | None = None) -> _Unrolled:
        steps, count = len(matrices) + 1, len(matrices[0])
        parts = []
        for n, matrix in enumerate(matrices):
            query, key = matrix.nonzero()
            parts.append((key * steps + n, query * steps + n + 1, matrix[query, key]))
            if lost is not None:
                (some,) = lost[n].nonzero()
                hub, every = np.array(count * steps + n), np.arange(count) * steps + n
                parts.append((every, np.broadcast_to(hub, count), np.ones(count)))
                parts.append((np.broadcast_to(hub, len(some)), some * steps + n + 1, lost[n][some]))
        tail, head, capacity = (np.concatenate(some) for some in zip(*parts, strict=True))
        size = (count + 1) * steps
        return cls(csr_array((capacity, (tail, head)), shape=(size, size)), len(matrices))

    def toward(self, token: int) -> _Toward:
        """Take what leads to a token after all layers."""
        target = (token + 1) * (self.layers + 1) - 1
        found = breadth_first_order(self.capacity.T, target, return_predecessors=False)
        nodes = np.sort(found).astype(np.int64)
        capacity = self.capacity[nodes][:, nodes]
        capacity.sort_indices()
        return _Toward(capacity, nodes, target, self.layers + 1)


@dataclass(frozen=True, eq=False)
class _Toward:
    """The nodes of the unrolled layers that lead to one of them."""

    capacity: csr_array
    nodes: Ints
    target: int
    steps: int

    @cached_property
    def _rounded(self) -> NDArray[np.int32]:
        scaled: NDArray[np.int32] = np.floor(self.capacity.data * _SCALE).astype(np.int32)
        return scaled

    @cached_property
    def _tail(self) -> Ints:
        return np.repeat(np.arange(len(self.nodes)), np.diff(self.capacity.indptr))

    @cached_property
    def _is_sorted(self) -> bool:
        """Whether all edges lead to later nodes, as in causal attention."""
        return bool((self._tail < self.capacity.indices).all())

    def bounds(self, token: int) -> tuple[float, float]:
        """Bound the maximum flow from a token before all layers.

        The first number is a flow that there is, the second the capacity of a cut.
        """
        source, target = np.searchsorted(self.nodes, (token * self.steps, self.target)).tolist()
        if source == len(self.nodes) or self.nodes[source] != token * self.steps:
            return 0.0, 0.0
        # If all edges lead to later nodes, nothing flows through those before the source.
        first = source if self._is_sorted else 0
        pointer = self.capacity.indptr[first:]
        edges = slice(pointer[0], None)
        shape = (len(self.nodes) - first,) * 2
        heads = self.capacity.indices[edges] - first
        network = csr_array((self._rounded[edges], heads, pointer - pointer[0]), shape=shape)
        found = maximum_flow(network, source - first, target - first)
        near = np.zeros(shape[0], dtype=bool)
        near[
            breadth_first_order(network - found.flow, source - first, return_predecessors=False)
        ] = True
        is_cut = near[self._tail[edges] - first] & ~near[heads]
        least = found.flow_value / _SCALE
        return least, max(least, float(self.capacity.data[edges][is_cut].sum()))
