"""How far heads are from each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import log

import numpy as np
import torch
from torch import Tensor

from gattn.analysis.heads.divergences import ROUNDING, check_same, distance_notes, dropped_distance
from gattn.analysis.heads.summed.of_edges import refuse_negative
from gattn.analysis.reading.arguments import Tokens, rows_of_tokens
from gattn.analysis.reading.attention import Heads, named
from gattn.analysis.reading.heads import are_graphs, by_place, described
from gattn.analysis.reading.layers_of import layers_of
from gattn.analysis.reading.results import Array, array
from gattn.edit_records import Edits, union
from gattn.errors import SelectionError
from gattn.heads.geometry import Geometry
from gattn.heads.head import AttentionGraph
from gattn.heads.stack import Stack
from gattn.heads.trace import AttentionTrace
from gattn.names.choices import written
from gattn.progress import walk

_BLOCK, _BLOCK_OF_GPU = 1 << 21, 1 << 26
"""How many numbers are read at once."""

_IN_CACHE = 1 << 18
"""How many numbers are worked on at once on the CPU."""

_EQUAL = 1e-13
"""Divergences that rounding leaves between equal distributions."""

_LEAST = 1e-300
"""In place of 0, as 0 ln 0 is NaN."""


def head_distances(
    attention: Heads,
    other: Heads | None = None,
    *,
    tokens: Sequence[str] = (),
    queries: Tokens = None,
    progress: bool = True,
) -> Array:
    r"""Compute the Jensen-Shannon distance of every pair of heads, mean over queries.

    .. math::

        d(p, q) = \sqrt{H(\tfrac{p + q}2) - \tfrac12 (H(p) + H(q))}, \quad
        H(p) = -\sum_j p_j \ln p_j,

    from 0, if two heads attend alike, to :math:`\sqrt{\ln 2} \approx 0.833`, if they have no key in
    common. A query's distribution is its attention to the keys and, as one more outcome, what it
    lacks of 1, as in `gattn.analysis.compare`. It is a metric.

    Parameters
    ----------
    attention : Heads
        The heads of one stack. Tensors are computed where they are.
    other : Heads, optional
        The heads to compare with, on the same tokens, such as those of another model; by default
        the same ones. ``distances.idxmin("other")`` is then each head's match.
    tokens : sequence of str
        The texts of an array's tokens (of both, with `other`), by which `queries` may name them.
    queries : int, str, or sequence of these, optional
        The queries whose mean is taken: positions, negative from the end, or texts; all by default.
        A sample says nearly as much in less time.
    progress : bool
        Whether to show a progress bar.

    Returns
    -------
    Array
        Axes ``head`` and ``other``, labelled "layer.head" as in "1.3". Along ``head``, the
        coordinates ``layer`` and ``number`` hold its layer and number.

    Raises
    ------
    SelectionError
        If a trace has several stacks, the tokens differ, or there is no such query.
    ShapeError
        If attention is negative.

    References
    ----------
    Clark et al. (2019), What does BERT look at?; Lin (1991), Divergence measures based on the
    Shannon entropy.
    """
    one = _Side.of(named(attention, tokens))
    two = one if other is None else _Side.of(named(other, tokens))
    for what, some, others in zip(("keys", "queries"), one.tokens, two.tokens, strict=True):
        check_same(what, *some, *others)
    rows = rows_of_tokens(queries, *one.tokens[1], "query", one.query_places)
    total = torch.zeros(len(one.places), len(two.places), dtype=torch.float64, device=one.device)
    budget = _BLOCK if one.device.type == "cpu" else _BLOCK_OF_GPU
    step = max(1, budget // max(len(two.places) * len(one.tokens[0][0]), 1))
    blocks = [rows[start : start + step] for start in range(0, len(rows), step)]
    fewer = "choose some queries, as in queries=range(0, 512, 8)"
    for block in walk(blocks, "head distances", "block", progress=progress, fewer=fewer):
        mine = _distributions(one.read(block))
        theirs = mine if other is None else _distributions(two.read(block).to(mine.device))
        _add_distances(total, *_used(mine, theirs), is_symmetric=other is None)
    if other is None:
        total = total + total.T
    notes = distance_notes(one.bound + two.bound)
    if len(rows) < len(one.tokens[1][0]):
        notes.append(f"mean over {len(rows)} of {len(one.tokens[1][0])} queries")
    found = array(
        total / max(len(rows), 1),
        {"head": list(map(written, one.places)), "other": list(map(written, two.places))},
        name="distance",
        computed_from=" and ".join(dict.fromkeys((one.source, two.source))),
        notes=notes,
        edits=one.edits if other is None else (),
    )
    numbers = np.array(one.places).T
    return found.assign_coords(layer=("head", numbers[0]), number=("head", numbers[1]))


@dataclass(frozen=True)
class _Side:
    """Heads that are compared.

    `read` gives the attention of some rows, (heads, rows, keys); `tokens` are positions and texts
    of keys and of queries, `query_places` where queries lie; `bound` is how far a head may be from
    itself with all edges.
    """

    places: list[tuple[int, int]]
    read: Callable[[Sequence[int]], Tensor]
    tokens: tuple[tuple[Sequence[int], Sequence[str]], tuple[Sequence[int], Sequence[str]]]
    source: str
    device: torch.device
    bound: float = 0.0
    edits: Edits = ()
    query_places: Geometry | None = None

    @classmethod
    def of(cls, attention: Heads) -> _Side:
        if isinstance(attention, AttentionTrace):
            attention = attention.only_stack
        if isinstance(attention, (Stack, AttentionGraph)) or are_graphs(attention):
            return cls._of_graphs(by_place(attention))
        layers = layers_of(attention)  # type: ignore[arg-type] # no list of graphs

        def read(rows: Sequence[int]) -> Tensor:
            parts = [layers.read(n)[:, rows] for n in range(len(layers))]
            return torch.cat(parts).double()

        return cls(
            [(layer, head) for layer in layers.layers for head in layers.heads],
            read,
            ((layers.positions, layers.key_texts), (layers.query_positions, layers.query_texts)),
            str(layers.read_from),
            layers.mass.device,
            edits=layers.read_from.edits,
            query_places=layers.query_geometry,
        )

    @classmethod
    def _of_graphs(cls, placed: dict[tuple[str, int, int], AttentionGraph]) -> _Side:
        heads = list(placed.values())
        if not heads:
            raise SelectionError("There are no heads to compare: capture at least one.")
        for head in heads:
            refuse_negative(head.attention.min(initial=0.0))
            if _size(head) != _size(heads[0]):
                raise SelectionError("Heads of other tokens have no distance: take one stack.")
        matrices = [head.to_scipy() for head in heads]

        def read(rows: Sequence[int]) -> Tensor:
            parts = np.stack([matrix[rows].toarray() for matrix in matrices])
            return torch.from_numpy(parts.astype(np.float64))

        keys, queries = heads[0].node_ids()
        texts = heads[0].query_labels() if heads[0].tokens or heads[0].query_tokens else ()
        return cls(
            [(layer, head) for _, layer, head in placed],
            read,
            ((keys, heads[0].tokens), (queries, texts)),
            described(heads),
            torch.device("cpu"),
            max(map(dropped_distance, heads)),
            union(head.edits for head in heads),
            heads[0].query_geometry if heads[0].graph.is_bipartite else heads[0].geometry,
        )


def _size(head: AttentionGraph) -> tuple[int, int]:
    return head.graph.num_queries, head.graph.num_keys


def _distributions(attention: Tensor) -> Tensor:
    """Add what is left of 1 as one more outcome."""
    mass = attention.sum(-1, keepdim=True)
    left = torch.where(mass < 1 - ROUNDING, 1 - mass, 0)
    return torch.cat([attention, left], -1) / (mass + left)


def _used(one: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    """Leave out the keys that no head reads."""
    used = one.amax((0, 1)) + other.amax((0, 1)) > 0
    return (one, other) if bool(used.all()) else (one[..., used], other[..., used])


def _add_distances(total: Tensor, one: Tensor, other: Tensor, *, is_symmetric: bool) -> None:
    one, other = one.clamp_min(_LEAST), other.clamp_min(_LEAST)
    size = other.shape[0] * other.shape[2]
    step = max(1, _IN_CACHE // max(size, 1)) if one.device.type == "cpu" else one.shape[1]
    for mine, theirs in zip(one.split(step, 1), other.split(step, 1), strict=True):
        _add_block(total, mine, theirs, is_symmetric=is_symmetric)


def _add_block(total: Tensor, one: Tensor, other: Tensor, *, is_symmetric: bool) -> None:
    mine, theirs = _sums_of_logarithms(one), _sums_of_logarithms(other)
    for row in range(len(one)):
        start = row + 1 if is_symmetric else 0
        both = _sums_of_logarithms(one[row] + other[start:])
        divergence = (mine[row] + theirs[start:] - both) / 2 + log(2)
        total[row, start:] += torch.where(divergence > _EQUAL, divergence, 0).sqrt().sum(-1)


def _sums_of_logarithms(values: Tensor) -> Tensor:
    """Compute the sum of x ln x over the keys."""
    return values.log().mul_(values).sum(-1)
