"""Topology: the graph that remains of a head if only strong attention counts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Any

import networkx as nx
import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from gattn.analysis.reading.attention import Attention
from gattn.analysis.reading.dropped import largest_dropped
from gattn.analysis.reading.layers_of import layers_of
from gattn.analysis.reading.results import Table
from gattn.checks import whole
from gattn.errors import SelectionError
from gattn.heads.head import Floats, Ints
from gattn.progress import walk

THRESHOLDS = (0.025, 0.05, 0.1, 0.25, 0.5, 0.75)
"""The least attention of an edge: one graph for each threshold."""


class TopologyTable(Table):
    """One row per head and threshold; see `topology_table`."""


def topology_table(
    attention: Attention,
    thresholds: Iterable[float] = THRESHOLDS,
    *,
    tokens: Sequence[str] = (),
    self_loops: bool = False,
    max_cycles: int | None = None,
    progress: bool = True,
) -> TopologyTable:
    r"""Describe the graph of each head's edges with attention of at least a threshold.

    All tokens are its nodes. The Betti numbers are those of the graph without directions, in which
    an edge and its reverse are one: :math:`\beta_0` counts its components, and
    :math:`\beta_1 = e - v + \beta_0` its independent cycles.

    Parameters
    ----------
    attention : Attention
        Self-attention.
    thresholds : iterable of float
        The thresholds, compared in double precision: .7 in single precision is below 0.7.
    tokens : sequence of str
        The texts of an array's tokens; the result names no tokens.
    self_loops : bool
        Whether edges from a token to itself count: as edges, twice in the degree, as cycles of one
        token, and in :math:`\beta_1`. The original counts them.
    max_cycles : int, optional
        Count simple directed cycles too, up to this many in each graph (500 in the original). There
        may be exponentially many, so this bounds the time.
    progress : bool
        Whether to show a progress bar.

    Returns
    -------
    TopologyTable
        One row per ``layer``, ``head`` and ``threshold``, with

        - ``edges``: how many there are, and ``mean_degree``: how many a token has, in and out;
        - ``strong_components``: sets of tokens that all reach each other along directed edges; in
          a causal head as many as tokens;
        - ``betti0``, ``betti1``: the components of the graph without directions, its weak
          components, and its independent cycles;
        - ``cycles``, with `max_cycles`: simple directed cycles; a causal head has none but
          self-loops.

        Numbers are NaN if edges that were not kept could reach the threshold.

    Raises
    ------
    ShapeError
        If attention is negative.
    SelectionError
        If queries and keys are not the same tokens, a threshold is not above 0, or `max_cycles`
        is not a whole number.

    References
    ----------
    Kushnareva et al. (2021), Artificial text detection via examining the topology of attention
    maps.
    """
    least = _rising(thresholds)
    if max_cycles is not None:
        max_cycles = whole("max_cycles", max_cycles, 1, SelectionError)
    layers = layers_of(attention, tokens).square()
    bound = largest_dropped(layers, self_loops=self_loops)
    rows = []
    unknown = 0
    fewer = "count without max_cycles, or take fewer layers or heads"
    steps = range(len(layers))
    for n in walk(steps, "topology", "layer", progress=progress, fewer=fewer):
        edges = _Edges.of(layers.read(n), least[0], self_loops)
        for threshold in least:
            found = edges.described(threshold, max_cycles)
            for row, head in enumerate(layers.heads):
                one = {name: values[row] for name, values in found.items()}
                if bound[n, row] >= threshold:
                    one, unknown = dict.fromkeys(one, np.nan), unknown + 1
                rows.append({"layer": layers.layers[n], "head": head, "threshold": threshold} | one)
    notes = ["self-loops count"] if self_loops else []
    if unknown:
        notes.append(f"{unknown} graphs are unknown: edges that were not kept could be in them")
    if max_cycles is not None:
        notes.append(f"cycles are counted up to {max_cycles}")
    index = ["layer", "head", "threshold"]
    return layers.table(TopologyTable, rows, index, "topology", notes).sort_index()


def _rising(thresholds: Iterable[float]) -> list[float]:
    try:
        found = sorted({float(threshold) for threshold in thresholds})
    except (TypeError, ValueError):
        found = []
    if not found or not all(0 < threshold < float("inf") for threshold in found):
        raise SelectionError(
            f"thresholds are numbers above 0, as in [0.1, 0.5], not {thresholds!r:.80}."
        )
    return found


@dataclass(frozen=True, eq=False)
class _Edges:
    """The edges of a layer's heads that reach the lowest threshold.

    `size` is how many heads and tokens there are, `back` the attention of each edge's reverse.
    """

    size: tuple[int, int]
    head: Ints
    query: Ints
    key: Ints
    attention: Floats
    back: Floats

    @classmethod
    def of(cls, matrices: Tensor, least: float, self_loops: bool) -> _Edges:
        # Rounded to what the matrices hold, the threshold lets no edge go that reaches it.
        head, query, key = (matrices >= least).nonzero(as_tuple=True)
        values = matrices[head, query, key], matrices[head, key, query]
        parts = [part.cpu().numpy() for part in (head, query, key)]
        parts += [value.cpu().numpy().astype(np.float64) for value in values]
        if not self_loops:
            between = parts[1] != parts[2]
            parts = [part[between] for part in parts]
        return cls((matrices.shape[0], matrices.shape[-1]), *parts)

    def described(self, threshold: float, max_cycles: int | None) -> dict[str, NDArray[Any]]:
        """Describe each head's graph at a threshold; see `topology_table`."""
        heads, tokens = self.size
        there = self.attention >= threshold
        head, query, key = self.head[there], self.query[there], self.key[there]
        first = (self.back[there] < threshold) | (query <= key)  # of an edge and its reverse
        places = (head * tokens + key, head * tokens + query)
        shape = (heads * tokens, heads * tokens)  # one block a head
        graph = csr_array((np.ones(len(head), np.int8), places), shape=shape)
        strong = connected_components(graph, connection="strong")[1]
        weak = connected_components(graph, connection="weak")[1]
        count, betti0 = np.bincount(head, minlength=heads), _number(weak.reshape(heads, -1))
        found = {
            "edges": count,
            "mean_degree": 2 * count / tokens,
            "strong_components": _number(strong.reshape(heads, -1)),
            "betti0": betti0,
            "betti1": np.bincount(head[first], minlength=heads) - tokens + betti0,
        }
        if max_cycles is not None:
            tied = strong[places[0]] == strong[places[1]]  # cycles stay in strong components
            ends = np.searchsorted(head[tied], np.arange(heads + 1))
            pairs = np.stack([key[tied], query[tied]], axis=1)
            parts = [pairs[start:end] for start, end in pairwise(ends)]
            found["cycles"] = np.array([_cycles(part, max_cycles) for part in parts])
        return found


def _number(components: NDArray[np.int32]) -> Ints:
    """Count the components of each head, given that of each token."""
    ordered = np.sort(components, axis=1)
    count: Ints = (np.diff(ordered, axis=1) != 0).sum(1) + 1
    return count


def _cycles(edges: Ints, most: int) -> int:
    """Count simple directed cycles up to `most`."""
    loops = edges[:, 0] == edges[:, 1]
    found = int(loops.sum())
    if found < most and found < len(edges):
        graph: nx.DiGraph[int] = nx.DiGraph(edges[~loops].tolist())
        found += sum(1 for _ in islice(nx.simple_cycles(graph), most - found))
    return min(found, most)
