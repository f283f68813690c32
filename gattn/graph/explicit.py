"""Token graphs from edges, masks, features and other graphs: constructors of `TokenGraph`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, SupportsIndex

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from gattn.checks import whole
from gattn.errors import GraphError
from gattn.graph.arrays import as_tensor, check_inside, whole_numbers
from gattn.graph.rules.base import BLOCK_PAIRS
from gattn.graph.rules.combined import Disjoint
from gattn.graph.rules.edges import Edges
from gattn.graph.structured import positive

if TYPE_CHECKING:
    from gattn.graph.token_graph import TokenGraph


def from_mask(
    cls: type[TokenGraph], mask: Tensor | ArrayLike, *, is_bipartite: bool = False
) -> TokenGraph:
    """Edges where ``mask[query, key]`` is True.

    The masks of torch's ``MultiheadAttention`` say the opposite: pass ``~attn_mask``.
    """
    mask = as_tensor(mask, "mask")
    if mask.dim() != 2 or mask.dtype != torch.bool:
        raise GraphError(
            f"mask must be a boolean (queries, keys), True where an edge is, not {mask.dtype} "
            f"{tuple(mask.shape)}; for an additive mask pass `mask == 0`."
        )
    query, key = mask.nonzero(as_tuple=True)
    rule = Edges.from_pairs(query, key, mask.shape[0])
    return cls(rule, mask.shape[0], mask.shape[1], is_bipartite=is_bipartite)


def from_edge_index(
    cls: type[TokenGraph],
    edge_index: Tensor | ArrayLike,
    num_tokens: int | None = None,
    *,
    num_queries: int | None = None,
    num_keys: int | None = None,
) -> TokenGraph:
    """Edges from torch-geometric's ``edge_index = [key; query]``, sorted by query, then key.

    A token graph has an order of its own, and each edge once: duplicates merge. Numbers of the
    given edges do not follow that order. ``order = graph.permutation(edge_index)`` puts them into
    it, as ``numbers[order]``; `arrange` does so at once, and `AttentionGraph.from_edges` keeps each
    number with its edge. A graph whose edges were given in another order refuses numbers until you
    pass ``graph.sorted()``.

    Parameters
    ----------
    edge_index : Tensor, array or lists (2, edges)
        The source of each edge, the key, and its target, the query.
    num_tokens : int, optional
        How many tokens there are.
    num_queries, num_keys : int, optional
        In place of `num_tokens` in cross-attention.

    Raises
    ------
    GraphError
        If the edges are not whole numbers (2, edges), name tokens that do not exist, or it is not
        said how many there are.

    Examples
    --------
    >>> edges = torch.tensor([[2, 0, 1], [2, 1, 2]])
    >>> graph = TokenGraph.from_edge_index(edges, 3)
    >>> graph.edge_index.tolist()
    [[0, 1, 2], [1, 2, 2]]
    >>> torch.equal(edges[:, graph.permutation(edges)], graph.edge_index)
    True
    """
    edge_index = whole_numbers(edge_index, "edge_index")
    if edge_index.dim() != 2 or edge_index.shape[0] != 2:
        transposed = edge_index.dim() == 2 and edge_index.shape[1] == 2
        raise GraphError(
            "edge_index must have shape (2, edges), rows key and query, not "
            f"{tuple(edge_index.shape)}{': transpose it' if transposed else ''}."
        )
    is_bipartite = num_tokens is None
    if num_tokens is not None:
        if num_queries is not None or num_keys is not None:
            raise GraphError(
                f"num_tokens={num_tokens} is the number of both queries and keys. Leave it out to "
                "give num_queries and num_keys."
            )
        num_queries = num_keys = num_tokens
    if num_queries is None or num_keys is None:
        raise GraphError("Give num_tokens, or both num_queries and num_keys.")
    num_queries = whole("num_queries", num_queries, 0, GraphError)
    num_keys = whole("num_keys", num_keys, 0, GraphError)
    check_inside(edge_index[0], num_keys, "the keys edge_index[0]")
    check_inside(edge_index[1], num_queries, "the queries edge_index[1]")
    rule = Edges.from_pairs(edge_index[1], edge_index[0], num_queries)
    steps = edge_index.diff()
    rises = (steps[1] > 0) | ((steps[1] == 0) & (steps[0] > 0))  # no product, which overflows
    is_reordered = not bool(rises.all())
    return cls(rule, num_queries, num_keys, 0, is_bipartite, is_reordered)


def from_edges(
    cls: type[TokenGraph],
    edges: Iterable[tuple[int | str, int | str]],
    tokens: int | Sequence[str],
) -> TokenGraph:
    """Edges from pairs (key, query), each a position or a token's text if it occurs once.

    Parameters
    ----------
    edges : iterable of pairs
        The way the information runs: ``("dog", "chased")`` lets "chased" read "dog".
    tokens : sequence of str, or int
        The tokens' texts, or how many there are.
    """
    if isinstance(tokens, SupportsIndex):
        words, size = list[str](), whole("tokens", tokens, 0, GraphError)
    else:
        words = list(tokens)
        size = len(words)
    places: dict[str, list[int]] = {}
    for place, word in enumerate(words):
        places.setdefault(word, []).append(place)
    pairs = [(_position(key, places), _position(query, places)) for key, query in edges]
    return cls.from_edge_index(whole_numbers(pairs, "edges").reshape(-1, 2).T, size)


def _position(token: int | str, places: dict[str, list[int]]) -> int:
    if not isinstance(token, str):
        return token
    found = places.get(token, [])
    if len(found) != 1:
        raise GraphError(
            f"The token {token!r} occurs {len(found)} times among the {len(places)} different "
            "tokens; name the end of an edge by its position instead."
        )
    return found[0]


def nearest(
    cls: type[TokenGraph], features: Tensor | ArrayLike, k: int, *, causal: bool = False
) -> TokenGraph:
    """Each token attends to the `k` tokens nearest to it in Euclidean distance, itself first.

    Parameters
    ----------
    features : Tensor or array
        Shape (tokens, dim).
    k : int
        Neighbours per token, itself included; fewer where fewer are allowed.
    causal : bool
        Whether a token may choose only among itself and those before it.
    """
    k = positive("k", k)
    features = as_tensor(features, "features")
    if features.dim() != 2 or not bool(torch.isfinite(features).all()):
        raise GraphError(f"features must be finite and (tokens, dim), not {tuple(features.shape)}.")
    n = len(features)
    positions = torch.arange(n, device=features.device)
    rows, keys = [positions[:0]], [positions[:0]]
    for block in positions.split(max(1, BLOCK_PAIRS // max(n, 1))):
        distance = torch.cdist(features[block], features)
        distance[torch.arange(len(block), device="cpu"), block] = -1.0
        if causal:
            distance = distance.masked_fill(positions > block[:, None], torch.inf)
        near, index = distance.topk(min(k, n), largest=False)
        row, column = torch.isfinite(near).nonzero(as_tuple=True)
        rows.append(block[row])
        keys.append(index[row, column])
    return cls(Edges.from_pairs(torch.cat(rows), torch.cat(keys), n), n, n)


def disjoint_union(cls: type[TokenGraph], graphs: Sequence[TokenGraph]) -> TokenGraph:
    """Graphs side by side in one, as torch-geometric batches them."""
    if any(graph.query_offset for graph in graphs):
        raise GraphError("Graphs with a query_offset cannot be joined: their positions differ.")
    if len({graph.is_bipartite for graph in graphs}) > 1:
        raise GraphError("Bipartite graphs cannot be joined with others.")
    *query_starts, queries = accumulate((graph.num_queries for graph in graphs), initial=0)
    *key_starts, keys = accumulate((graph.num_keys for graph in graphs), initial=0)
    rule = Disjoint(tuple(graph.rule for graph in graphs), tuple(query_starts), tuple(key_starts))
    is_bipartite = bool(graphs) and graphs[0].is_bipartite
    return cls(rule, queries, keys, 0, is_bipartite, any(graph.is_reordered for graph in graphs))
