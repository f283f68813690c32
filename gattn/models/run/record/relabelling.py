"""Gives the nodes of a recorded graph the positions of the tokens that their slots stand for."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from gattn.errors import CaptureError
from gattn.graph.rules.edges import Edges
from gattn.graph.token_graph import TokenGraph
from gattn.heads.head import AttentionGraph

_OF_EDGES = ("attention", "score", "contribution", "value_norm")
_OF_QUERIES = ("total_mass", "total_edges", "sink")


@dataclass(eq=False)
class Positions:
    """The tokens of the elements that one sequence was recorded in, one after another.

    The rows of an element were recorded as the queries after those of the elements before, its keys
    from the first of these on. What has a position after the last token is padding, and left out.

    Parameters
    ----------
    num_queries, num_keys : int
        How many tokens there are.
    is_bipartite : bool
        Whether the keys are other tokens than the queries.
    """

    num_queries: int
    num_keys: int
    is_bipartite: bool
    queries: list[Tensor] = field(default_factory=list)
    keys: list[Tensor] = field(default_factory=list)
    _known: dict[int, tuple[TokenGraph, TokenGraph, Tensor]] = field(default_factory=dict)

    def of(self, graph: AttentionGraph) -> AttentionGraph:
        """Return a recorded graph on the tokens."""
        rows = torch.cat(self.queries)
        found, order = self._of(graph.graph, rows)
        is_token = rows < self.num_queries
        fields: dict[str, Any] = {}
        for name in _OF_EDGES:
            values = getattr(graph, name)
            fields[name] = None if values is None else values[order.numpy()]
        for name in _OF_QUERIES:
            values = getattr(graph, name)
            if values is not None:
                known = torch.as_tensor(values, device="cpu")
                whole = torch.zeros(self.num_queries, dtype=known.dtype, device="cpu")
                whole[rows[is_token]] = known[is_token]
                fields[name] = whole.numpy()
        return replace(graph, graph=found, **fields)

    def slots(self, graph: TokenGraph) -> Tensor:
        """Return each edge's key among the keys of all elements, one after another."""
        key, query = graph.edge_index.cpu()
        stops = torch.tensor([len(own) for own in self.queries], device="cpu").cumsum(0)
        element = torch.searchsorted(stops, query, right=True)
        heights = torch.tensor([0, *stops[:-1].tolist()], device="cpu")
        widths = torch.tensor([0, *(len(own) for own in self.keys[:-1])], device="cpu").cumsum(0)
        key = key if self.is_bipartite else key - heights[element]
        slots: Tensor = widths[element] + key
        return slots

    def _of(self, graph: TokenGraph, rows: Tensor) -> tuple[TokenGraph, Tensor]:
        known = self._known.get(id(graph))
        if known is not None:
            return known[1], known[2]
        query, key = rows[graph.edge_index[1].cpu()], torch.cat(self.keys)[self.slots(graph)]
        kept = ((query < self.num_queries) & (key < self.num_keys)).nonzero()[:, 0]
        query, key = query[kept], key[kept]
        places = query * self.num_keys + key
        if len(places.unique()) < len(places):
            raise CaptureError(
                "Some queries attend to several slots of the same token, as where a model repeats "
                "its keys or pads by copies of them: an attention graph has one edge for each pair "
                "of tokens. A Cut works, and reaches all slots of a token."
            )
        order = kept[torch.argsort(places)]
        rule = Edges.from_pairs(query, key, self.num_queries)
        sizes = self.num_queries, self.num_keys
        found = TokenGraph(rule, *sizes, 0, self.is_bipartite)
        self._known[id(graph)] = graph, found, order
        return found, order
