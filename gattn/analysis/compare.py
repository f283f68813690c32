"""Compares two runs on the same tokens, such as before and after an edit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import rel_entr

from gattn.analysis.heads import describe
from gattn.errors import SelectionError, ShapeError
from gattn.head import AttentionGraph, Ints
from gattn.rules import Edges
from gattn.trace import AttentionTrace

if TYPE_CHECKING:
    import pandas as pd

FARTHEST = float(np.sqrt(np.log(2)))
"""The largest Jensen-Shannon distance."""

_ROUNDING = 1e-5
"""What rounding leaves of 1, at most, where single precision normalises."""


def compare(before: AttentionTrace, after: AttentionTrace) -> pd.DataFrame:
    r"""Compare every head of two traces of the same tokens.

    The Jensen-Shannon distance of two distributions p and q is

    .. math::

        d(p, q) = \sqrt{\tfrac12 D(p \| m) + \tfrac12 D(q \| m)}, \quad m = \tfrac12 (p + q), \quad
        D(p \| m) = \sum_j p_j \ln \frac{p_j}{m_j},

    0 where they are equal, and :math:`\sqrt{\ln 2} \approx 0.833` where they have nothing in
    common. A query's distribution is its attention to the keys, and, as one more outcome, what is
    left of 1 (if not just by rounding): what it gave to a sink, to edges that were not kept, or to
    nothing. Where attention sums to more than 1 it is divided by its sum.

    Parameters
    ----------
    before, after : AttentionTrace
        Two traces with the same tokens, stacks and heads.

    Returns
    -------
    pandas.DataFrame
        One row a head, by ``stack``, ``layer`` and ``head``, with

        - ``distance``: the Jensen-Shannon distance of the two, mean over queries;
        - ``entropy_before``, ``entropy_after``: as `gattn.analysis.heads.head_table` has it;
        - ``change``: the largest change of an edge's attention, after - before;
        - ``query``, ``key``, ``query_token``, ``key_token``: that edge; none where nothing changed.

    Raises
    ------
    SelectionError
        Where the traces have other stacks, heads or tokens.
    ShapeError
        Where attention is negative.

    References
    ----------
    Lin (1991), Divergence measures based on the Shannon entropy. Clark et al. (2019), What does
    BERT look at?, compares heads by it.
    """
    import pandas as pd

    rows = [
        {"stack": stack, "layer": layer, "head": head, **compare_head(one, other)}
        for (stack, layer, head), one, other in pairs(before, after)
    ]
    index = ["stack", "layer", "head"]
    table = pd.DataFrame(rows, columns=None if rows else index).set_index(index)
    return table.astype({"query": "Int64", "key": "Int64"} if rows else {})


def compare_head(before: AttentionGraph, after: AttentionGraph) -> dict[str, Any]:
    """Compare two graphs of one head; see `compare`."""
    joined = Joined.of(before, after)
    row: dict[str, Any] = {
        "distance": float(joined.distances().mean()) if before.graph.num_queries else 0.0,
        "entropy_before": describe(before)["entropy"],
        "entropy_after": describe(after)["entropy"],
        "change": 0.0,
        **dict.fromkeys(("query", "key", "query_token", "key_token")),
    }
    if not joined.change.any():
        return row
    edge = int(np.abs(joined.change).argmax())
    query, key = int(joined.query[edge]), int(joined.key[edge])
    keys, queries = before.node_ids()
    return row | {
        "change": float(joined.change[edge]),
        "query": queries[query],
        "key": keys[key],
        "query_token": before.query_labels()[query],
        "key_token": before.labels()[key],
    }


def difference(before: AttentionGraph, after: AttentionGraph) -> AttentionGraph:
    """Subtract one head's attention from another's: a graph with signed attention.

    Its edges are those of either graph, its attention is after - before, and so is its sink.

    Raises
    ------
    SelectionError
        Where their tokens differ.
    ShapeError
        Where attention is negative.
    """
    joined = Joined.of(before, after)
    row, key = torch.from_numpy(joined.query), torch.from_numpy(joined.key)
    queries = joined.num_queries
    rule = Edges.from_pairs(row, key, queries, before.graph.query_offset)
    sink = None
    if before.sink is not None or after.sink is not None:
        one, other = (0.0 if head.sink is None else head.sink for head in (before, after))
        sink = np.asarray(other - one)
    return replace(
        before,
        graph=replace(before.graph, rule=rule),
        attention=joined.change,
        total_mass=np.bincount(joined.query, np.abs(joined.change), queries).astype(np.float64),
        total_edges=np.bincount(joined.query, minlength=queries),
        score=None,
        contribution=None,
        value_norm=None,
        sink=sink,
        weight_function="",
        normalizer="",
    )


def pairs(
    before: AttentionTrace, after: AttentionTrace
) -> Iterator[tuple[tuple[str, int, int], AttentionGraph, AttentionGraph]]:
    """Walk the heads of two traces together, by stack, layer and head.

    Raises
    ------
    SelectionError
        Where the traces have other stacks, heads or tokens.
    """
    one, other = (
        {
            (name, *place): stack[place]
            for name, stack in trace.stacks.items()
            for place in sorted(stack)
        }
        for trace in (before, after)
    )
    if lone := sorted(one.keys() ^ other.keys()):
        stack, layer, head = lone[0]
        side = "before" if lone[0] in one else "after"
        raise SelectionError(
            f"Only the trace {side} has head {head} of layer {layer} in its {stack} stack: capture "
            "both with the same layers= and heads=."
        )
    for place in one:
        yield place, one[place], other[place]


@dataclass(frozen=True, eq=False)
class Joined:
    """The edges of two graphs of one head, those of either.

    Parameters
    ----------
    query, key : array of int
        The row and the key of each edge.
    before, after : array
        Their attention, 0 where an edge is not there.
    num_queries : int
        How many queries there are.
    """

    query: Ints
    key: Ints
    before: NDArray[np.float64]
    after: NDArray[np.float64]
    num_queries: int

    @classmethod
    def of(cls, before: AttentionGraph, after: AttentionGraph) -> Joined:
        """Join two graphs of the same tokens.

        Raises
        ------
        SelectionError
            Where their tokens differ.
        ShapeError
            Where attention is negative.
        """
        _check_same_tokens(before, after)
        keys = max(before.graph.num_keys, 1)
        places = [head.query * keys + head.key for head in (before, after)]
        union = np.union1d(*places)
        values = np.zeros((2, len(union)))
        for row, place, head in zip(values, places, (before, after), strict=True):
            if bool((head.attention < 0).any()):
                raise ShapeError("Only attention >= 0 is compared; this head has negative.")
            row[np.searchsorted(union, place)] = head.attention
        one, other = values
        return cls(union // keys, union % keys, one, other, before.graph.num_queries)

    @property
    def change(self) -> NDArray[np.float64]:
        """How much the attention of each edge changed."""
        return self.after - self.before

    def distances(self) -> NDArray[np.float64]:
        """Compute the Jensen-Shannon distance of each query; see `compare`."""
        (one, one_left), (other, other_left) = map(self._shares, (self.before, self.after))
        divergence = np.bincount(self.query, _divergence(one, other), self.num_queries)
        return np.sqrt(np.maximum(divergence + _divergence(one_left, other_left), 0))

    def _shares(
        self, attention: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Make each query's attention a distribution: shares of edges, and what is left."""
        mass = np.bincount(self.query, attention, self.num_queries)
        left = np.where(mass < 1 - _ROUNDING, 1 - mass, 0)
        return attention / (mass + left)[self.query], left


def _divergence(p: NDArray[np.float64], q: NDArray[np.float64]) -> NDArray[np.float64]:
    middle = (p + q) / 2
    divergence: NDArray[np.float64] = (rel_entr(p, middle) + rel_entr(q, middle)) / 2
    return divergence


def _check_same_tokens(before: AttentionGraph, after: AttentionGraph) -> None:
    sides = (
        (before.labels(), after.labels()),
        (before.query_labels(), after.query_labels()),
    )
    for one, other in sides:
        if len(one) != len(other):
            raise SelectionError(
                f"The traces have {len(one)} and {len(other)} tokens: compare two runs on the same "
                "text."
            )
        for place, (token, changed) in enumerate(zip(one, other, strict=True)):
            if token != changed:
                raise SelectionError(
                    f"Token {place} is {token!r} before and {changed!r} after: compare two runs on "
                    "the same text."
                )
