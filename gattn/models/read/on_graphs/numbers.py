"""Says which nodes of the data the nodes are that a layer of a graph model is given."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gattn.models.read.on_graphs.seen_edges import Ends


@dataclass(frozen=True, eq=False)
class NodeNumbers:
    """The numbers that the data gives to the nodes of one call of attention over edges.

    Parameters
    ----------
    keys, queries : Tensor (nodes,), optional
        The number of each node; None where they are numbered as they come.
    num_keys, num_queries : int
        How many nodes the data has, and those that the model adds to them.
    is_known : bool
        Whether this was proved.
    orders : int
        How many times values had decided before on integers or branches.
    """

    keys: Tensor | None = None
    queries: Tensor | None = None
    num_keys: int = 0
    num_queries: int = 0
    is_known: bool = True
    orders: int = 0

    def of(self, ends: Ends) -> Ends:
        """Return a call's edges between the nodes of the data."""
        found = ends
        if self.keys is not None:
            key = _numbered(self.keys, ends.key)
            found = replace(found, key=key, num_keys=self.num_keys)
        if self.queries is not None:
            query = _numbered(self.queries, ends.query)
            found = replace(found, query=query, num_queries=self.num_queries)
        return found

    def are_those_of(self, other: NodeNumbers) -> bool:
        """Return whether another call's nodes have the same numbers."""
        sides = (self.keys, other.keys), (self.queries, other.queries)
        return all(one is two or _are_equal(one, two) for one, two in sides)


AS_THEY_COME = NodeNumbers()
UNKNOWN = NodeNumbers(is_known=False)


def _are_equal(one: Tensor | None, other: Tensor | None) -> bool:
    return one is not None and other is not None and torch.equal(one, other)


def _numbered(numbers: Tensor, index: Tensor) -> Tensor:
    return numbers.to(index.device).index_select(0, index.to(torch.long))
