"""Attention on structured graphs: whole rows of a few queries at a time, on the keys they reach."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple, cast

import torch
from torch import Tensor

from gattn.engines.call import AttentionCall
from gattn.engines.fused import VALUES_OF_EDGES, fused_block, is_on_accelerator, suits_the_kernel
from gattn.engines.shared import blocks
from gattn.engines.shared.blocks import Tiles
from gattn.engines.shared.scoring import piece_numbers, score_tile, tile_bias
from gattn.engines.shared.tiling import tile_pairs
from gattn.engines.tensors.memory import (
    Pasted,
    Recomputed,
    Runs,
    keep_freed_memory,
    uncompiled,
    with_dtypes_of,
)
from gattn.graph.rules.keys import Keys
from gattn.graph.rules.simple import Complete
from gattn.graph.token_graph import TokenGraph
from gattn.normalizers.base import widened
from gattn.weights.base import Tree, map_tree
from gattn.weights.pairs import Pairs

BLOCK_BYTES = 1 << 24
"""The most memory for the scores of a block, in bytes: they should stay in the cache."""

DEVICE_BYTES = 1 << 29
"""The same on an accelerator, where a block should be worth a kernel launch."""

_ROWS_SHARE = 3 / 8  # of a block, if its rows are read several times
_FEW_ROWS, _MOST_GROWTH = 32, 4  # products of fewer rows are slow: blocks may grow for them


class RowBlock(NamedTuple):
    """Whole rows of attention: some queries against all the keys that they can reach.

    `allowed` is None if every pair is an edge; scores, if wanted, are -inf for other pairs.
    """

    rows: slice
    columns: Keys
    allowed: Tensor | None
    scores: Tensor | None
    attention: Tensor


def can_run(call: AttentionCall) -> str | None:
    """Run on a token graph, unless edge features come as a list of edges."""
    if not isinstance(call.graph, TokenGraph) and call.graph.token_graph is None:
        return "a plain edge_index has no tiles, unless it is small and each edge occurs once"
    if call.features_to_value is not None:
        return VALUES_OF_EDGES
    if call.edge_features is not None and call.edge_features.dim() == 2:
        return "edge features are (edges, F): tiles need (queries, keys, F)"
    return None


@uncompiled
def run(call: AttentionCall) -> Tensor:
    """Compute the output, (B, H, Q, V)."""
    keep_freed_memory()
    most = _most_pairs(call, call.batch_heads)
    recomputed = Recomputed(many=not _is_worth_keeping(call, most))
    query, key = _operands(call)
    state: tuple[Tree, Tree, Tree] = query, key, call.value
    if torch.is_grad_enabled():  # Gradients of all blocks add up in float32.
        state = map_tree(widened, query), map_tree(widened, key), widened(call.value)
    planned = blocks.plan(call.token_graph, most, call.query.device)
    if isinstance(planned, tuple) and len(planned) == 1:
        output, _ = recomputed(_attend, call, planned[0], state)
        return cast("Tensor", output.to(call.value.dtype))
    shape = (*call.query.shape[:3], call.value.shape[-1])
    whole = Pasted(call.value.new_empty(shape))
    for tiles in planned:
        part, state = recomputed(_attend, call, tiles, state)
        whole.add((..., tiles.rows, slice(None)), part)
    return whole.whole


def _is_worth_keeping(call: AttentionCall, most: int) -> bool:
    """Return whether a gradient may keep intermediate results rather than compute them again.

    It may if one block holds all, or if the fused kernel keeps little more than masks.
    """
    if call.token_graph.num_queries * call.token_graph.num_keys <= most:
        return True
    form = call.kernel_form
    is_fused = suits_the_kernel(call) and form is not None and not form.bias
    return is_fused and pairs(call) <= call.query.numel()


def _attend(
    call: AttentionCall, tiles: Tiles, state: tuple[Tree, Tree, Tree]
) -> tuple[Tensor, tuple[Tree, Tree, Tree]]:
    """Attend from the queries of a block; also give the trees for the next one (see `take`)."""
    query, query_rest = tiles.queries(state[0])
    key, key_rest = tiles.keys(state[1])
    value, value_rest = tiles.keys(state[2])
    given = _operands(call)
    query, key = with_dtypes_of(given[0], query), with_dtypes_of(given[1], key)
    assert isinstance(value, Tensor)
    output = fused_block(call, tiles, query, key, value)
    if output is None:
        if call.kernel_form is not None:  # Half precision cannot hold large products.
            query, key = map_tree(widened, query), map_tree(widened, key)
        value = value.to(call.value.dtype)
        attention = call.normalizer(_scores(call, tiles, query, key)).to(value.dtype)
        attention = torch.dropout(attention, call.dropout, train=call.dropout > 0)
        output = attention @ value
    return tiles.from_batch(output), (query_rest, key_rest, value_rest)


def _operands(call: AttentionCall) -> tuple[Tree, Tree]:
    """Return what pairs are scored from, or torch's kernel, which may take half precision."""
    form = call.kernel_form
    if form is None or not suits_the_kernel(call):
        return call.operands
    return form.query, form.key


def _scores(call: AttentionCall, tiles: Tiles, query: Tree, key: Tree) -> Tensor:
    """Score tiles, -inf for pairs that are not edges: (blocks B, H, queries, keys)."""
    scores = score_tile(call, query, key, lambda: tiles.pairs(call))
    mask = tiles.mask(call)
    if mask is not None and query is not None and not scores.requires_grad:
        # They lie in memory of their own.
        scores[..., tiles.partial].masked_fill_(~mask[..., tiles.partial], -torch.inf)
    elif mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    batch, heads = call.query.shape[:2]
    return scores.expand(tiles.blocks * batch, heads, *scores.shape[2:])


def pairs(call: AttentionCall) -> int:
    """Count the pairs on the tiles, edges and others."""
    return tile_pairs(call.token_graph, blocks.HEIGHT)


def memory(call: AttentionCall) -> int:
    """Estimate the memory of `run` besides inputs and output, in bytes."""
    block = min(_most_pairs(call, call.batch_heads), pairs(call)) * call.batch_heads
    pieces = 4 * min(piece_numbers(call), block // max(call.batch_heads, 1) * call.tile_width)
    return (3 * block + pieces) * max(call.query.element_size(), 4)


def row_blocks(call: AttentionCall, *, scores: bool = True) -> Iterator[RowBlock]:
    """Walk whole rows of attention, in memory that does not grow with their number.

    Parameters
    ----------
    call : AttentionCall
        What to compute.
    scores : bool
        Whether the blocks hold their scores. Without them attention has no gradient, and each
        block overwrites the one before.
    """
    keep_freed_memory()
    most = _most_pairs(call, call.batch_heads, _ROWS_SHARE)
    most = max(most, min(_FEW_ROWS * call.token_graph.num_keys, _MOST_GROWTH * most))
    planned = blocks.plan(call.token_graph, most, call.query.device, single=True)
    if scores or not _can_overwrite(call):
        yield from (_row_block(call, tiles, scores) for tiles in planned)
        return
    size = min(most, call.token_graph.num_queries * call.token_graph.num_keys)
    memory = widened(call.query[:0]).new_empty(call.batch_heads * size)
    for tiles in planned:
        block, memory = _overwritten(call, tiles, memory)
        yield block


def some_rows(call: AttentionCall, rows: Tensor) -> Tensor:
    """Compute the attention of any rows to all keys, (B, H, rows, K)."""
    query, key = call.operands
    query = map_tree(lambda x: x.index_select(2, rows), query)

    def pairs() -> Pairs:
        features = None if call.edge_features is None else call.edge_features[rows]
        positions = call.positions
        return Pairs(positions.query[rows][:, None, None], positions.key[None, :, None], features)

    scores, graph = score_tile(call, query, key, pairs), call.token_graph
    if not isinstance(graph.rule, Complete):
        keys = torch.arange(graph.num_keys, device=rows.device)
        scores = scores.masked_fill(~graph.allowed(rows, keys), -torch.inf)
    scores = scores.expand(*call.query.shape[:2], *scores.shape[2:])
    attention: Tensor = call.normalizer(scores)
    return attention


def _row_block(call: AttentionCall, tiles: Tiles, scores: bool = True) -> RowBlock:
    query, key = call.operands
    found = _scores(call, tiles, tiles.queries(query)[0], tiles.keys(key)[0])
    return _as_row_block(tiles, found if scores else None, call.normalizer(found))


def _as_row_block(tiles: Tiles, scores: Tensor | None, attention: Tensor) -> RowBlock:
    columns, allowed = tiles.columns, tiles.allowed
    assert not isinstance(columns, Runs)
    if isinstance(columns, Tensor):
        columns, allowed = columns[0], None if allowed is None else allowed[0]
    return RowBlock(tiles.rows, columns, allowed, scores, attention)


def _can_overwrite(call: AttentionCall) -> bool:
    """Return whether attention can take the place of its scores."""
    form, is_on_cpu = call.dot_form, call.query.device.type == "cpu"
    return (
        is_on_cpu and call.is_shared_out_by_softmax and form is not None and form.query is not None
    )


@torch.no_grad()
def _overwritten(call: AttentionCall, tiles: Tiles, memory: Tensor) -> tuple[RowBlock, Tensor]:
    """Compute a block in place, in the memory of the last one, or in more if it is larger."""
    form = call.dot_form
    assert form is not None
    query, key = tiles.queries(form.query)[0], tiles.keys(form.key)[0]
    assert isinstance(query, Tensor)
    assert isinstance(key, Tensor)
    shape = (*query.shape[:3], key.shape[2])
    # A single row may be longer than a block, and prepared sides may have another precision.
    if memory.numel() < math.prod(shape) or memory.dtype != query.dtype:
        memory = query.new_empty(math.prod(shape))
    scores = memory[: math.prod(shape)].view(shape)
    query, key = query.flatten(0, 1), key.flatten(0, 1).transpose(1, 2)
    bias, mask = tile_bias(call, lambda: tiles.pairs(call)), tiles.mask(call)

    def score() -> Tensor:
        torch.bmm(query * (form.scale / call.temperature), key, out=scores.flatten(0, 1))
        if bias is not None:
            scores.add_(bias / call.temperature)
        if mask is not None:
            scores[..., tiles.partial].masked_fill_(~mask[..., tiles.partial], -torch.inf)
        return scores

    return _as_row_block(tiles, None, _softmax_in_place(score)), memory


def _softmax_in_place(score: Callable[[], Tensor]) -> Tensor:
    """Take the softmax of scores; if some rows have no edge, they are scored again to find out."""
    scores = score()
    if not scores.numel():
        return scores
    attention = torch.softmax(scores, dim=-1, out=scores)
    if not bool(attention[..., 0].isnan().any()):
        return attention
    empty = score().amax(-1, keepdim=True) == -torch.inf
    attention = torch.softmax(scores.masked_fill_(empty, 0.0), dim=-1, out=scores)
    return attention.masked_fill_(empty, 0.0)


def _most_pairs(call: AttentionCall, width: int, share: float = 1.0) -> int:
    size = DEVICE_BYTES if is_on_accelerator(call) else BLOCK_BYTES * share
    return max(int(size // max(call.query.element_size(), 4) // max(width, 1)), 1)
