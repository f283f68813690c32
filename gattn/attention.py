"""Graph attention as functions: outputs and attention graphs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gattn.engines import edges, tiles
from gattn.engines.call import AttentionCall, attention_call, naming_shapes
from gattn.engines.choice import choose, choose_for_graphs, named
from gattn.engines.watching import watched
from gattn.errors import CaptureError
from gattn.graph.listing import check_edges
from gattn.graph.token_graph import TokenGraph
from gattn.heads.head import AttentionGraph
from gattn.heads.store.emitted import store_emitted
from gattn.heads.store.kept_edges import KeptEdges
from gattn.keep import All, Keep, as_keep
from gattn.normalizers import Normalizer
from gattn.weights.base import PairFunction, WeightFunction

_INDEX_BYTES = 16  # of an edge: its key and its query


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
        The engine to use, for comparisons: "fused", "tiles", "edges", "flex" or
        "message_passing". By default gattn chooses (`gattn.engines.explain` says how); all give
        the same numbers.
    compile : bool
        Whether `torch.compile` may compile the weight function. That needs a C++ compiler and a few
        seconds, and pays off for functions of pairs that have no dot form.

    Returns
    -------
    Tensor
        Shape (..., heads, queries, value dim). A query without edges gets zeros. A score of -inf
        means no edge; a query that reads NaN, or a score of NaN or +inf, gets NaN.

    Raises
    ------
    ShapeError
        If tensors and graph do not fit each other.
    ContractError
        If `weight` or `normalizer` is not one or breaks its contract, or if there is no such
        engine or it cannot run this call.
    """
    call, lead = attention_call(
        query, key, graph, weight, normalizer, value, edge_features, dropout, compile
    )

    def run(some: AttentionCall) -> Tensor:
        with naming_shapes(some):
            chosen = choose(some) if engine is None or some is not call else named(engine, some)
            output: Tensor = chosen.run(some)
        return output

    output = watched(None, call, run)
    return output if len(lead) == 1 else output.reshape(*lead, *output.shape[1:])


def attention_graphs(
    query: Tensor,
    key: Tensor,
    graph: TokenGraph,
    *,
    weight: WeightFunction | PairFunction | None = None,
    normalizer: Normalizer | None = None,
    edge_features: Tensor | None = None,
    keep: Keep | None = None,
    scores: bool = False,
    tokens: Sequence[str] = (),
    query_tokens: Sequence[str] = (),
    engine: str | None = None,
    compile: bool = False,
) -> list[AttentionGraph]:
    """Compute each head's attention graph, in memory for a block of rows plus the edges kept.

    Parameters
    ----------
    query, key, graph, weight, normalizer, edge_features
        As in `graph_attention`.
    keep : Keep
        Which edges to keep; by default all, as long as they take less than 1 GiB.
    scores : bool
        Whether the graphs also store the scores before normalizing.
    tokens : sequence of str
        The tokens' texts (those of the keys if the graph is bipartite).
    query_tokens : sequence of str
        The queries' texts if the graph is bipartite.
    engine : str, optional
        "tiles" or "edges", for comparisons; by default gattn chooses, on a GPU also kernels that
        write no other edges than those kept.
    compile : bool
        As in `graph_attention`.

    Returns
    -------
    list of AttentionGraph
        One graph per head; with leading dimensions, the heads of the first batch element, then of
        the next.

    Raises
    ------
    ShapeError
        If tensors, tokens and graph do not fit each other.
    CaptureError
        If the attention is NaN, or all edges, kept by default, take 1 GiB or more.
    ContractError
        If `weight`, `normalizer` or `engine` is not one.
    """
    is_default, keep = keep is None, All() if keep is None else as_keep(keep)
    call, _ = attention_call(
        query, key, graph, weight, normalizer, None, edge_features, compile=compile
    )
    batch, heads = call.query.shape[:2]
    if is_default:
        size = _INDEX_BYTES + 4 * batch * heads * (1 + scores)
        instead = "pass keep=Threshold(0.01) or keep=TopK(8)"
        what = f"Keeping all edges of {batch * heads} heads"
        check_edges(graph, size, what, instead=instead, error=CaptureError)
    stores = [KeptEdges(range(heads), keep, scores, query.dtype) for _ in range(batch)]
    for store in stores:
        store.begin(graph)
    with torch.no_grad(), naming_shapes(call):
        _store(call, stores, scores, engine)
    names = {
        "tokens": tuple(tokens),
        "query_tokens": tuple(query_tokens),
        "weight_function": repr(call.weight),
        "normalizer": repr(call.normalizer),
    }
    has_sink = call.normalizer.has_sink
    return [head for store in stores for head in store.graphs(has_sink=has_sink, **names)]


def _store(call: AttentionCall, stores: list[KeptEdges], scores: bool, engine: str | None) -> None:
    if engine is None and store_emitted(call, stores, scores=scores):
        return
    if choose_for_graphs(call, engine) is edges:
        _store_edges(call, stores)
    else:
        _store_rows(call, stores, scores)


def _store_edges(call: AttentionCall, stores: list[KeptEdges]) -> None:
    for some, score, attention in edges.edge_blocks(call):
        for store, one, its_score in zip(stores, attention, score, strict=True):
            store.add_edges(some, one, its_score)


def _store_rows(call: AttentionCall, stores: list[KeptEdges], scores: bool) -> None:
    for block in tiles.row_blocks(call, scores=scores):
        for n, store in enumerate(stores):
            its_score = None if block.scores is None else block.scores[n]
            place = block.rows, block.columns, block.allowed
            store.add_rows(*place, block.attention[n], its_score)
