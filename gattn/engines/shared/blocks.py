"""Which queries are computed together, and the keys that they reach."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gattn.caching import cached_function
from gattn.engines.call import AttentionCall
from gattn.engines.shared.tiling import partial_columns, tile_pairs
from gattn.engines.tensors.memory import Runs, take
from gattn.engines.tensors.moving import moved
from gattn.graph.rules.keys import Keys, count_keys, list_keys
from gattn.graph.token_graph import TokenGraph
from gattn.graph.walking import reach
from gattn.weights.base import Tree, map_tree
from gattn.weights.pairs import Pairs

HEIGHT = 64
"""How many queries a block has at first; more if that adds few keys."""

_MOST_GATHERED = 16

_KEPT_PAIRS, _KEPT_ON_DEVICE = 1 << 22, 1 << 26  # plans with no larger masks stay with their graph
_KEPT_PLANS = 2


@dataclass(frozen=True)
class Tiles:
    """A block of queries and the keys that they reach, or several such blocks of one shape.

    The keys are a run, overlapping runs, or indices (blocks, keys) to gather. `allowed` is
    (queries, keys) or (blocks, queries, keys), None if every pair is an edge; a key outside
    `partial` is an edge of every query.
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
        """Take the queries, one block per element of the batch."""
        some, rest = take(tokens, self.rows)
        if not isinstance(self.columns, slice):
            some = map_tree(lambda x: _to_batch(x.unflatten(2, (self.blocks, -1))), some)
        return some, rest

    def keys(self, tokens: Tree) -> tuple[Tree, Tree]:
        """Take the keys, one block per element of the batch."""
        columns = self.columns
        if isinstance(columns, slice):
            return take(tokens, columns)
        if isinstance(columns, Runs):
            some, rest = take(tokens, columns)
            return map_tree(_to_batch, some), rest
        some, rest = take(tokens, columns.flatten())
        return map_tree(lambda x: _to_batch(x.unflatten(2, columns.shape)), some), rest

    def from_batch(self, output: Tensor) -> Tensor:
        """Bring outputs, one block per element of the batch, back to (B, H, rows, .)."""
        if isinstance(self.columns, slice):
            return output
        parts: Tensor = output.unflatten(0, (self.blocks, -1))
        return parts.permute(1, 2, 0, 3, 4).flatten(2, 3)

    def pairs(self, call: AttentionCall) -> Pairs:
        """Describe the pairs."""
        positions, features = call.positions, call.edge_features
        if isinstance(self.columns, slice):
            if features is not None:
                features = features[self.rows, self.columns]
            query, key = positions.query[self.rows], positions.key[self.columns]
            return Pairs(query[:, None, None], key[None, :, None], features)
        rows, columns = _tokens_of(self.rows, self.columns, positions.key.device)
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
        """Return `allowed` so that it broadcasts against scores (blocks B, H, queries, keys)."""
        allowed = self.allowed
        if allowed is None or allowed.dim() == 2:
            return allowed
        return allowed.repeat_interleave(len(call.query), dim=0)[:, None]


def plan(
    graph: TokenGraph, most: int, device: torch.device, *, single: bool = False
) -> Iterable[Tiles]:
    """Cut a graph into tiles; small plans stay with the graph, their masks on the device.

    Parameters
    ----------
    graph : TokenGraph
        Who may attend to whom.
    most : int
        How many pairs are computed at once, unless a single row is longer.
    device : torch.device
        Where the tensors are.
    single : bool
        Whether each tile is one block.
    """
    graph = graph.on_host
    if tile_pairs(graph, HEIGHT) > (_KEPT_PAIRS if device.type == "cpu" else _KEPT_ON_DEVICE):
        return _planned(graph, most, device, single)
    plans, asked = _plans_of(graph), (most, device, HEIGHT, single)
    if asked not in plans:
        if len(plans) >= _KEPT_PLANS:
            plans.clear()
        with torch.inference_mode(False):
            plans[asked] = tuple(_planned(graph, most, device, single))
    return plans[asked]


@cached_function
def _plans_of(graph: TokenGraph) -> dict[tuple[int, torch.device, int, bool], tuple[Tiles, ...]]:
    return {}


def _planned(graph: TokenGraph, most: int, device: torch.device, single: bool) -> Iterator[Tiles]:
    waiting: list[tuple[slice, Keys]] = []
    widest = total = 0
    for rows, columns in _blocks(graph, most):
        size = count_keys(columns)
        covered = (len(waiting) + 1) * max(widest, size)
        are_few = covered * (rows.stop - rows.start) <= most and covered <= 1.25 * (total + size)
        if waiting and (single or not (are_few and _are_alike(waiting[-1], (rows, columns)))):
            yield _tiles(graph, waiting, device)
            waiting, widest, total = [], 0, 0
        waiting.append((rows, columns))
        widest, total = max(widest, size), total + size
    if waiting:
        yield _tiles(graph, waiting, device)


def _blocks(graph: TokenGraph, most: int) -> Iterator[tuple[slice, Keys]]:
    """Cut the graph into blocks of rows, taller if that adds few keys."""
    start = 0
    while start < graph.num_queries:
        stop = min(start + HEIGHT, graph.num_queries)
        columns = reach(graph, slice(start, stop))
        while stop - start > 1 and (stop - start) * count_keys(columns) > most:
            stop = start + (stop - start) // 2
            columns = reach(graph, slice(start, stop))
        while stop < graph.num_queries:
            taller = min(2 * stop - start, graph.num_queries)
            more = reach(graph, slice(start, taller))
            size = count_keys(more)
            if (taller - start) * size > most or size > 1.125 * count_keys(columns):
                break
            stop, columns = taller, more
        yield slice(start, stop), columns
        start = stop


def _are_alike(block: tuple[slice, Keys], other: tuple[slice, Keys]) -> bool:
    """Return whether consecutive blocks suit one batch.

    They have equally many queries and few keys; runs of keys are equally long, but not the same.
    """
    (rows, columns), (more_rows, more) = block, other
    height = rows.stop - rows.start
    if height != more_rows.stop - more_rows.start or count_keys(more) > _MOST_GATHERED * height:
        return False
    if isinstance(columns, slice) and isinstance(more, slice):
        return more.start > columns.start and count_keys(columns) == count_keys(more)
    return True


def _tiles(graph: TokenGraph, blocks: list[tuple[slice, Keys]], device: torch.device) -> Tiles:
    rows, columns = slice(blocks[0][0].start, blocks[-1][0].stop), blocks[0][1]
    if len(blocks) == 1 and isinstance(columns, slice):
        return _run_of_keys(graph, rows, columns, device)
    home = torch.device("cpu")
    if runs := _as_runs([keys for _, keys in blocks]):
        allowed = graph.allowed(*_tokens_of(rows, runs, home))
        return Tiles(rows, runs, moved(allowed, device))
    sizes = torch.tensor([count_keys(keys) for _, keys in blocks], device=home)
    gathered = torch.zeros(len(blocks), int(sizes.max()), dtype=torch.long, device=home)
    for row, (_, keys) in zip(gathered, blocks, strict=True):
        row[: count_keys(keys)] = list_keys(keys, home)
    allowed = graph.allowed(*_tokens_of(rows, gathered, home))
    allowed &= (torch.arange(gathered.shape[1], device=home) < sizes[:, None])[:, None]
    gathered, allowed = (moved(x, device) for x in (gathered, allowed))
    return Tiles(rows, gathered, allowed)


def _as_runs(blocks: list[Keys]) -> Runs | None:
    """Describe keys that are runs of one width at even steps; give None for others."""
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


def _tokens_of(rows: slice, columns: Tensor | Runs, device: torch.device) -> tuple[Tensor, Tensor]:
    """List the queries and the keys of each block by number."""
    if isinstance(columns, Runs):
        starts = columns.start + columns.step * torch.arange(columns.number, device=device)
        columns = starts[:, None] + torch.arange(columns.width, device=device)
    queries = torch.arange(rows.start, rows.stop, device=device)
    return queries.view(len(columns), -1), columns


def _to_batch(tokens: Tensor) -> Tensor:
    """(B, H, blocks, N, .) -> (blocks B, H, N, .)."""
    return tokens.permute(2, 0, 1, 3, 4).flatten(0, 1)


def _run_of_keys(graph: TokenGraph, rows: slice, columns: slice, device: torch.device) -> Tiles:
    part = partial_columns(graph, rows, columns)
    if part.start >= part.stop:
        return Tiles(rows, columns, None)
    allowed = torch.ones(
        rows.stop - rows.start, count_keys(columns), dtype=torch.bool, device=device
    )
    some = slice(columns.start + part.start, columns.start + part.stop)
    allowed[:, part] = moved(graph.allowed(rows, some), device)
    return Tiles(rows, columns, allowed, part)
