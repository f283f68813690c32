"""Graph attention as functions: outputs, and attention graphs."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from gattn.engines import choose, choose_for_graphs, edges, named, tiles
from gattn.engines.base import AttentionCall, EdgeList, naming_shapes
from gattn.errors import ContractError, ShapeError
from gattn.graph import TokenGraph
from gattn.head import AttentionGraph
from gattn.keep import All, Keep, as_keep
from gattn.normalizers import Normalizer, Softmax
from gattn.store import KeptEdges
from gattn.weights.base import PairFunction, WeightFunction, as_weight_function
from gattn.weights.dot import ScaledDotProduct


def graph_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    graph: TokenGraph,
    *,
    weight: WeightFunction | PairFunction | None = None,
    normalizer: Normalizer | None = None,
    edge_features: Tensor | None = None,
    dropout: float = 0.0,
    engine: str | None = None,
    compile: bool = False,
) -> Tensor:
    r"""Attend over a token graph: :math:`o_i = \sum_{j \in N(i)} A_{ij} v_j`.

    With softmax, :math:`A_{ij} = e^{w(i,j)} / \sum_{k \in N(i)} e^{w(i,k)}`.

    Parameters
    ----------
    query : Tensor
        Shape (..., heads, queries, dim).
    key, value : Tensor
        Shape (..., key heads, keys, dim) and (..., key heads, keys, value dim); the number of
        heads is a multiple of the number of key heads (grouped queries).
    graph : TokenGraph
        Who may attend to whom.
    weight : WeightFunction or callable, optional
        What an edge scores; the scaled dot product by default.
    normalizer : Normalizer, optional
        How a neighbourhood's scores become attention; softmax by default.
    edge_features : Tensor, optional
        Shape (edges, features) in the graph's edge order, or (queries, keys, features).
    dropout : float
        The share of the attention dropped at random.
    engine : str, optional
        The engine to use, to compare: "fused", "tiles", "edges" or "message_passing". By default
        gattn chooses (`gattn.engines.explain` says how); all give the same numbers.
    compile : bool
        Whether `torch.compile` may compile the weight function. That takes a C++ compiler and some
        seconds, and pays for functions of pairs that have no dot form.

    Returns
    -------
    Tensor
        Shape (..., heads, queries, value dim). A query without edges gets zeros.

    Raises
    ------
    ShapeError
        Where tensors and graph do not fit each other.
    ContractError
        Where `weight` or `normalizer` is none, or does not keep its contract; where there is no
        such engine, or it cannot run this.
    """
    call, lead = attention_call(
        query, key, graph, weight, normalizer, value, edge_features, dropout, compile
    )
    with naming_shapes(call):
        chosen = choose(call) if engine is None else named(engine, call)
        output: Tensor = chosen.run(call)
    return output.reshape(*lead, *output.shape[1:])


def attention_call(
    query: Tensor,
    key: Tensor,
    graph: TokenGraph | EdgeList,
    weight: WeightFunction | PairFunction | None = None,
    normalizer: Normalizer | None = None,
    value: Tensor | None = None,
    edge_features: Tensor | None = None,
    dropout: float = 0.0,
    compile: bool = False,
) -> tuple[AttentionCall, torch.Size]:
    """Check what was given, flatten the leading dimensions, and say what they were."""
    if not isinstance(graph, (TokenGraph, EdgeList)):
        raise ShapeError(
            f"graph must be a TokenGraph, not {type(graph).__name__}; "
            "TokenGraph.from_edge_index and TokenGraph.from_mask build one."
        )
    if normalizer is not None and not isinstance(normalizer, Normalizer):
        raise ContractError(
            f"normalizer must be a Normalizer such as Softmax() or Entmax15(), not {normalizer!r}."
        )
    if not 0 <= dropout <= 1:
        raise ShapeError(f"dropout is a share from 0 to 1, not {dropout!r}.")
    tensors = {"query": query, "key": key} | ({} if value is None else {"value": value})
    if strange := [name for name, x in tensors.items() if not isinstance(x, Tensor)]:
        kinds = ", ".join(type(tensors[name]).__name__ for name in strange)
        raise ShapeError(f"{', '.join(strange)} must be torch tensors, not {kinds}.")
    shapes = ", ".join(f"{name} {tuple(x.shape)}" for name, x in tensors.items())
    expected = "expected (..., heads, tokens, dim)"
    if any(x.dim() < 3 for x in tensors.values()):
        raise ShapeError(f"{expected} for each tensor, got {shapes}.")
    if (
        len({x.device for x in tensors.values()}) > 1
        or len({x.dtype for x in tensors.values()}) > 1
    ):
        kinds = ", ".join(f"{name} {x.dtype} on {x.device}" for name, x in tensors.items())
        raise ShapeError(f"query, key and value must share dtype and device, got {kinds}.")
    if not query.is_floating_point():
        raise ShapeError(f"query, key and value must be floating point, got {query.dtype}.")
    if value is not None and value.shape[-3:-1] != key.shape[-3:-1]:
        raise ShapeError(f"key and value must have the same heads and tokens, got {shapes}.")
    heads, key_heads = query.shape[-3], key.shape[-3]
    if not key_heads or heads % key_heads:
        raise ShapeError(f"the query's heads must be a multiple of the key's, got {shapes}.")
    try:
        lead = torch.broadcast_shapes(*(x.shape[:-3] for x in tensors.values()))
    except RuntimeError as error:
        raise ShapeError(f"the leading dimensions must broadcast, got {shapes}.") from error
    batch = math.prod(lead)
    flat = [x.expand(*lead, *x.shape[-3:]).reshape(batch, *x.shape[-3:]) for x in tensors.values()]
    if heads != key_heads:
        flat[1:] = [x.repeat_interleave(heads // key_heads, dim=1) for x in flat[1:]]
    call = AttentionCall(
        flat[0],
        flat[1],
        graph,
        ScaledDotProduct() if weight is None else as_weight_function(weight),
        Softmax() if normalizer is None else normalizer,
        flat[2] if value is not None else None,
        edge_features,
        dropout,
        compile,
    )
    return call, lead


def attention_graphs(
    query: Tensor,
    key: Tensor,
    graph: TokenGraph,
    *,
    weight: WeightFunction | PairFunction | None = None,
    normalizer: Normalizer | None = None,
    edge_features: Tensor | None = None,
    keep: Keep = All(),  # noqa: B008
    scores: bool = False,
    tokens: Sequence[str] = (),
    query_tokens: Sequence[str] = (),
    engine: str | None = None,
    compile: bool = False,
) -> list[AttentionGraph]:
    """Compute the attention graph of each head, in memory of one block of rows plus what is kept.

    Parameters
    ----------
    query, key, graph, weight, normalizer, edge_features
        As in `graph_attention`.
    keep : Keep
        Which edges to keep; all by default.
    scores : bool
        Whether the graphs store the scores before normalising as well.
    tokens : sequence of str
        The tokens' texts (of the keys, where the graph is bipartite).
    query_tokens : sequence of str
        The queries' texts, where the graph is bipartite.
    engine : str, optional
        "tiles" or "edges", to compare; by default gattn chooses.
    compile : bool
        As in `graph_attention`.

    Returns
    -------
    list of AttentionGraph
        One graph a head; with leading dimensions, the heads of the first batch element, then of
        the next.

    Raises
    ------
    ShapeError
        Where tensors, tokens and graph do not fit each other.
    CaptureError
        Where the attention is NaN.
    ContractError
        Where `weight`, `normalizer` or `engine` is none.
    """
    keep = as_keep(keep)
    call, _ = attention_call(
        query, key, graph, weight, normalizer, None, edge_features, compile=compile
    )
    chosen = choose_for_graphs(call, engine)
    names = {
        "tokens": tuple(tokens),
        "query_tokens": tuple(query_tokens),
        "weight_function": repr(call.weight),
        "normalizer": repr(call.normalizer),
    }
    batch, heads = call.query.shape[:2]
    stores = [KeptEdges(graph, range(heads), keep, scores, query.dtype) for _ in range(batch)]
    with torch.no_grad(), naming_shapes(call):
        if chosen is edges:
            for some, score, attention in edges.edge_blocks(call):
                for store, one, its_score in zip(stores, attention, score, strict=True):
                    store.add_edges(some, one, its_score)
        else:
            for rows, columns, allowed, score, attention in tiles.row_blocks(call):
                for store, one, its_score in zip(stores, attention, score, strict=True):
                    store.add_rows(rows, columns, allowed, one, its_score)
    has_sink = call.normalizer.has_sink
    return [head for store in stores for head in store.graphs(has_sink=has_sink, **names)]
