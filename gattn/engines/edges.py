"""Attention edge by edge: sparse products, and scores of a few edges at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from gattn.engines.call import AttentionCall
from gattn.engines.shared.scoring import piece_numbers, score_edges, share_out, sorted_features
from gattn.engines.tensors.memory import Pasted, Recomputed, keep_freed_memory, uncompiled
from gattn.engines.tensors.ragged import (
    head_products,
    nodes,
    ragged_softmax,
    softmax_sums,
    tokens_of,
)
from gattn.engines.tensors.sparse import GROUPED_EDGES, neighbour_sums
from gattn.graph.rules.neighbourhoods import Neighbourhoods
from gattn.graph.rules.per_head import HeadEdges, per_head
from gattn.normalizers.base import widened
from gattn.weights.base import WeightFunction

BLOCK_EDGES = 1 << 22
"""How many edges, counted in all heads, a block of neighbourhoods holds."""


def can_run(call: AttentionCall) -> str | None:
    """Run any call."""
    return None


@uncompiled
def run(call: AttentionCall) -> Tensor:
    """Compute the output, (B, H, Q, V)."""
    keep_freed_memory()
    if 0 < call.batch_heads * call.graph.num_edges <= GROUPED_EDGES and _suits_one_graph(call):
        edges = per_head(call.edges, call.batch_heads)
        scores = _head_scores(call, edges)
        if scores is not None:
            return _softmax_sums(call, scores, edges)
    return times_values(call, attention(call))


def _suits_one_graph(call: AttentionCall) -> bool:
    """Return whether all heads can be one graph, each of whose rows has the same softmax."""
    if not call.is_shared_out_by_softmax or call.features_to_value is not None:
        return False
    form = call.dot_form
    return scores_at_once(call) if form is None else form.query is not None and not form.bias


def scores_at_once(call: AttentionCall) -> bool:
    """Return whether the weight function scores all edges at once, and no hook looks at pairs."""
    weight = call.weight
    is_known = type(weight).on_edges is not WeightFunction.on_edges
    return is_known and not weight._forward_hooks and not weight._forward_pre_hooks


def _head_scores(call: AttentionCall, edges: HeadEdges) -> Tensor | None:
    form = call.dot_form
    if form is None:
        scores = call.weight.on_edges(*call.sides, edges)
        return scores if scores is None or call.temperature == 1 else scores / call.temperature
    assert form.query is not None
    assert form.key is not None
    return head_products(form.query, form.key, form.scale / call.temperature, edges)


def _softmax_sums(call: AttentionCall, scores: Tensor, edges: HeadEdges) -> Tensor:
    """Attend with a node for each token and head."""
    value = widened(call.value)
    scores = scores.to(value.dtype)
    if call.dropout:
        attention = torch.dropout(ragged_softmax(scores, edges), call.dropout, train=True)
        output = tokens_of(neighbour_sums(attention[None], nodes(value), edges), value)
    else:
        output = softmax_sums(scores, value, edges)
    return output.to(call.value.dtype)


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
    blocks = list(edges.blocks(max(1, piece_numbers(call) // max(4 * call.batch_heads, 1))))
    recomputed = Recomputed(many=len(blocks) > 1)
    parts = scores.split([len(block.query) for block in blocks], dim=-1)
    form = call.dot_form
    is_own = form is None or form.query is not None  # else the memory is a bias term's
    whole = scores if is_own and not torch.is_grad_enabled() else scores.new_empty(scores.shape)
    attention = Pasted(whole)
    for part, block in zip(parts, blocks, strict=True):
        attention.add((..., block.edges), recomputed(share_out, call.normalizer, part, block))
    return attention.whole


class EdgeBlock(NamedTuple):
    """A few whole neighbourhoods: attention and scores are (B, H, edges)."""

    edges: slice
    scores: Tensor
    attention: Tensor


def edge_blocks(call: AttentionCall) -> Iterator[EdgeBlock]:
    """Walk whole neighbourhoods of attention, in memory that does not grow with their number."""
    edges = call.edges
    for block in edges.blocks(max(1, BLOCK_EDGES // max(call.batch_heads, 1))):
        scores = score_edges(call, block.rows)
        yield EdgeBlock(block.edges, scores, share_out(call.normalizer, scores, block))


def memory(call: AttentionCall) -> int:
    """Estimate the memory of `run` besides inputs and output, in bytes."""
    edges = call.graph.num_edges
    pieces = 4 * min(piece_numbers(call), edges * call.edge_width)
    indices = 8 * 3 * edges + 4 * min(call.batch_heads * edges, max(GROUPED_EDGES, edges))
    return (2 * call.batch_heads * edges + pieces) * max(call.query.element_size(), 4) + indices
