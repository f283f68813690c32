"""Who may attend to whom, as kernels read it: tiles of queries and keys, and bits of some."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gattn.caching import cached_function
from gattn.graph.rules.keys import list_keys, ranges
from gattn.graph.token_graph import TokenGraph
from gattn.graph.walking import reach

SIZE = 128
"""How many queries, and how many keys, a tile has."""

WORD = 64
"""How many pairs of a row of a tile are the bits of one word."""

MOST_BYTES = 1 << 30
"""The most memory for bits; a graph whose edges are everywhere needs one for each pair."""

NONE, ALL = 0, 1
"""The bits of a tile without edges, and of one whose pairs all are edges."""

_AT_ONCE = 1 << 22  # pairs


class MaskTiles(NamedTuple):
    """The tiles of a token graph that hold edges, row after row of tiles, by rising key.

    The tiles of row r are those from `pointer[r]` up to `pointer[r + 1]`; `column` says which keys
    each holds, and `bits` which of the `words`, (any, SIZE, SIZE / WORD), are its edges: int64,
    the lowest bit first. All are on the device of the tensors.
    """

    pointer: Tensor
    column: Tensor
    bits: Tensor
    words: Tensor

    @property
    def rows(self) -> int:
        """How many rows of tiles there are."""
        return len(self.pointer) - 1


@cached_function
def why_not(graph: TokenGraph) -> str | None:
    """Return why a graph has no tiles, or None if it has."""
    if not graph.num_queries or not graph.num_keys:
        return "there are no pairs"
    size = int((~_reached(graph.on_host)[2]).sum()) * SIZE * SIZE // 8
    return f"its masks may take {size >> 20:,} MiB" if size > MOST_BYTES else None


@cached_function
@torch.inference_mode(mode=False)  # what is remembered serves gradients, too
def mask_tiles(graph: TokenGraph, device: torch.device) -> MaskTiles:
    """Find the tiles of a graph, once for each device."""
    row, column, is_full = (x.to(device) for x in _reached(graph.on_host))
    bits = torch.full_like(row, ALL)
    words, count = [_constant(0, device), _constant(-1, device)], 2
    for some in (~is_full).nonzero()[:, 0].split(_AT_ONCE // SIZE**2):
        found = _words(graph, row[some], column[some])
        is_none, is_all = ((found == word).flatten(1).all(1) for word in (0, -1))
        mixed = ~(is_none | is_all)
        words.append(found[mixed])
        bits[some] = torch.where(is_none, NONE, bits[some])
        bits[some[mixed]] = torch.arange(count, count + len(words[-1]), device=device)
        count += len(words[-1])
    there = bits != NONE
    row, column, bits = row[there], column[there].int(), bits[there].int()
    ends = torch.arange(_count(graph.num_queries) + 1, device=device)
    return MaskTiles(torch.searchsorted(row, ends).int(), column, bits, torch.cat(words))


def _reached(graph: TokenGraph) -> tuple[Tensor, Tensor, Tensor]:
    """List tiles that may hold edges, and say of which it is known that all pairs are edges.

    Rows of tiles, rising; columns, rising in each row; booleans.
    """
    start = torch.arange(0, graph.num_queries, SIZE, device="cpu")
    stop = (start + SIZE).clamp_max(graph.num_queries)
    first = graph.rule.interval(start + graph.query_offset)
    last = graph.rule.interval(stop - 1 + graph.query_offset)
    if first is None or last is None:
        return _reached_in_turn(graph)
    # The ends of intervals never fall, so the first and the last query bound all others.
    low, high, all_low, all_high = (
        ends.clamp(0, graph.num_keys) for ends in (first[0], last[1], last[0], first[1])
    )
    low, high = low // SIZE, torch.where(low < high, (high + SIZE - 1) // SIZE, low // SIZE)
    column, row = ranges(low, high), torch.repeat_interleave(high - low)
    is_full = (column * SIZE >= all_low[row]) & ((column + 1) * SIZE <= all_high[row])
    return row, column, is_full & (stop - start == SIZE)[row]


def _reached_in_turn(graph: TokenGraph) -> tuple[Tensor, Tensor, Tensor]:
    rows, columns = [], []
    for start in range(0, graph.num_queries, SIZE):
        keys = reach(graph, slice(start, min(start + SIZE, graph.num_queries)))
        if isinstance(keys, slice):
            keys = slice(keys.start // SIZE, _count(keys.stop) if keys.stop > keys.start else 0)
            column = list_keys(keys)
        else:
            column = torch.unique(keys // SIZE)
        rows.append(torch.full_like(column, start // SIZE))
        columns.append(column)
    row, column = torch.cat(rows), torch.cat(columns)
    return row, column, torch.zeros_like(row, dtype=torch.bool)


def _words(graph: TokenGraph, row: Tensor, column: Tensor) -> Tensor:
    """Find the bits of tiles: (tiles,), (tiles,) -> (tiles, SIZE, SIZE / WORD)."""
    inside = torch.arange(SIZE, device=row.device)
    query, key = (tile[:, None] * SIZE + inside for tile in (row, column))
    known = (query < graph.num_queries)[:, :, None] & (key < graph.num_keys)[:, None]
    query, key = query.clamp_max(graph.num_queries - 1), key.clamp_max(graph.num_keys - 1)
    allowed = (graph.allowed(query, key) & known).unflatten(-1, (-1, WORD))
    shift = torch.arange(WORD, device=row.device)
    words: Tensor = (allowed.long() << shift).sum(-1)
    return words


def _constant(word: int, device: torch.device) -> Tensor:
    return torch.full((1, SIZE, SIZE // WORD), word, dtype=torch.long, device=device)


def _count(tokens: int) -> int:
    return -(-tokens // SIZE)
