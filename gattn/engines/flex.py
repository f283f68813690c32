"""Attention by torch's flex attention, which compiles a kernel for a mask and a score."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from gattn.caching import cached_function
from gattn.engines.call import AttentionCall
from gattn.engines.fused import VALUES_OF_EDGES
from gattn.engines.kernels import mask_tiles, scores
from gattn.engines.kernels.mask_tiles import ALL, NONE, SIZE
from gattn.engines.kernels.scores import KernelScore, kernel_score
from gattn.engines.tensors.memory import uncompiled
from gattn.graph.token_graph import TokenGraph
from gattn.normalizers.base import widened

_LEAST_DIM = 16  # of a kernel
_TRACING = Lock()  # torch traces in one thread at a time


def can_run(call: AttentionCall) -> str | None:
    """Run a softmax, with or without a sink, of a dot product with a cap and relative biases."""
    if not isinstance(call.graph, TokenGraph):
        return "a plain edge_index has no tiles"
    if call.features_to_value is not None:
        return VALUES_OF_EDGES
    if call.dropout:
        return "flex attention knows no dropout"
    if reason := scores.why_not(call) or mask_tiles.why_not(call.graph):
        return reason
    if call.query.device.type == "cuda":
        if call.query.dtype == torch.float64:
            return "its kernels know no float64"
        if min(call.query.shape[-1], call.value.shape[-1]) < _LEAST_DIM:
            return f"its kernels need at least {_LEAST_DIM} features a head"
    return None


@uncompiled
def run(call: AttentionCall) -> Tensor:
    """Compute the output, (B, H, Q, V)."""
    score = kernel_score(call)
    value = call.value.to(score.query.dtype)
    attend = _compiled if call.query.device.type == "cuda" else _eager
    sink = scores.sink_logits(call)
    output, log_sum = attend(score, value, call.token_graph, sink is not None)
    if sink is not None:
        output = output * torch.sigmoid(log_sum - sink)[..., None].to(output.dtype)
    return output.to(call.value.dtype)


def memory(call: AttentionCall) -> int:
    """Estimate the memory of `run` besides inputs and output, in bytes."""
    pairs = call.query.shape[2] * call.key.shape[2]
    tables = 2 * call.query.shape[1] * (call.query.shape[2] + call.key.shape[2])
    masks = min(pairs // 8, mask_tiles.MOST_BYTES) + 24 * pairs // SIZE**2
    if call.query.device.type == "cuda":
        return masks + 4 * tables
    return masks + (tables + 8 * call.batch_heads * pairs) * max(call.query.element_size(), 4)


def _compiled(
    score: KernelScore, value: Tensor, graph: TokenGraph, sums: bool
) -> tuple[Tensor, Tensor]:
    """Attend by a compiled kernel: the output, and if wanted each row's log-sum-exp."""
    from torch.nn.attention.flex_attention import AuxRequest

    changed, read = _score_mod(score)
    found = _kernel()(
        score.query,
        score.key,
        value,
        score_mod=lambda dot, b, h, i, j: changed(dot, b, h, i, j, *read),
        block_mask=_block_mask(graph, value.device),
        scale=1.0,
        return_aux=AuxRequest(lse=True) if sums else None,
    )
    return (found[0], found[1].lse) if sums else (found, found.new_empty(0))


def _eager(
    score: KernelScore, value: Tensor, graph: TokenGraph, sums: bool
) -> tuple[Tensor, Tensor]:
    """Do the same with all pairs in memory, on a CPU, where torch's own entry has no gradient."""
    from torch._higher_order_ops.flex_attention import flex_attention

    changed, read = _score_mod(score)
    mask = _block_mask(graph, value.device)
    options = {"BACKEND": "AUTO", "OUTPUT_LOGSUMEXP": True, "OUTPUT_MAX": False}
    with _TRACING:
        output, log_sum, _ = flex_attention(
            score.query, score.key, value, changed, mask.as_tuple(), 1.0, options, read
        )
    return output, log_sum * math.log(2)


@cache
def _kernel() -> Callable[..., Any]:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention)


def _score_mod(score: KernelScore) -> tuple[Callable[..., Tensor], tuple[Tensor, ...]]:
    """Return what is done to each product of a query and a key, and the tensors that it reads.

    Numbers are tensors, too: of other tensors torch takes the same kernel, for other numbers it
    would compile one.
    """
    first, kind = score.query.shape[2] - 1, widened(score.query[:0])
    has_inside, has_cap, has_outside = (
        x is not None for x in (score.inside, score.cap, score.outside)
    )

    def changed(
        dot: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor, *read: Tensor
    ) -> Tensor:
        offset, dot = key - query + first, dot * read[0]
        if has_inside:
            dot = dot + read[1][head, offset]
        if has_cap:
            dot = read[1 + has_inside] * torch.tanh(dot)
        return dot + read[-1][head, offset] if has_outside else dot

    scale, cap = (None if x is None else kind.new_full((), x) for x in (score.scale, score.cap))
    read = (scale, score.inside, cap, score.outside)
    return changed, tuple(x for x in read if x is not None)


@cached_function
@torch.inference_mode(mode=False)
def _block_mask(graph: TokenGraph, device: torch.device) -> Any:
    """Describe a graph to flex attention: the tiles that it visits, and a mask for some."""
    from torch.nn.attention.flex_attention import BlockMask

    found = mask_tiles.mask_tiles(graph, device)
    columns = -(-graph.num_keys // SIZE)
    bits = torch.full((found.rows, columns), NONE, dtype=torch.int32, device=device)
    row = torch.repeat_interleave(found.pointer.diff())
    bits[row, found.column.long()] = found.bits
    # The kernel holds what it reads for each pair of a tile in shared memory: small numbers fit.
    tiles = bits.short() if len(found.words) <= torch.iinfo(torch.short).max else bits
    words = found.words.view(torch.uint8)  # the lowest bit first, in each byte, too

    def allowed(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        tile = tiles[query // SIZE, key // SIZE].int()
        word = words[tile, query % SIZE, key % SIZE // 8].int()
        return (word >> (key % 8)) & 1 == 1

    return BlockMask.from_kv_blocks(
        *_listed(bits > ALL),
        *_listed(bits == ALL),
        BLOCK_SIZE=SIZE,
        mask_mod=allowed,
        seq_lengths=(graph.num_queries, graph.num_keys),
    )


def _listed(tiles: Tensor) -> tuple[Tensor, Tensor]:
    """Count and list the tiles of each row: (1, 1, rows), (1, 1, rows, columns)."""
    order = torch.argsort(tiles.int(), dim=1, descending=True, stable=True)
    return tiles.sum(1)[None, None].int(), order[None, None].int()
