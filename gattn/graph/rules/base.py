"""What every rule answers: who may attend to whom, for any block of pairs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gattn.graph.rules.keys import Keys, Span, run_of

if TYPE_CHECKING:
    from gattn.graph.rules.edges import Edges

BLOCK_PAIRS = 1 << 22
"""How many pairs of positions are looked at at once."""


class Rule(ABC):
    """Whether query q may attend to key k, for any pair of positions."""

    @abstractmethod
    def allowed(self, query: Tensor, key: Tensor) -> Tensor:
        """Say for positions that broadcast against each other whether the edge exists.

        Parameters
        ----------
        query, key : Tensor
            Integer positions.

        Returns
        -------
        Tensor
            Booleans of the broadcast shape, in memory of their own.
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
            These keys and maybe others: a slice where they are one run, else int64, sorted,
            without duplicates, on the rule's device (the CPU for a rule without one).
        """
        keys = self.interval(torch.tensor([first, last]))
        if keys is None:
            return slice(0, num_keys)
        return run_of(int(keys[0][0]), int(keys[1][1]), num_keys)

    def interval(self, query: Tensor) -> Span | None:
        """Give each query's keys as [low, high), or None where they are no interval.

        From one position to the next each end stays or moves on by one, so that the keys of a run
        of queries are an interval too.
        """
        return None

    def count(self, query: Tensor, low: Tensor, high: Tensor) -> Tensor | None:
        """Count each query's keys in [low, high) without a walk over all pairs, or give None.

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
        """List the edges where that takes no walk over all pairs, else give None."""
        return None

    @property
    def terms(self) -> int:
        """How many rules, other than lists of edges, are joined here."""
        return 1

    @property
    def device(self) -> torch.device | None:
        """The device that holds the rule's edges; None for a rule that follows its queries."""
        return None

    def to(self, device: torch.device) -> Rule:
        """Move what the rule stores."""
        return self
