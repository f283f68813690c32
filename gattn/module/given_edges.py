"""What a layer is given as its graph: a token graph, an edge_index or a sparse adjacency."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch_geometric.utils import add_self_loops, remove_self_loops, to_edge_index
from torch_geometric.utils.sparse import set_sparse_value

from gattn.checks import finite
from gattn.engines.call import EdgeList, check_features, known_edge_list
from gattn.errors import ContractError, ShapeError
from gattn.graph.rules.simple import Window
from gattn.graph.token_graph import TokenGraph

Fill: TypeAlias = float | Tensor | str
"""The features of self-loops that are added: numbers, or how a node's in-edges give them."""

_REDUCE = "add", "sum", "mean", "min", "max", "mul"
_WHOLE = torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64
_SPARSE = torch.sparse_coo, torch.sparse_csr, torch.sparse_csc


def as_fill(fill_value: Fill) -> Fill:
    """Check what the features of added self-loops are."""
    if not isinstance(fill_value, str):
        return finite("fill_value", fill_value)
    if fill_value in _REDUCE:
        return fill_value
    raise ContractError(
        f"fill_value must be a number, a tensor or one of {', '.join(_REDUCE)}, not {fill_value!r}."
    )


class Nodes(NamedTuple):
    """How many nodes are sources and targets, and whether these are different nodes."""

    sources: int
    targets: int
    are_apart: bool = False


@dataclass(frozen=True)
class GivenEdges:
    """A layer's edges as engines take them, and as they were given.

    Parameters
    ----------
    graph : TokenGraph or EdgeList
        Who may attend to whom, self-loops included.
    features : Tensor, optional
        The edges' features, (edges, F) in the graph's order or (queries, keys, F).
    given : Tensor, optional
        The edge_index, or the sparse adjacency, that `graph` was made of, if it was not made
        by adding self-loops to an edge_index alone.
    """

    graph: TokenGraph | EdgeList
    features: Tensor | None
    given: Tensor | None = None

    def with_weights(self, alpha: Tensor) -> tuple[Tensor, Tensor]:
        """Return the edges and their attention (..., edges, heads), as torch-geometric does."""
        if isinstance(self.graph, TokenGraph):
            return self.graph.edge_index.to(alpha.device), alpha
        if self.given is None:
            return self.graph.edge_index.clone(), alpha
        if self.given.layout in _SPARSE and alpha.dim() == 2:
            return set_sparse_value(self.given, alpha), alpha
        return self.given, alpha

    def as_token_graph(self) -> tuple[TokenGraph, Tensor | None]:
        """Make a token graph, with the features in its own order.

        Raises
        ------
        ShapeError
            If an edge is doubled: a token graph has each edge once.
        """
        edges, features = self.graph, self.features
        if isinstance(edges, TokenGraph):
            return edges, features
        sizes = {"num_queries": edges.num_queries, "num_keys": edges.num_keys}
        graph = TokenGraph.from_edge_index(edges.edge_index, **sizes)
        graph = replace(graph, is_bipartite=edges.is_bipartite)
        if graph.num_edges != edges.num_edges:
            raise ShapeError(
                f"Of the {edges.num_edges} edges, {edges.num_edges - graph.num_edges} occur again, "
                "and an attention graph has each edge once. Merge them, with "
                "torch_geometric.utils.coalesce, or call the layer with "
                "return_attention_weights=True."
            )
        if features is not None and features.dim() == 2:
            features = graph.arrange(edges.edge_index, features)
        return graph.sorted(), features


def given_edges(
    edge_index: TokenGraph | Tensor,
    edge_attr: Tensor | None,
    nodes: Nodes,
    fill_value: Fill | None = None,
) -> GivenEdges:
    """Read the graph and the edge features that a layer is given.

    Parameters
    ----------
    edge_index : TokenGraph or Tensor
        A token graph, an edge_index, or a sparse adjacency with a row for each query.
    edge_attr : Tensor, optional
        Features (edges, F), (edges,) or (queries, keys, F).
    nodes : Nodes
        The nodes that edges run between.
    fill_value : float, Tensor or str, optional
        What self-loops have as features, if the nodes' own are to be replaced by added ones.
    """
    if edge_attr is not None and not isinstance(edge_attr, Tensor):
        raise ShapeError(f"edge_attr must be a tensor, not {type(edge_attr).__name__}.")
    if edge_attr is not None and edge_attr.dim() == 1:
        edge_attr = edge_attr[:, None]
    if isinstance(edge_index, TokenGraph):
        return _from_token_graph(edge_index, edge_attr, fill_value)
    if not isinstance(edge_index, Tensor) or edge_index.layout not in (torch.strided, *_SPARSE):
        raise _not_a_graph(edge_index)
    if edge_index.layout != torch.strided:
        return _from_adjacency(edge_index, edge_attr, nodes, fill_value)
    if fill_value is None:
        return GivenEdges(known_edge_list(edge_index, _edge_list, nodes), edge_attr, edge_index)
    if edge_attr is None:
        return GivenEdges(known_edge_list(edge_index, _looped_edge_list, nodes), None)
    edges = _edge_list(edge_index, nodes)
    per_edge = edge_attr.dim() == 2
    check_features(edge_attr, edges)
    given, own = _with_self_loops(edge_index, edge_attr if per_edge else None, nodes, fill_value)
    return GivenEdges(_edge_list(given, nodes), own if per_edge else edge_attr, given)


def _not_a_graph(given: Any) -> ShapeError:
    kind = type(given).__name__
    hint = ""
    if kind == "SparseTensor":
        hint = " Pass adj_t.to_torch_sparse_csr_tensor() instead."
    return ShapeError(
        "The graph must be a TokenGraph, an edge_index of shape (2, edges) or a torch.sparse "
        f"adjacency (targets, sources), not {kind}.{hint}"
    )


def _edge_list(edge_index: Tensor, nodes: Nodes) -> EdgeList:
    plain = edge_index.as_subclass(Tensor)
    if plain.dtype in _WHOLE:
        plain = plain.long()
    return EdgeList(plain, nodes.targets, nodes.sources, is_bipartite=nodes.are_apart)


def _looped_edge_list(edge_index: Tensor, nodes: Nodes) -> EdgeList:
    _edge_list(edge_index, nodes)  # checks them as they were given
    return _edge_list(_with_self_loops(edge_index, None, nodes, 1.0)[0], nodes)


def _with_self_loops(
    edges: Tensor, features: Tensor | None, nodes: Nodes, fill_value: Fill
) -> tuple[Tensor, Tensor | None]:
    """Replace the self-loops of all nodes that are sources and targets, as GATConv does."""
    edges, features = remove_self_loops(edges, features)
    # Their means of features know as many targets as nodes.
    fewer, more = sorted((nodes.sources, nodes.targets))
    most = fewer if features is None else more
    found, filled = add_self_loops(edges, features, fill_value=fill_value, num_nodes=most)
    if most == fewer:
        return found, filled
    assert filled is not None
    count = edges.shape[1] + fewer
    return found[:, :count], filled[:count]


def _from_token_graph(
    graph: TokenGraph, features: Tensor | None, fill_value: Fill | None
) -> GivenEdges:
    if fill_value is None:
        return GivenEdges(graph, features)
    if features is not None and features.dim() == 2:
        raise ShapeError(
            "A TokenGraph sorts its edges, self-loops that the layer adds among them, so it is "
            "unclear where edge_attr of shape (edges, F) belongs. Pass an edge_index, features "
            "(queries, keys, F), or a graph with self-loops to a layer with add_self_loops=False."
        )
    return GivenEdges(graph | replace(graph, rule=Window(0, 0), is_reordered=False), features)


def _from_adjacency(
    adjacency: Tensor, features: Tensor | None, nodes: Nodes, fill_value: Fill | None
) -> GivenEdges:
    keys, queries, _ = nodes
    if tuple(adjacency.shape[:2]) != (queries, keys):
        raise ShapeError(
            f"A sparse adjacency must have a row for each of the {queries} targets and a column "
            f"for each of the {keys} sources, as data.adj_t has, not {tuple(adjacency.shape)}."
        )
    if adjacency.layout == torch.sparse_coo:
        adjacency = adjacency.coalesce()
    if fill_value is not None:
        if features is not None or adjacency.dim() > 2:
            raise ShapeError(
                "Edge features cannot follow a sparse adjacency to which the layer adds "
                "self-loops; pass an edge_index and edge_attr."
            )
        if adjacency.layout == torch.sparse_csc:
            adjacency = adjacency.to_sparse_csr()
        adjacency, _ = _with_self_loops(adjacency, None, nodes, 1.0)
    (query, key), values = to_edge_index(adjacency)
    if features is None and values.dim() > 1:
        features = values
    return GivenEdges(_edge_list(torch.stack([key, query]), nodes), features, adjacency)
