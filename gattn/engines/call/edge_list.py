"""A plain edge_index, which engines take in place of a token graph; and features of either."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, TypeVarTuple

import torch
from torch import Tensor

from gattn.caching import cached_property, cached_tensor
from gattn.errors import ShapeError
from gattn.graph.ordering import refuse_numbers
from gattn.graph.rules.neighbourhoods import Neighbourhoods
from gattn.graph.token_graph import TokenGraph

Ts = TypeVarTuple("Ts")

_FEW_PAIRS = 1 << 12
_MOST_MADE = 4  # of one edge_index


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

    @cached_property
    def token_graph(self) -> TokenGraph | None:
        """The same edges as a token graph, if there are few pairs and no edge is doubled."""
        are_many = self.num_queries * self.num_keys > _FEW_PAIRS
        if are_many or self.query_offset or self.device.type != "cpu":
            return None
        sizes = {"num_queries": self.num_queries, "num_keys": self.num_keys}
        graph = TokenGraph.from_edge_index(self.edge_index, **sizes)
        return graph if graph.num_edges == self.num_edges else None


class _Known(NamedTuple):
    """What was made of an edge_index, and a copy of it, as memory may change unseen."""

    edge_index: weakref.ref[Tensor]
    copy: Tensor
    made: dict[Hashable, EdgeList]


_KNOWN: dict[int, _Known] = {}


def known_edge_list(
    edge_index: Tensor, make: Callable[[Tensor, *Ts], EdgeList], *options: *Ts
) -> EdgeList:
    """Make a list of edges of an edge_index, or give the one that was made of the same numbers.

    It lives as long as the edge_index. Only on a CPU: elsewhere, comparing numbers would stall.

    Parameters
    ----------
    edge_index : Tensor
        As it was given.
    make : callable
        Makes the list of a copy and `options`.
    """
    if edge_index.device.type != "cpu" or torch.compiler.is_compiling():
        return make(edge_index.as_subclass(Tensor), *options)
    place, known = id(edge_index), _KNOWN.get(id(edge_index))
    plain = edge_index.as_subclass(Tensor)
    is_known = known is not None and known.edge_index() is edge_index
    if known is None or not is_known or not _are_same(plain, known.copy):
        with torch.inference_mode(False):
            known = _Known(weakref.ref(edge_index, partial(_forget, place)), plain.clone(), {})
        _KNOWN[place] = known
    name = (make, *options)
    made = known.made.get(name)
    if made is None:
        if len(known.made) >= _MOST_MADE:
            known.made.clear()
        made = known.made[name] = make(known.copy, *options)
    return made


def _are_same(one: Tensor, other: Tensor) -> bool:
    return one.dtype == other.dtype and torch.equal(one, other)


def _forget(place: int, edge_index: weakref.ref[Tensor]) -> None:
    known = _KNOWN.get(place)
    if known is not None and known.edge_index is edge_index:
        _KNOWN.pop(place, None)


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
