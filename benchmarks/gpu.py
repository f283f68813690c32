"""Rows that need a GPU: edges emitted by kernels, and flex attention, in bfloat16."""

from collections.abc import Iterator
from functools import cache, partial
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.attention import DIM, GRAPH_HEADS, HEADS, PEAKED, tensors
from benchmarks.row import Row, Side
from gattn import (
    ALiBi,
    ScaledDotProduct,
    Threshold,
    TokenGraph,
    TopK,
    WeightFunction,
    attention_graphs,
    graph_attention,
)
from gattn.engines.call import attention_call
from gattn.engines.kernels.emitting import EmittedEdges, emit

DTYPE = torch.bfloat16
TOLERANCE = 0.02
"""Attention in bfloat16 rounds to 1/256; the peers round differently."""
WINDOW = 1024
KEEPS = (("topk", TopK(8)), ("threshold", Threshold(0.05)))


def rows(quick: bool) -> list[Row]:
    """List the rows; without a GPU each says that it needs one."""
    sizes = [1024] if quick else [8192, 32_768, 131_072]
    largest = sizes[-1]
    emitted = [
        Row(
            f"emitted-{name}/{size}/forward",
            f"attention_graphs, {keep}, causal, {GRAPH_HEADS} heads of {DIM}, bfloat16",
            "torch's flash attention alone",
            size,
            partial(graphs, keep=keep),
            time_bar=None if quick else 2.0,
            growth=(size // 4, size // 2, size) if size == largest else (),
            check=partial(graphs_are_right, size=size, keep=keep),
            device="cuda",
        )
        for name, keep in KEEPS
        for size in sizes
    ]
    kernels = [
        Row(
            f"kernels-{name}/{size}/forward",
            f"the kernels of emitted-{name}: edges stay on the GPU, in arrays",
            "torch's flash attention alone",
            size,
            partial(edges, keep=keep),
            time_bar=None if quick else 2.0,
            check=partial(edges_are_right, size=size, keep=keep),
            device="cuda",
        )
        for name, keep in KEEPS
        for size in sizes
    ]
    return (
        emitted
        + kernels
        + [
            Row(
                f"flex-{name}/{size}/{'backward' if backward else 'forward'}",
                f"causal window of {WINDOW}{', ALiBi' * (name == 'alibi')}, "
                f"{HEADS} heads of {DIM}, bfloat16",
                "torch's flex_attention with a mask and a score of its own",
                size,
                partial(flex, has_slopes=name == "alibi", backward=backward),
                time_bar=None if quick else 1.1,
                check=are_close,
                device="cuda",
            )
            for name in ("window", "alibi")
            for size in ([4096] if quick else sizes[1:])
            for backward in (False, True)
        ]
    )


def graphs(side: str, size: int, device: str, *, keep: Any) -> Side:
    """Emit the kept edges of causal heads, or run torch's fused attention, which keeps none."""
    q, k, v = (x.to(DTYPE) for x in _drawn(GRAPH_HEADS, size, device))
    if side == "peer":
        batched = [x[None] for x in (q, k, v)]
        return Side(lambda: scaled_dot_product_attention(*batched, is_causal=True))
    graph = TokenGraph.causal(size)
    return Side(lambda: attention_graphs(q, k, graph, keep=keep))


def edges(side: str, size: int, device: str, *, keep: Any) -> Side:
    """Do the same as `graphs`, without bringing edges to main memory."""
    if side == "peer":
        return graphs(side, size, device, keep=keep)
    q, k, _ = (x.to(DTYPE) for x in _drawn(GRAPH_HEADS, size, device))
    call, _ = attention_call(q, k, TokenGraph.causal(size))
    return Side(lambda: emit(call, keep))


def _drawn(heads: int, size: int, device: str) -> list[torch.Tensor]:
    q, k, v, _ = tensors(heads, size, DIM, device)
    return [q * PEAKED, k, v]


def graphs_are_right(
    peer: Side, theirs: Any, gattn: Side, heads: Any, *, size: int, keep: Any
) -> dict[str, float]:
    """Compare some rows of some heads with the formula, in float64; count the kept edges."""
    for head, query, row in _some_rows(size):
        network = heads[head].graph
        here = slice(*network.pointer[query : query + 2].tolist())
        found = torch.from_numpy(heads[head].attention[here])
        _compare(f"head {head}, query {query}", row, network.edge_index[0, here], found, keep)
    kept = sum(head.graph.num_edges for head in heads)
    return {"edges kept per query": kept / (size * GRAPH_HEADS)}


def edges_are_right(
    peer: Side, theirs: Any, gattn: Side, found: EmittedEdges, *, size: int, keep: Any
) -> dict[str, float]:
    """Do the same with edges that stay on the GPU."""
    stop = found.degree.flatten().cumsum(0).tolist()
    for head, query, row in _some_rows(size):
        line = head * size + query
        here = slice(stop[line - 1] if line else 0, stop[line])
        edges = (x[here].cpu() for x in (found.key, found.attention))
        _compare(f"head {head}, query {query}", row, *edges, keep)
    return {"edges kept per query": stop[-1] / (size * GRAPH_HEADS)}


def _some_rows(size: int) -> Iterator[tuple[int, int, torch.Tensor]]:
    """Compute the attention of some rows of some heads in float64."""
    q, k, _ = (x.to(DTYPE).double() for x in _drawn(GRAPH_HEADS, size, "cpu"))
    for head in (0, GRAPH_HEADS - 1):
        for query in (0, 5, size // 2, size - 1):
            yield head, query, ((k[head, : query + 1] @ q[head, query]) / DIM**0.5).softmax(0)


def _compare(where: str, row: torch.Tensor, key: Any, found: torch.Tensor, keep: Any) -> None:
    """Compare kept edges of a row with all its attention."""
    wanted = row.topk(min(keep.k, len(row))).values if isinstance(keep, TopK) else row
    if isinstance(keep, Threshold):
        wanted = row[row >= keep.t]
    found = found.double()
    if len(found) != len(wanted) or not torch.allclose(found, row[key], rtol=1e-3):
        raise AssertionError(f"{where}: not the edges of the formula")
    if abs(float(found.sum() - wanted.sum())) > 1e-3:
        raise AssertionError(f"{where}: not the largest edges")


def flex(side: str, size: int, device: str, *, has_slopes: bool, backward: bool) -> Side:
    """Attend in a causal window, by the flex engine or by flex attention called by hand."""
    q, k, v, cotangent = (x.to(DTYPE)[None] for x in tensors(HEADS, size, DIM, device))
    leaves = tuple(x.requires_grad_(backward) for x in (q, k, v))
    grad = cotangent if backward else None
    slopes = ALiBi(HEADS).to(device)
    if side == "peer":
        options = _by_hand(size, device, slopes.slopes if has_slopes else None)
        return Side(lambda: _compiled()(*leaves, **options), leaves, grad)
    weight: WeightFunction = ScaledDotProduct() + slopes if has_slopes else ScaledDotProduct()
    graph = TokenGraph.window(size, WINDOW)
    return Side(lambda: graph_attention(*leaves, graph, weight=weight, engine="flex"), leaves, grad)


@cache
def _compiled() -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention)


def _by_hand(size: int, device: str, slopes: torch.Tensor | None) -> dict[str, Any]:
    from torch.nn.attention.flex_attention import create_block_mask

    def near(batch: Any, head: Any, query: Any, key: Any) -> Any:
        return (key <= query) & (query - key < WINDOW)

    def sloping(score: Any, batch: Any, head: Any, query: Any, key: Any) -> Any:
        assert slopes is not None
        return score - slopes[head] * (query - key).abs()

    mask = create_block_mask(near, None, None, size, size, device=device, _compile=True)
    return {"block_mask": mask, "score_mod": None if slopes is None else sloping}


def are_close(peer: Side, theirs: Any, gattn: Side, ours: Any) -> dict[str, float]:
    """Raise an error if outputs or gradients differ by more than bfloat16 explains."""
    pairs = [(theirs, ours)]
    if peer.cotangent is not None:
        pairs += [(x.grad, y.grad) for x, y in zip(peer.leaves, gattn.leaves, strict=True)]
    for number, (one, other) in enumerate(pairs):
        error = float((one - other).detach().abs().max() / one.detach().abs().max())
        if not error <= TOLERANCE:
            raise AssertionError(f"number {number}: gattn differs from the peer by {error:.1e}")
    return {}
