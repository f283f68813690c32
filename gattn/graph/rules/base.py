"""The base of all rules: who may attend to whom, for any block of pairs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gattn.errors import GraphError
from gattn.graph.rules.keys import Keys, Span, run_of

if TYPE_CHECKING:
    from gattn.graph.rules.edges import Edges


def check_answer(rule: Rule, found: object, queries: int, keys: int) -> None:
    """Refuse what `allowed` returned for a block of pairs, unless it is one boolean per pair."""
    if isinstance(found, Tensor):
        if found.dtype == torch.bool and found.shape == (queries, keys):
            return
        got = f"{str(found.dtype).removeprefix('torch.')} {tuple(found.shape)}"
    else:
        got = type(found).__name__
    raise GraphError(
        f"{type(rule).__name__}.allowed must return booleans ({queries}, {keys}) for queries "
        f"({queries}, 1) and keys (1, {keys}), not {got}: compare both, as in key <= query, or let "
        "one broadcast, as in (key < 2) & (query >= 0)."
    )


BLOCK_PAIRS = 1 << 22
"""How many pairs of positions are looked at at once."""


class Rule(ABC):
    """Whether query q may attend to key k, for any pair of positions.

    A subclass writes `allowed`, in operations that broadcast; with the numbers of queries and keys
    it is a token graph. The other methods are faster paths with a default: `interval` if each
    query's keys are a run, else `reach`, which keeps tiles narrow, and `count`, which counts edges
    without looking at all pairs.

    A rule should compare equal to its like, as a frozen dataclass does. Files hold gattn's own
    rules alone: for a graph with another, save
    ``TokenGraph.from_edge_index(graph.edge_index, num_tokens)``.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Landmarks(Rule):
    ...     step: int
    ...
    ...     def allowed(self, query, key):
    ...         return (key <= query) & (key % self.step == 0)
    >>> graph = TokenGraph(Landmarks(3), num_queries=10, num_keys=10)
    >>> (graph | TokenGraph.window(10, 2)).num_edges
    34
    """

    @abstractmethod
    def allowed(self, query: Tensor, key: Tensor) -> Tensor:
        """Return whether the edge exists, for positions that broadcast against each other.

        Parameters
        ----------
        query, key : Tensor
            Integer positions.

        Returns
        -------
        Tensor
            Booleans of the broadcast shape, in memory of their own: callers may write to them.
        """

    def reach(self, first: int, last: int, num_keys: int) -> Keys:
        """Find the keys that the queries first .. last (inclusive) reach, all together.

        Parameters
        ----------
        first, last : int
            Positions, first <= last.
        num_keys : int
            How many keys there are.

        Returns
        -------
        slice or Tensor
            These keys and possibly others: a slice if they are one run, else int64, sorted,
            without duplicates, on the rule's device (the CPU for a rule without one).
        """
        keys = self.interval(torch.tensor([first, last], device="cpu"))
        if keys is None:
            return slice(0, num_keys)
        return run_of(int(keys[0][0]), int(keys[1][1]), num_keys)

    def interval(self, query: Tensor) -> Span | None:
        """Return each query's keys as [low, high), or None if they are not an interval.

        From one query to the next each end stays or moves on by one, so that the keys of a run of
        queries are an interval, too.
        """
        return None

    def count(self, query: Tensor, low: Tensor, high: Tensor) -> Tensor | None:
        """Count each query's keys in [low, high), or give None if that takes a walk over all pairs.

        Parameters
        ----------
        query : Tensor
            Positions, in any order.
        low, high : Tensor
            Of the same shape, low <= high.
        """
        keys = self.interval(query)
        if keys is None:
            return None
        return (torch.minimum(high, keys[1]) - torch.maximum(low, keys[0])).clamp_min(0)

    def degrees(self, query: Tensor, num_keys: int) -> Tensor | None:
        """Count all keys of each query; see `count`."""
        return self.count(query, torch.zeros_like(query), torch.full_like(query, num_keys))

    def listed(self) -> Edges | None:
        """List the edges, or give None if that takes a walk over all pairs."""
        return None

    @property
    def terms(self) -> int:
        """How many rules are joined here, not counting lists of edges."""
        return 1

    @property
    def device(self) -> torch.device | None:
        """The device that holds the rule's edges; None for a rule that follows its queries."""
        return None

    def to(self, device: torch.device) -> Rule:
        """Move what the rule stores."""
        return self
