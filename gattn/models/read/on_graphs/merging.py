"""Puts the edges of a softmax on a token graph, once for layers that attend over the same edges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gattn.caching import cached_property
from gattn.graph.rules.edges import Edges
from gattn.graph.token_graph import TokenGraph
from gattn.largest import flat_indices
from gattn.normalizers.base import neighbourhood_maxima, neighbourhood_sums, on_each_edge

if TYPE_CHECKING:
    from gattn.models.read.on_graphs.seen_edges import Ends

_MOST_KNOWN = 4
_known: list[Merged] = []


@dataclass(frozen=True, eq=False)
class Merged:
    """A model's edges on a token graph, where parallel edges are one.

    Parameters
    ----------
    graph : TokenGraph
        The edges, without duplicates.
    places : Tensor
        Which edge of the graph each edge of the model is, shape (E,).
    """

    graph: TokenGraph
    places: Tensor

    @cached_property
    def order(self) -> Tensor:
        """One edge of the model for each edge of the graph."""
        order = torch.empty(self.graph.num_edges, dtype=torch.long, device="cpu")
        order[self.places] = torch.arange(len(self.places), device="cpu")
        return order

    @cached_property
    def parallel(self) -> Tensor:
        """The edges of the model that are parallel to others, rising."""
        count = torch.bincount(self.places, minlength=self.graph.num_edges)
        return flat_indices(count.index_select(0, self.places) > 1)

    @cached_property
    def _groups(self) -> tuple[Tensor, Tensor]:
        """The edges of the graph that these become, and the number of each one's among them."""
        groups, number = torch.unique(self.places[self.parallel], return_inverse=True)
        return groups, number

    @property
    def has_parallel_edges(self) -> bool:
        """Whether several edges run from one node to another."""
        return self.graph.num_edges < len(self.places)

    def summed(self, numbers: Tensor) -> Tensor:
        """Add up the numbers of parallel edges: (E, heads) -> (edges of the graph, heads)."""
        found = numbers.index_select(0, self.order)
        if not self.has_parallel_edges:
            return found
        groups, number = self._groups
        zeros = numbers.new_zeros(len(groups), numbers.shape[1])
        sums = zeros.index_add(0, number, numbers.index_select(0, self.parallel))
        return found.index_copy(0, groups, sums)

    def log_summed(self, scores: Tensor) -> Tensor:
        """Add up the powers of parallel edges' scores: (E, heads) -> (edges, heads)."""
        found = scores.index_select(0, self.order)
        if not self.has_parallel_edges:
            return found
        groups, number = self._groups
        some = scores.index_select(0, self.parallel).T
        top = neighbourhood_maxima(some.detach(), number, len(groups))
        top = top.masked_fill(top == -torch.inf, 0.0)
        powers = torch.exp(some - on_each_edge(top, number))
        sums = (neighbourhood_sums(powers, number, len(groups)).log() + top).T
        return found.index_copy(0, groups, sums)

    def fits(self, ends: Ends, query: Tensor, key: Tensor) -> bool:
        """Return whether these are the edges from keys to queries."""
        graph = self.graph
        known = graph.num_queries, graph.num_keys, graph.is_bipartite
        if known != (ends.num_queries, ends.num_keys, ends.is_bipartite):
            return False
        if self.places.shape != query.shape:
            return False
        both = zip(graph.edge_index, (key, query), strict=True)
        return all(torch.equal(own.index_select(0, self.places), given) for own, given in both)


def merged(ends: Ends) -> Merged:
    """Put edges on a token graph; of the last few graphs it is known already."""
    query, key = ends.query.cpu().long(), ends.key.cpu().long()
    found = next((one for one in list(_known) if one.fits(ends, query, key)), None)
    if found is None:
        rule, places = Edges.numbered(query, key, ends.num_queries)
        graph = TokenGraph(rule, ends.num_queries, ends.num_keys, 0, ends.is_bipartite)
        found = Merged(graph, places)
        _known[:] = [found, *_known[: _MOST_KNOWN - 1]]
    return found


def forget() -> None:
    """Let go of all graphs, once no context is open."""
    _known.clear()
