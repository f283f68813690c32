"""Attention over tensors, compared with torch and torch-geometric: both sides of each row.

torch-geometric's layers project inside. Except in `layer`, both sides start from the same queries,
keys and values, each in its own layout, and torch-geometric's side is only the layer's message
passing. Token graphs and edge lists are built beforehand.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import leaky_relu, scaled_dot_product_attention
from torch_geometric.nn import GATv2Conv, TransformerConv

from benchmarks.row import TOLERANCE, Side
from gattn import GraphAttention, Threshold, TokenGraph, TopK, attention_graphs, graph_attention

HEADS, DIM = 8, 64

# Inputs, the same ones for both sides


def tensors(heads: int, size: int, dim: int, device: str) -> list[Tensor]:
    """Draw queries, keys, values and the output's gradient, each (heads, size, dim)."""
    generator = torch.Generator().manual_seed(0)
    drawn = (torch.randn(heads, size, dim, generator=generator) for _ in range(4))
    return [x.to(device) for x in drawn]


def random_graph(size: int, degree: int) -> TokenGraph:
    """Draw a graph with `degree` edges per node on average, all different."""
    generator = torch.Generator().manual_seed(0)
    edges = size * degree
    pairs = torch.randint(0, size * size, (edges + edges // 20,), generator=generator).unique()
    pairs = pairs[torch.randperm(len(pairs), generator=generator)[:edges]]
    return TokenGraph.from_edge_index(torch.stack([pairs % size, pairs // size]), size)


def gatv2(vector: Tensor) -> Callable[..., Tensor]:
    """Write GATv2's score as a plain function of a pair."""
    return lambda q, k, pairs: (vector * leaky_relu(q + k, 0.2)).sum(-1)


# Both sides of each kind of row


def fused(side: str, size: int, device: str, *, causal: bool, backward: bool) -> Side:
    """Scaled dot product attention compared with torch's fused kernel."""
    q, k, v, cotangent = tensors(HEADS, size, DIM, device)
    if side == "peer":  # torch takes its fast kernel for a batch axis only
        q, k, v, cotangent = (x[None] for x in (q, k, v, cotangent))
    leaves = tuple(x.requires_grad_(backward) for x in (q, k, v))
    grad = cotangent if backward else None
    if side == "peer":
        attend = partial(scaled_dot_product_attention, is_causal=causal)
        return Side(lambda: attend(*leaves), leaves, grad, lambda x: x[0])
    graph = TokenGraph.causal(size) if causal else TokenGraph.complete(size)
    return Side(lambda: graph_attention(*leaves, graph), leaves, grad)


def attention(
    side: str,
    size: int,
    device: str,
    *,
    graph: Callable[[int], TokenGraph],
    heads: int = HEADS,
    dim: int = DIM,
    pair: bool = False,
    backward: bool = False,
    compiled: bool = False,
) -> Side:
    """Attention over a graph compared with torch-geometric's messages, without projections."""
    q, k, v, cotangent = tensors(heads, size, dim, device)
    vector = _convolution(True, heads, dim, device).att.detach()[0]
    if side == "peer":
        q, k, v, cotangent = (x.transpose(0, 1).contiguous() for x in (q, k, v, cotangent))
    inputs = (q, k, vector) if pair else (q, k, v)
    leaves = tuple(x.requires_grad_(backward) for x in inputs)
    grad = cotangent if backward else None
    edges = graph(size).to(device)
    if side == "peer":
        forward = _messages(pair, leaves, edges.edge_index.to(device), heads, dim)
        # Back to (heads, tokens, dim); the vector of GATv2 has no tokens.
        return Side(forward, leaves, grad, lambda x: x.transpose(0, 1) if x.dim() == 3 else x)
    if not pair:
        return Side(lambda: graph_attention(q, k, v, edges), leaves, grad)
    options: dict[str, Any] = {"compile": True} if compiled else {}
    weight = gatv2(vector)
    return Side(lambda: graph_attention(q, k, k, edges, weight=weight, **options), leaves, grad)


def _convolution(pair: bool, heads: int, dim: int, device: str) -> nn.Module:
    torch.manual_seed(0)
    kind = GATv2Conv if pair else TransformerConv
    options = {"add_self_loops": False} if pair else {"root_weight": False}
    return kind(heads * dim, dim, heads, **options).to(device)


def _messages(
    pair: bool, leaves: tuple[Tensor, ...], edge_index: Tensor, heads: int, dim: int
) -> Callable[[], Tensor]:
    """Return what torch-geometric's layer does after its projections."""
    layer = _convolution(pair, heads, dim, str(edge_index.device))
    if not pair:
        names = dict(zip(("query", "key", "value"), leaves, strict=True))
        return lambda: layer.propagate(edge_index, **names, edge_attr=None)
    query, key, vector = leaves
    del layer.att  # a parameter; the leaf takes its place
    layer.att = vector

    def run() -> Tensor:
        alpha = layer.edge_updater(edge_index, x=(key, query), edge_attr=None)
        return layer.propagate(edge_index, x=(key, query), alpha=alpha)

    return run


def layer(side: str, size: int, device: str, *, pair: bool) -> Side:
    """Whole layers with the same projections; gattn's also projects values and outputs."""
    theirs = _convolution(pair, HEADS, DIM, device)
    x = torch.randn(size, HEADS * DIM, generator=torch.Generator().manual_seed(0)).to(device)
    graph = TokenGraph.complete(size)
    if side == "peer":
        edge_index = graph.edge_index.to(device)
        return Side(lambda: theirs(x, edge_index))
    weight = gatv2(theirs.att.detach()[0]) if pair else None
    ours = GraphAttention(HEADS * DIM, DIM, HEADS, weight=weight, project_output=True).to(device)
    names = ("lin_r", "lin_l", "lin_l") if pair else ("lin_query", "lin_key", "lin_value")
    projections = (ours.project_query, ours.project_key, ours.project_value)
    with torch.no_grad():
        for projection, name in zip(projections, names, strict=True):
            projection.load_state_dict(getattr(theirs, name).state_dict())
        assert ours.project_output is not None
        nn.init.eye_(ours.project_output.weight)
        nn.init.zeros_(ours.project_output.bias)
    return Side(lambda: ours(x, graph))


GRAPH_HEADS, PEAKED = 12, 3.0
"""Queries are scaled so that attention is as peaked as a trained head's."""


def graphs(side: str, size: int, device: str, *, keep: Any) -> Side:
    """Attention graphs of causal heads compared with torch's fused attention, which keeps none."""
    q, k, v, _ = tensors(GRAPH_HEADS, size, DIM, device)
    q = q * PEAKED
    if side == "peer":
        batched = [x[None] for x in (q, k, v)]
        return Side(lambda: scaled_dot_product_attention(*batched, is_causal=True))
    graph = TokenGraph.causal(size)
    return Side(lambda: attention_graphs(q, k, graph, keep=keep))


def graphs_are_right(
    peer: Side, theirs: Any, gattn: Side, heads: Any, *, size: int, keep: Any
) -> dict[str, float]:
    """Compare some rows of some heads with the formula; count the kept edges."""
    q, k, _, _ = tensors(GRAPH_HEADS, size, DIM, "cpu")
    for head in (0, GRAPH_HEADS - 1):
        network = heads[head].graph
        for query in (0, 5, size // 2, size - 1):
            score = (k[head, : query + 1] @ (q[head, query] * PEAKED)) / DIM**0.5
            row = score.softmax(0)
            wanted = row.topk(min(keep.k, len(row))).values if isinstance(keep, TopK) else row
            if isinstance(keep, Threshold):
                wanted = row[row >= keep.t]
            here = slice(*network.pointer[query : query + 2].tolist())
            found = torch.from_numpy(heads[head].attention[here])
            expected = row[network.edge_index[0, here]]
            if len(found) != len(wanted) or not torch.allclose(found, expected, rtol=TOLERANCE):
                raise AssertionError(f"head {head}, query {query}: not the edges of the formula")
            if not math.isclose(float(found.sum()), float(wanted.sum()), abs_tol=TOLERANCE):
                raise AssertionError(f"head {head}, query {query}: not the largest edges")
    kept = sum(head.graph.num_edges for head in heads)
    return {"edges kept per query": kept / (size * GRAPH_HEADS)}
