"""The rows, by what they measure."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from benchmarks import analyses, attention, capture, commands, gpu, pages, small, watching
from benchmarks.attention import DIM, GRAPH_HEADS, HEADS
from benchmarks.row import Row
from gattn import Threshold, TokenGraph, TopK

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
    others += small.rows()
    others += watching.rows(quick)
    others += pages.rows([64] if quick else [128, 512])
    others += analyses.rows(quick)
    others += gpu.rows(quick)
    others += commands.rows()
    if quick:  # the bars are for the full sizes
        others = [replace(row, time_bar=None, memory_bar=None) for row in others]
    return fused_at + others


PAIR = "GATv2 as a plain pair function"


def fused_rows(sizes: list[int], large: bool) -> list[Row]:
    return [
        Row(
            f"fused-{kind}/{size}/{_direction(backward)}",
            f"{kind}, scaled dot product, 8 heads of 64",
            "torch's scaled_dot_product_attention",
            size,
            partial(attention.fused, causal=kind == "causal", backward=backward),
            time_bar=1.1 if size == 256 else 1.05,
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
        ("pair", True): 1 / 5,
    }
    return [
        graph_row(
            f"{size * degree:,} random edges",
            partial(attention.random_graph, degree=degree),
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
            partial(attention.graphs, keep=keep),
            time_bar=bar,
            growth=(tokens // 2, tokens, 2 * tokens) if tokens == size else (),
            check=partial(attention.graphs_are_right, size=tokens, keep=keep),
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
    """Describe a row on a graph with `degree` edges per node, compared with message passing."""
    score = (PAIR if pair else "scaled dot product") + (", compile=True" if compiled else "")
    options = {"heads": heads, "dim": dim, "pair": pair, "backward": backward}
    if compiled:
        settings["small"] = size  # so that the code for this size is there before measuring
    return Row(
        f"{name}/{size}/{_direction(backward)}",
        f"{kind}, {score}, {heads} heads of {dim}",
        f"{'GATv2Conv' if pair else 'TransformerConv'}'s message passing",
        size,
        partial(attention.attention, graph=graph, compiled=compiled, **options),
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
        partial(attention.layer, pair=pair),
        peer_bytes=_peer_bytes(size * size * HEADS * DIM, pair, False),
    )


def _direction(backward: bool) -> str:
    return "backward" if backward else "forward"


def _peer_bytes(numbers: int, pair: bool, backward: bool) -> int:
    """Guess the memory that message passing needs: several tensors with a row per edge."""
    return 4 * numbers * (8 if backward else 5 if pair else 4)
