"""Attention on structured graphs: whole rows of a few queries at a time, on the keys they reach."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from gattn.engines.base import AttentionCall
from gattn.engines.scoring import (
    PIECE_NUMBERS,
    Pasted,
    Runs,
    keep_freed_memory,
    recomputed,
    score_tile,
    take,
    tile_bias,
    tokens_first,
    uncompiled,
)
from gattn.graph import TokenGraph
from gattn.normalizers import Softmax
from gattn.rules import Keys, count_keys, list_keys
from gattn.weights.base import Pairs, Tree, map_tree

HEIGHT = 64
"""How many queries a block has at first; more where that adds few keys."""

BLOCK_BYTES = 1 << 24
"""How much the scores of a block take at most: they should stay in the cache."""

DEVICE_BYTES = 1 << 29
"""The same on an accelerator, where a block should be worth a launch."""


_MOST_GATHERED = 16


class RowBlock(NamedTuple):
    """Whole rows of attention: some queries against all the keys that they can reach.

    `allowed` is None where every pair is an edge; scores are -inf where there is none.
    """

    rows: slice
    columns: Keys
    allowed: Tensor | None
    scores: Tensor
    attention: Tensor


@dataclass(frozen=True)
class _Tiles:
    """A block of queries and the keys that they reach, or several such blocks of one shape.

    The keys are a run, overlapping runs, or indices (blocks, keys) to gather. `allowed` is
    (queries, keys) or (blocks, queries, keys), None where every pair is an edge; each key outside
    of `partial` is an edge of every query.
    """

    rows: slice
    columns: slice | Tensor | Runs
    allowed: Tensor | None
    partial: slice = field(default_factory=lambda: slice(None))

    @property
    def blocks(self) -> int:
        """How many blocks there are."""
        if isinstance(self.columns, slice):
            return 1
        return self.columns.number if isinstance(self.columns, Runs) else len(self.columns)

    def queries(self, tokens: Tree) -> tuple[Tree, Tree]:
        """Take the queries, one block an element of the batch."""
        some, rest = take(tokens, self.rows)
        if not isinstance(self.columns, slice):
            some = map_tree(lambda x: _to_batch(x.unflatten(2, (self.blocks, -1))), some)
        return some, rest

    def keys(self, tokens: Tree) -> tuple[Tree, Tree]:
        """Take the keys, one block an element of the batch."""
        columns = self.columns
        if isinstance(columns, slice):
            return take(tokens, columns)
        if isinstance(columns, Runs):
            some, rest = take(tokens, columns)
            return map_tree(_to_batch, some), rest
        some, rest = take(tokens, columns.flatten())
        return map_tree(lambda x: _to_batch(x.unflatten(2, columns.shape)), some), rest

    def from_batch(self, output: Tensor) -> Tensor:
        """Bring outputs, one block an element of the batch, back to (B, H, rows, .)."""
        if isinstance(self.columns, slice):
            return output
        parts: Tensor = output.unflatten(0, (self.blocks, -1))
        return parts.permute(1, 2, 0, 3, 4).flatten(2, 3)

    def pairs(self, call: AttentionCall) -> Pairs:
        """Say what is known of the pairs."""
        positions, features = call.positions, call.edge_features
        if isinstance(self.columns, slice):
            if features is not None:
                features = features[self.rows, self.columns]
            query, key = positions.query[self.rows], positions.key[self.columns]
            return Pairs(query[:, None, None], key[None, :, None], features)
        rows, columns = _numbers(self.rows, self.columns, positions.key.device)
        if features is not None:
            features = features[rows[:, :, None], columns[:, None, :]]
        query = positions.query[rows][:, :, None, None]
        key = positions.key[columns][:, None, :, None]
        known = (
            None if x is None else x.repeat_interleave(len(call.query), dim=0)
            for x in (query, key, features)
        )
        return Pairs(*known)  # type: ignore[arg-type]

    def mask(self, call: AttentionCall) -> Tensor | None:
        """Give `allowed` so that it broadcasts against scores (blocks B, H, queries, keys)."""
        allowed = self.allowed
        if allowed is None or allowed.dim() == 2:
            return allowed
        return allowed.repeat_interleave(len(call.query), dim=0)[:, None]


def can_run(call: AttentionCall) -> str | None:
    """Run on a token graph, unless edge features come one an edge."""
    if not isinstance(call.graph, TokenGraph):
        return "a plain edge_index has no tiles"
    if call.edge_features is not None and call.edge_features.dim() == 2:
        return "edge features are (edges, F): tiles need (queries, keys, F)"
    return None


@uncompiled
def run(call: AttentionCall) -> Tensor:
    """Compute the output, (B, H, Q, V)."""
    assert call.value is not None
    assert isinstance(call.graph, TokenGraph)
    keep_freed_memory()
    width = call.tile_width if torch.is_grad_enabled() else call.heads
    most = _most_pairs(call, width)
    few = _is_worth_keeping(call, most)
    shape = (*call.query.shape[:3], call.value.shape[-1])
    output = Pasted(call.value.new_empty(shape), dim=2)
    state: tuple[Tree, Tree, Tree] = (*_laid_out(call), call.value)
    for tiles in _plan(call, most, batched=True):
        if few:
            part, state = _attend(call, tiles, state)
        else:
            part, state = recomputed(_attend, call, tiles, state, random=call.dropout > 0)
        output.add(part)
    return output.whole


def _is_worth_keeping(call: AttentionCall, most: int) -> bool:
    """Say whether a gradient may keep what was computed, rather than compute it again.

    That is so where one block holds all, or where the fused kernel keeps little more than masks.
    """
    assert isinstance(call.graph, TokenGraph)
    if call.graph.num_queries * call.graph.num_keys <= most:
        return True
    form = call.dot_form
    is_fused = _suits_the_kernel(call) and form is not None and not form.bias
    return is_fused and pairs(call) <= call.query.numel()


def _attend(
    call: AttentionCall, tiles: _Tiles, state: tuple[Tree, Tree, Tree]
) -> tuple[Tensor, tuple[Tree, Tree, Tree]]:
    """Attend from some queries; also give the tokens to go on with (see `take`)."""
    query, query_rest = tiles.queries(state[0])
    key, key_rest = tiles.keys(state[1])
    value, value_rest = tiles.keys(state[2])
    assert isinstance(value, Tensor)
    output = _fused(call, tiles, query, key, value)
    if output is None:
        attention = call.normalizer(_scores(call, tiles, query, key)).to(value.dtype)
        attention = torch.dropout(attention, call.dropout, train=call.dropout > 0)
        output = attention @ value
    return tiles.from_batch(output), (query_rest, key_rest, value_rest)


def _fused(
    call: AttentionCall, tiles: _Tiles, query: Tree, key: Tree, value: Tensor
) -> Tensor | None:
    """Attend by torch's fused kernel with a mask, or give None where it does not serve."""
    if not isinstance(query, Tensor) or not _suits_the_kernel(call):
        return None
    mask = tiles.mask(call)
    assert call.dot_form is not None
    assert isinstance(call.normalizer, Softmax)
    if call.dot_form.bias:
        bias = tile_bias(call, tiles.pairs(call))
        assert bias is not None
        if bias.requires_grad:  # The kernel gives masks no gradient.
            return None
        bias = bias / call.normalizer.temperature
        mask = (bias if mask is None else bias.masked_fill(~mask, -torch.inf)).to(value.dtype)
    assert isinstance(key, Tensor)
    return scaled_dot_product_attention(
        query.to(value.dtype),
        key.to(value.dtype),
        value,
        attn_mask=mask,
        dropout_p=call.dropout,
        scale=call.dot_form.scale / call.normalizer.temperature,
    )


def _suits_the_kernel(call: AttentionCall) -> bool:
    """Say whether torch's fused kernel with a mask gives this attention.

    It adds -inf to what is no edge, which neither rows without edges nor broken keys survive.
    """
    assert isinstance(call.graph, TokenGraph)
    if not call.is_shared_out_by_softmax or call.dot_form is None or call.dot_form.query is None:
        return False
    return call.graph.every_row_has_edges and call.is_finite


def _scores(call: AttentionCall, tiles: _Tiles, query: Tree, key: Tree) -> Tensor:
    """Score tiles, -inf where there is no edge: (blocks B, H, queries, keys)."""
    scores = score_tile(call, query, key, tiles.pairs(call))
    mask = tiles.mask(call)
    if mask is not None and query is not None and not scores.requires_grad:
        # They lie in memory of their own.
        scores[..., tiles.partial].masked_fill_(~mask[..., tiles.partial], -torch.inf)
    elif mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    batch, heads = call.query.shape[:2]
    return scores.expand(tiles.blocks * batch, heads, *scores.shape[2:])


def pairs(call: AttentionCall) -> int:
    """Count the pairs on the tiles: edges, and pairs that are none."""
    assert isinstance(call.graph, TokenGraph)
    return call.graph.tile_pairs(HEIGHT)


def memory(call: AttentionCall) -> int:
    """Estimate what `run` takes besides inputs and output, in bytes."""
    block = min(_most_pairs(call, call.heads), pairs(call)) * call.heads
    return (3 * block + 4 * PIECE_NUMBERS) * max(call.query.element_size(), 4)


def row_blocks(call: AttentionCall) -> Iterator[RowBlock]:
    """Walk whole rows of attention, in memory that does not grow with their number."""
    keep_freed_memory()
    operands = _laid_out(call)
    for tiles in _plan(call, _most_pairs(call, call.heads), batched=False):
        yield _row_block(call, tiles, operands)


def row_block(call: AttentionCall, rows: slice, columns: Keys, allowed: Tensor) -> RowBlock:
    """Compute some whole rows, given the keys that hold all their edges."""
    return _row_block(call, _Tiles(rows, columns, allowed), call.operands)


def _row_block(call: AttentionCall, tiles: _Tiles, operands: tuple[Tree, Tree]) -> RowBlock:
    scores = _scores(call, tiles, tiles.queries(operands[0])[0], tiles.keys(operands[1])[0])
    columns, allowed = tiles.columns, tiles.allowed
    assert not isinstance(columns, Runs)
    if isinstance(columns, Tensor):
        columns, allowed = columns[0], None if allowed is None else allowed[0]
    return RowBlock(tiles.rows, columns, allowed, scores, call.normalizer(scores))


def _laid_out(call: AttentionCall) -> tuple[Tree, Tree]:
    query, key = call.operands
    if call.dot_form is not None:
        return query, key
    return map_tree(tokens_first, query), map_tree(tokens_first, key)


def _most_pairs(call: AttentionCall, width: int) -> int:
    on_device = call.query.device.type not in ("cpu", "meta")
    numbers = (DEVICE_BYTES if on_device else BLOCK_BYTES) // max(call.query.element_size(), 4)
    return max(numbers // max(width, 1), 1)


# Which queries are computed together


def _plan(call: AttentionCall, most: int, batched: bool) -> Iterator[_Tiles]:
    """Cut the graph into tiles of at most `most` pairs, where a single row is not longer."""
    graph, device = call.graph, call.query.device
    assert isinstance(graph, TokenGraph)
    waiting: list[tuple[slice, Keys]] = []
    # Pairs that are scored one by one fill the cache in pieces: a piece should be no thin strip.
    tallest = HEIGHT if call.tile_width > call.heads else graph.num_queries
    for rows, columns in _blocks(graph, most, tallest):
        if waiting and not (batched and _fits(waiting, rows, columns, most)):
            yield _tiles(graph, waiting, device)
            waiting = []
        waiting.append((rows, columns))
    if waiting:
        yield _tiles(graph, waiting, device)


def _blocks(graph: TokenGraph, most: int, tallest: int) -> Iterator[tuple[slice, Keys]]:
    """Cut the graph into blocks of rows, taller where that adds few keys."""
    start = 0
    while start < graph.num_queries:
        stop = min(start + HEIGHT, graph.num_queries)
        columns = graph.reach(slice(start, stop))
        while stop - start > 1 and (stop - start) * count_keys(columns) > most:
            stop = start + (stop - start) // 2
            columns = graph.reach(slice(start, stop))
        while stop < graph.num_queries and 2 * (stop - start) <= tallest:
            taller = min(2 * stop - start, graph.num_queries)
            more = graph.reach(slice(start, taller))
            size = count_keys(more)
            if (taller - start) * size > most or size > 1.125 * count_keys(columns):
                break
            stop, columns = taller, more
        yield slice(start, stop), columns
        start = stop


def _fits(waiting: list[tuple[slice, Keys]], rows: slice, columns: Keys, most: int) -> bool:
    """Say whether a block can be computed as one batch with those that wait.

    It should have few keys, nearly as many as they have; runs of equal length, and not one run.
    """
    height, before = rows.stop - rows.start, waiting[-1]
    if height != before[0].stop - before[0].start:
        return False
    if isinstance(columns, slice) and isinstance(before[1], slice):
        is_next = columns.start > before[1].start and count_keys(columns) == count_keys(before[1])
        if not is_next:
            return False
    sizes = [count_keys(columns), *(count_keys(keys) for _, keys in waiting)]
    covered = len(sizes) * max(sizes)
    return (
        covered * height <= most
        and max(sizes) <= _MOST_GATHERED * height
        and covered <= 1.25 * sum(sizes)
    )


def _tiles(graph: TokenGraph, blocks: list[tuple[slice, Keys]], device: torch.device) -> _Tiles:
    rows, columns = slice(blocks[0][0].start, blocks[-1][0].stop), blocks[0][1]
    if len(blocks) == 1 and isinstance(columns, slice):
        return _run_of_keys(graph, rows, columns, device)
    home = graph.device or torch.device("cpu")
    if runs := _as_runs([keys for _, keys in blocks]):
        allowed = graph.allowed(*_numbers(rows, runs, home))
        return _Tiles(rows, runs, allowed.to(device))
    sizes = torch.tensor([count_keys(keys) for _, keys in blocks], device=home)
    gathered = torch.zeros(len(blocks), int(sizes.max()), dtype=torch.long, device=home)
    for row, (_, keys) in zip(gathered, blocks, strict=True):
        row[: count_keys(keys)] = list_keys(keys, home)
    allowed = graph.allowed(*_numbers(rows, gathered, home))
    allowed &= (torch.arange(gathered.shape[1], device=home) < sizes[:, None])[:, None]
    return _Tiles(rows, gathered.to(device), allowed.to(device))


def _as_runs(blocks: list[Keys]) -> Runs | None:
    """Say of runs of one width, at even steps, where they lie; None of other keys."""
    runs = [keys for keys in blocks if isinstance(keys, slice)]
    if len(runs) < max(len(blocks), 2):
        return None
    first, width, step = runs[0].start, count_keys(runs[0]), runs[1].start - runs[0].start
    if step <= 0 or any(
        (run.start, run.stop) != (first + i * step, first + i * step + width)
        for i, run in enumerate(runs)
    ):
        return None
    return Runs(first, step, len(runs), width)


def _numbers(rows: slice, columns: Tensor | Runs, device: torch.device) -> tuple[Tensor, Tensor]:
    """List the numbers of the queries and the keys of each block."""
    if isinstance(columns, Runs):
        starts = columns.start + columns.step * torch.arange(columns.number, device=device)
        columns = starts[:, None] + torch.arange(columns.width, device=device)
    queries = torch.arange(rows.start, rows.stop, device=device)
    return queries.view(len(columns), -1), columns


def _to_batch(tokens: Tensor) -> Tensor:
    """(B, H, blocks, N, .) -> (blocks B, H, N, .)."""
    return tokens.permute(2, 0, 1, 3, 4).flatten(0, 1)


def _run_of_keys(graph: TokenGraph, rows: slice, columns: slice, device: torch.device) -> _Tiles:
    part = graph.partial_columns(rows, columns)
    if part.start >= part.stop:
        return _Tiles(rows, columns, None)
    allowed = torch.ones(
        rows.stop - rows.start, count_keys(columns), dtype=torch.bool, device=device
    )
    some = slice(columns.start + part.start, columns.start + part.stop)
    allowed[:, part] = graph.allowed(rows, some).to(device)
    return _Tiles(rows, columns, allowed, part)
