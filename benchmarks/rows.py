"""What is measured: attention over tensors beside torch and torch-geometric.

torch-geometric's layers project inside. Except in the rows called `layer`, both sides start from
the same queries, keys and values, each in its own layout, and torch-geometric's side is the layer's
message passing alone. Token graphs and edge lists are built beforehand.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import leaky_relu, scaled_dot_product_attention
from torch_geometric.nn import GATv2Conv, TransformerConv

from benchmarks import analyses, capture, pages
from benchmarks.measure import TOLERANCE, Row, Side
from gattn import GraphAttention, Threshold, TokenGraph, TopK, attention_graphs, graph_attention

HEADS, DIM = 8, 64
LARGEST = 131_072


def rows(quick: bool, device: str) -> list[Row]:
    """List all rows: small ones if quick, larger ones too on a GPU."""
    large = device == "cuda" and not quick
    fused_at = fused_rows([256, 1024] if quick else [256, 1024, 2048, 4096, 8192], large)
    others = [
        *complete_rows(256 if quick else 1024, large),
        *window_rows(512 if quick else 4096, large),
        *random_rows(quick),
        *graphs_rows(1024 if quick else 8192, large),
        *(capture.rows([128], ["topk"]) if quick else capture.rows([512, 1024, 2048])),
    ]
    others += pages.rows([64] if quick else [128, 512])
    others += analyses.rows(quick)
    if quick:  # the bars are for the full sizes
        others = [replace(row, time_bar=None, memory_bar=None) for row in others]
    return fused_at + others


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
    """Scaled dot product attention beside torch's fused kernel."""
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
    """Attention over a graph beside torch-geometric's message passing, without projections."""
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
    ours = GraphAttention(
        HEADS * DIM, HEADS, weight=gatv2(theirs.att.detach()[0]) if pair else None
    ).to(device)
    names = ("lin_r", "lin_l", "lin_l") if pair else ("lin_query", "lin_key", "lin_value")
    projections = (ours.project_query, ours.project_key, ours.project_value)
    with torch.no_grad():
        for projection, name in zip(projections, names, strict=True):
            projection.load_state_dict(getattr(theirs, name).state_dict())
        nn.init.eye_(ours.project_output.weight)
        nn.init.zeros_(ours.project_output.bias)
    return Side(lambda: ours(x, graph))


GRAPH_HEADS, PEAKED = 12, 3.0
"""Queries are scaled so that attention is as peaked as a trained head's."""


def graphs(side: str, size: int, device: str, *, keep: Any) -> Side:
    """Attention graphs of causal heads beside torch's fused attention, which keeps none."""
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


# The rows

PAIR = "GATv2 as a plain pair function"


def fused_rows(sizes: list[int], large: bool) -> list[Row]:
    return [
        Row(
            f"fused-{kind}/{size}/{_direction(backward)}",
            f"{kind}, scaled dot product, 8 heads of 64",
            "torch's scaled_dot_product_attention",
            size,
            partial(fused, causal=kind == "causal", backward=backward),
            time_bar=1.2 if size == 256 else 1.05,
            growth=(2048, 4096, 8192) if size == 4096 else (),
        )
        for kind in ("causal", "complete")
        for size in [*sizes, *([32_768, LARGEST] if large else [])]
        for backward in (False, True)
    ]


def complete_rows(size: int, large: bool) -> list[Row]:
    complete = partial(graph_row, "complete", TokenGraph.complete)
    pair = partial(complete, pair=True, growth=(size, 2 * size, 4 * size))
    half, larger = size // 2, 32 * size
    return [
        complete(size, size, name="complete-dot", time_bar=1 / 300, memory_bar=1 / 200),
        pair(size, size, name="complete-pair", time_bar=1 / 40),
        *([complete(larger, larger, name="complete-pair", pair=True)] if large else []),
        complete(half, half, name="complete-pair", pair=True, backward=True, time_bar=1 / 8),
        pair(size, size, name="complete-pair-compiled", compiled=True, time_bar=1 / 140),
        layer_row(size, pair=False),
        layer_row(size, pair=True),
    ]


def window_rows(size: int, large: bool) -> list[Row]:
    window = partial(graph_row, "causal window of 64", partial(TokenGraph.window, size=64))
    return [
        window(tokens, 64, name="window", backward=backward, time_bar=bar)
        for backward, bar in ((False, 1 / 40), (True, 1 / 20))
        for tokens in [size, *([LARGEST] if large else [])]
    ]


def random_rows(quick: bool) -> list[Row]:
    """List the rows on explicit edges, by nodes, edges per node, heads and their size."""
    shapes = [(512, 64, 8, 64)]
    if not quick:
        shapes = [(4096, 64, 8, 64), (20_000, 20, 4, 32), (10_000, 100, 8, 16)]
    bars = {
        ("dot", False): 1 / 10,
        ("dot", True): 1 / 8,
        ("pair", False): 1 / 8,
        ("pair", True): 1 / 4,
    }
    return [
        graph_row(
            f"{size * degree:,} random edges",
            partial(random_graph, degree=degree),
            size,
            degree,
            name=f"random-{score}",
            heads=heads,
            dim=dim,
            pair=score == "pair",
            backward=backward,
            time_bar=bar,
            memory_bar=1 / 15,
            small=256,
        )
        for (score, backward), bar in bars.items()
        for size, degree, heads, dim in shapes
    ]


def graphs_rows(size: int, large: bool) -> list[Row]:
    return [
        Row(
            f"graphs-{name}/{tokens}/forward",
            f"attention_graphs, {keep}, causal, {GRAPH_HEADS} heads of {DIM}",
            "torch's fused attention alone",
            tokens,
            partial(graphs, keep=keep),
            time_bar=bar,
            growth=(tokens // 2, tokens, 2 * tokens) if tokens == size else (),
            check=partial(graphs_are_right, size=tokens, keep=keep),
        )
        for name, keep, bar in (("topk", TopK(8), 2.0), ("threshold", Threshold(0.05), 2.5))
        for tokens in [size, *([LARGEST] if large else [])]
    ]


def graph_row(
    kind: str,
    graph: Callable[[int], TokenGraph],
    size: int,
    degree: int,
    *,
    name: str,
    heads: int = HEADS,
    dim: int = DIM,
    pair: bool = False,
    backward: bool = False,
    compiled: bool = False,
    growth: tuple[int, ...] = (),
    **settings: Any,
) -> Row:
    """Describe a row on a graph with `degree` edges per node, beside message passing."""
    score = (PAIR if pair else "scaled dot product") + (", compile=True" if compiled else "")
    options = {"heads": heads, "dim": dim, "pair": pair, "backward": backward}
    if compiled:
        settings["small"] = size  # so that the code for this size is there before measuring
    return Row(
        f"{name}/{size}/{_direction(backward)}",
        f"{kind}, {score}, {heads} heads of {dim}",
        f"{'GATv2Conv' if pair else 'TransformerConv'}'s message passing",
        size,
        partial(attention, graph=graph, compiled=compiled, **options),
        growth=growth or (size // 2, size, 2 * size),
        peer_bytes=_peer_bytes(size * degree * heads * dim, pair, backward),
        **settings,
    )


def layer_row(size: int, pair: bool) -> Row:
    score = PAIR if pair else "scaled dot product"
    return Row(
        f"layer-{'pair' if pair else 'dot'}/{size}/forward",
        f"complete, {score}, 8 heads of 64, GraphAttention with its projections",
        f"{'GATv2Conv' if pair else 'TransformerConv'} with its projections",
        size,
        partial(layer, pair=pair),
        peer_bytes=_peer_bytes(size * size * HEADS * DIM, pair, False),
    )


def _direction(backward: bool) -> str:
    return "backward" if backward else "forward"


def _peer_bytes(numbers: int, pair: bool, backward: bool) -> int:
    """Guess the memory that message passing needs: several tensors with a row per edge."""
    return 4 * numbers * (8 if backward else 5 if pair else 4)
