"""Attention by the plain dense formula, a block of queries at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from gattn.engines.base import AttentionCall, score_tile
from gattn.graph import TokenGraph

_TILE_NUMBERS = 1 << 25


class RowBlock(NamedTuple):
    """Whole rows of attention: some queries against all the keys that they can reach."""

    rows: slice
    columns: slice
    allowed: Tensor
    scores: Tensor
    attention: Tensor


def can_run(call: AttentionCall) -> str | None:
    """Run on a token graph, unless edge features come one an edge."""
    if not isinstance(call.graph, TokenGraph):
        return "a plain edge_index has no tiles"
    if call.edge_features is not None and call.edge_features.dim() == 2:
        return "edge features are (edges, F): tiles need (queries, keys, F)"
    return None


def row_blocks(call: AttentionCall) -> Iterator[RowBlock]:
    """Walk the rows in memory that does not grow with their number.

    Scores are (B, H, rows, columns), -inf where there is no edge.
    """
    assert isinstance(call.graph, TokenGraph)
    heads = math.prod(call.query.shape[:2])
    numbers_a_pair = call.width if call.dot_form is None else heads
    for rows, columns, allowed in call.graph.row_blocks(_TILE_NUMBERS // max(numbers_a_pair, 1)):
        yield row_block(call, rows, columns, allowed.to(call.query.device))


def row_block(call: AttentionCall, rows: slice, columns: slice, allowed: Tensor) -> RowBlock:
    """Compute some whole rows, given the keys that hold all their edges."""
    scores = score_tile(call, rows, columns).masked_fill(~allowed, -torch.inf)
    return RowBlock(rows, columns, allowed, scores, call.normalizer(scores))


def run(call: AttentionCall) -> Tensor:
    """Compute the output, (B, H, Q, V)."""
    assert call.value is not None
    outputs = [call.value.new_zeros(*call.query.shape[:2], 0, call.value.shape[-1])]
    for block in row_blocks(call):
        attention = torch.dropout(block.attention, call.dropout, train=call.dropout > 0)
        outputs.append(attention @ call.value[:, :, block.columns])
    return torch.cat(outputs, dim=2)
