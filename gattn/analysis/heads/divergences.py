"""Jensen-Shannon distances of a head before and after, and how far dropped edges may move them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import rel_entr

from gattn.errors import SelectionError, ShapeError
from gattn.heads.head import AttentionGraph, Ints

FARTHEST = float(np.sqrt(np.log(2)))
"""The largest Jensen-Shannon distance."""

ROUNDING = 1e-5
"""At most how far from 1 rounding leaves sums in single precision."""


def dropped_distance(head: AttentionGraph) -> float:
    r"""Bound how far a head is from itself with all edges, mean over queries.

    A query that lost the share d is at the distance :math:`\sqrt{d \ln 2}`. The Jensen-Shannon
    distance is a metric, so bounds of two heads add up.
    """
    if not head.graph.num_queries:
        return 0.0
    dropped = np.maximum(head.total_mass - head.kept_mass, 0).astype(np.float64)
    share = np.where(dropped > ROUNDING, dropped, 0) / np.maximum(head.total_mass, 1)
    return float(np.sqrt(share * np.log(2)).mean())


def distance_notes(bound: float) -> list[str]:
    """Return how far distances may be from those of all edges, if some were dropped."""
    if bound == 0:
        return []
    return [
        "what was not kept is one more outcome: each distance is at most "
        f"{bound:.3f} from that of all edges"
    ]


@dataclass(frozen=True, eq=False)
class Joined:
    """The edges of two graphs of one head, those of either.

    Parameters
    ----------
    query, key : array of int
        The row and the key of each edge.
    before, after : array
        Their attention, 0 if a graph lacks the edge.
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
        """Join two graphs of the same tokens."""
        _check_same_tokens(before, after)
        keys = max(before.graph.num_keys, 1)
        places = [head.query * keys + head.key for head in (before, after)]
        is_shared = np.array_equal(places[0], places[1])
        union = places[0] if is_shared else np.union1d(*places)
        values = np.zeros((2, len(union)))
        for row, place, head in zip(values, places, (before, after), strict=True):
            if bool((head.attention < 0).any()):
                raise ShapeError("Only attention >= 0 is compared; this head has negative.")
            row[slice(None) if is_shared else np.searchsorted(union, place)] = head.attention
        one, other = values
        return cls(union // keys, union % keys, one, other, before.graph.num_queries)

    @property
    def change(self) -> NDArray[np.float64]:
        """How much the attention of each edge changed."""
        return self.after - self.before

    @property
    def mean_distance(self) -> float:
        """The mean over queries of their Jensen-Shannon distances; 0 without queries."""
        return float(self.distances().mean()) if self.num_queries else 0.0

    def distances(self) -> NDArray[np.float64]:
        """Compute the Jensen-Shannon distance of each query; see `gattn.analysis.compare`."""
        (one, one_left), (other, other_left) = map(self._shares, (self.before, self.after))
        divergence = np.bincount(self.query, _divergence(one, other), self.num_queries)
        return np.sqrt(np.maximum(divergence + _divergence(one_left, other_left), 0))

    def _shares(
        self, attention: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Make each query's attention a distribution: shares of edges, and what is left."""
        mass = np.bincount(self.query, attention, self.num_queries)
        left = np.where(mass < 1 - ROUNDING, 1 - mass, 0)
        return attention / (mass + left)[self.query], left


def _divergence(p: NDArray[np.float64], q: NDArray[np.float64]) -> NDArray[np.float64]:
    middle = (p + q) / 2
    divergence: NDArray[np.float64] = (rel_entr(p, middle) + rel_entr(q, middle)) / 2
    return divergence


def _check_same_tokens(before: AttentionGraph, after: AttentionGraph) -> None:
    (one_keys, one_queries), (other_keys, other_queries) = before.node_ids(), after.node_ids()
    check_same("keys", one_keys, before.tokens, other_keys, after.tokens)
    one_texts, other_texts = (h.query_labels() if h.tokens else () for h in (before, after))
    check_same("queries", one_queries, one_texts, other_queries, other_texts)


def check_same(
    what: str,
    one: Sequence[int],
    one_texts: Sequence[str],
    other: Sequence[int],
    other_texts: Sequence[str],
) -> None:
    """Refuse other positions and, if both sides know the tokens' texts, other texts."""
    if len(one) != len(other):
        what = "tokens" if what == "keys" else what
        raise SelectionError(
            f"The traces have {len(one)} and {len(other)} {what}: compare two runs on the same "
            "text, by models of the same tokenizer."
        )
    sides: tuple[Sequence[Any], Sequence[Any]] = one, other
    if one_texts and other_texts:
        sides = one_texts, other_texts
    for place, (token, changed) in enumerate(zip(*sides, strict=False)):
        if token != changed:
            raise SelectionError(
                f"Token {place} is {token!r} before and {changed!r} after: compare two runs on "
                "the same text, by models of the same tokenizer."
            )
