"""Attention edge by edge: sparse products, and scores of a few edges at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from gattn.engines.call import AttentionCall
from gattn.engines.scoring import PIECE_NUMBERS, score_edges, sorted_features
from gattn.engines.tensors.memory import Pasted, Recomputed, keep_freed_memory, uncompiled
from gattn.engines.tensors.sparse import GROUPED_EDGES, neighbour_sums
from gattn.graph.rules.neighbourhoods import Neighbourhoods
from gattn.normalizers.base import widened

BLOCK_EDGES = 1 << 22
"""How many edges, counted in all heads, a block of neighbourhoods holds."""


def can_run(call: AttentionCall) -> str | None:
    """Run any call."""
    return None


@uncompiled
def run(call: AttentionCall) -> Tensor:
    """Compute the output, (B, H, Q, V)."""
    keep_freed_memory()
    return times_values(call, attention(call))


@uncompiled
def attention(call: AttentionCall) -> Tensor:
    """Compute the attention of the sorted edges before dropout, (B, H, E)."""
    return _normalized(call, score_edges(call))


@uncompiled
def times_values(call: AttentionCall, attention: Tensor) -> Tensor:
    """Multiply the attention of the sorted edges with the values: (B, H, Q, V)."""
    attention = torch.dropout(attention, call.dropout, train=call.dropout > 0)
    value = widened(call.value)
    attention = attention.to(value.dtype)
    output = neighbour_sums(attention.flatten(0, 1), value.flatten(0, 1), call.edges)
    output = output.view(*call.query.shape[:3], value.shape[-1])
    if call.features_to_value is not None:
        output = output + _times_features(call, attention) @ call.features_to_value.to(value.dtype)
    return output.to(call.value.dtype)


def _times_features(call: AttentionCall, attention: Tensor) -> Tensor:
    """Multiply the attention of the sorted edges with their features: (B, H, Q, F)."""
    features = sorted_features(call, slice(None))
    assert features is not None
    count = len(features)
    each_its_own_key = torch.arange(count, device=features.device)
    edges = Neighbourhoods(call.edges.pointer, each_its_own_key, count)
    features = features.to(attention.dtype).expand(call.batch_heads, -1, -1)
    summed: Tensor = neighbour_sums(attention.flatten(0, 1), features, edges)
    return summed.view(*attention.shape[:2], *summed.shape[1:])


def _normalized(call: AttentionCall, scores: Tensor) -> Tensor:
    """Normalize scores (B, H, E), as many neighbourhoods at a time as fit the cache."""
    edges = call.edges
    blocks = list(_blocks(edges, max(1, PIECE_NUMBERS // max(4 * call.batch_heads, 1))))
    recomputed = Recomputed(many=len(blocks) > 1)
    parts = scores.split([some.stop - some.start for _, some in blocks], dim=-1)
    form = call.dot_form
    is_own = form is None or form.query is not None  # else the memory is a bias term's
    whole = scores if is_own and not torch.is_grad_enabled() else scores.new_empty(scores.shape)
    attention = Pasted(whole, dim=-1)
    for part, (rows, some) in zip(parts, blocks, strict=True):
        query, count = edges.query[some] - rows.start, rows.stop - rows.start
        on_edges = call.normalizer.on_edges
        attention.add(recomputed(on_edges, part, query, count))
    return attention.whole


def _blocks(edges: Neighbourhoods, most: int) -> Iterator[tuple[slice, slice]]:
    """Cut into whole neighbourhoods of at most `most` edges, unless a single one is larger."""
    pointer, row = edges.pointer.cpu(), 0
    while row < edges.num_queries:
        reached = torch.searchsorted(pointer, pointer[row] + most, right=True)
        stop = max(int(reached) - 1, row + 1)
        yield slice(row, stop), slice(int(pointer[row]), int(pointer[stop]))
        row = stop


class EdgeBlock(NamedTuple):
    """A few whole neighbourhoods: attention and scores are (B, H, edges)."""

    edges: slice
    scores: Tensor
    attention: Tensor


def edge_blocks(call: AttentionCall) -> Iterator[EdgeBlock]:
    """Walk whole neighbourhoods of attention, in memory that does not grow with their number."""
    edges = call.edges
    for rows, some in _blocks(edges, max(1, BLOCK_EDGES // max(call.batch_heads, 1))):
        scores = score_edges(call, rows)
        query = edges.query[some] - rows.start
        attention = call.normalizer.on_edges(scores, query, rows.stop - rows.start)
        yield EdgeBlock(some, scores, attention)


def memory(call: AttentionCall) -> int:
    """Estimate the memory of `run` besides inputs and output, in bytes."""
    edges = call.graph.num_edges
    pieces = 4 * min(PIECE_NUMBERS, edges * call.edge_width)
    indices = 8 * 3 * edges + 4 * min(call.batch_heads * edges, max(GROUPED_EDGES, edges))
    return (2 * call.batch_heads * edges + pieces) * max(call.query.element_size(), 4) + indices
