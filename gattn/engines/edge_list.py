"""A plain edge_index, which engines take in place of a token graph; and features of either."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gattn.caching import cached_tensor
from gattn.errors import ShapeError
from gattn.graph.ordering import refuse_numbers
from gattn.graph.rules.neighbourhoods import Neighbourhoods
from gattn.graph.token_graph import TokenGraph


@dataclass(frozen=True)
class EdgeList:
    """Edges ``[key; query]`` in the caller's own order, duplicates and all.

    `is_bipartite` says whether queries and keys are different tokens.
    """

    edge_index: Tensor
    num_queries: int
    num_keys: int
    query_offset: int = 0
    is_bipartite: bool = False

    def __post_init__(self) -> None:
        index = self.edge_index
        if index.dim() != 2 or index.shape[0] != 2 or index.dtype != torch.long:
            raise ShapeError(
                "edge_index must hold int64 numbers of shape (2, edges), rows key and query, not "
                f"{index.dtype} {tuple(index.shape)}."
            )
        if index.device.type != "cpu":  # Reading the values would stall a GPU.
            return
        sides = (("keys", index[0], self.num_keys), ("queries", index[1], self.num_queries))
        for row, (side, ends, size) in enumerate(sides):
            if len(ends) and (int(ends.min()) < 0 or int(ends.max()) >= size):
                raise ShapeError(
                    f"The {side} edge_index[{row}] must lie in 0 .. {size - 1}; they run from "
                    f"{int(ends.min())} to {int(ends.max())}."
                )

    @property
    def num_edges(self) -> int:
        """How many edges there are."""
        return self.edge_index.shape[1]

    @property
    def device(self) -> torch.device:
        """Where the edges are."""
        return self.edge_index.device

    @cached_tensor
    def neighbourhoods(self) -> Neighbourhoods:
        """The edges sorted by query; `order` gives their places in `edge_index`."""
        key, query = self.edge_index
        return Neighbourhoods.from_pairs(query, key, self.num_queries, self.num_keys)


def check_features(features: Tensor, graph: TokenGraph | EdgeList) -> None:
    """Refuse edge features that are neither (edges, F) in the graph's order nor (Q, K, F)."""
    expected: tuple[int, ...] = (graph.num_queries, graph.num_keys)
    if features.dim() == 2:
        expected = (graph.num_edges,)
        if isinstance(graph, TokenGraph):
            refuse_numbers(
                graph,
                "features",
                "If they follow the edges as given, pass graph.sorted() and "
                "graph.arrange(edge_index, edge_features); a GraphAttention also takes the "
                "edge_index itself.",
            )
    if tuple(features.shape[:-1]) != expected:
        raise ShapeError(
            f"edge_features must be (edges, features) = ({graph.num_edges}, F) or (queries, "
            f"keys, features) = ({graph.num_queries}, {graph.num_keys}, F), not "
            f"{tuple(features.shape)}."
        )
