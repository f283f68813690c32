"""Gradients of a metric at the attention of single edges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from gattn.engines import edges
from gattn.engines.call import AttentionCall
from gattn.engines.tensors.sparse import edge_products
from gattn.graph.token_graph import TokenGraph
from gattn.models.effects.gradients import LayerOutput, is_of_output
from gattn.models.read.on_graphs.seen_edges import SeenEdges
from gattn.models.read.reading import Reading
from gattn.normalizers.base import widened


@dataclass(eq=False)
class LayerEdges(LayerOutput):
    """A layer that lists its edges, or shows its attention but not its values.

    `scores`, `attention` and, in the end, `gradient`, the one at the attention, are (heads, edges)
    of `graph`, for all heads. `values` is the call where it has values.
    """

    keys: Tensor
    graph: TokenGraph
    scores: Tensor
    attention: Tensor
    values: AttentionCall | None

    @classmethod
    def read(cls, reading: Reading, heads: list[int]) -> Self:
        """Read a call."""
        call, graph = reading.attention, reading.graph
        if reading.lists_edges:
            blocks = list(edges.edge_blocks(call))
            scores, attention = (
                torch.cat([call.query.new_zeros(call.query.shape[1], 0), *some], dim=-1)
                for some in ([b.scores[0] for b in blocks], [b.attention[0] for b in blocks])
            )
        else:
            assert call.edge_features is not None
            key, query = graph.edge_index.to(call.edge_features.device)
            scores = call.edge_features[query, key].T
            attention = call.normalizer.on_edges(scores, query, graph.num_queries)
        slots = reading.queries.slots, reading.keys.slots
        values = call if is_of_output(reading) else None
        return cls(heads, *slots, graph, scores.detach(), attention.detach(), values)

    def take(self, gradient: Tensor, call: SeenEdges | None) -> Tensor:
        """Take the gradient at each edge from that of a call's output or attention."""
        if call is not None:
            return call.on_graph(gradient).T
        ends = self.graph.edge_index
        if self.values is None:
            key, query = (
                slots[one].to(gradient.device)
                for slots, one in zip((self.keys, self.queries), ends, strict=True)
            )
            return widened(gradient[0][:, query, key])
        given = self.values
        rows = widened(gradient[0, self.queries.to(gradient.device)]).transpose(0, 1)
        slopes = edge_products(rows, widened(given.value[0]), given.edges)
        if given.features_to_value is None:
            return slopes
        assert given.edge_features is not None
        query, features = ends[1].to(rows.device), given.edge_features.to(rows)
        added = [
            ((features @ matrix.to(rows)) * one[query]).sum(-1)
            for matrix, one in zip(given.features_to_value, rows, strict=True)
        ]
        return slopes + torch.stack(added)
