"""Kept edges straight from kernels: no row of scores is ever in memory."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from gattn.engines.kernels import mask_tiles, scores
from gattn.engines.kernels.scores import kernel_score
from gattn.graph.token_graph import TokenGraph
from gattn.keep import Keep, Threshold, TopK

if TYPE_CHECKING:
    from gattn.engines.call import AttentionCall

MOST_SLOTS = 128
"""The most edges of a query that a kernel holds while it looks for the largest."""

_ROWS = 64  # of a program
_LAUNCH = {"num_warps": 4, "num_stages": 3}
_LEAST_DIM = 16  # of a product in a kernel
_MOST_BOUNDED = 32
"""The most edges of a query that are bounded by the largest scores of groups of keys."""

_MOST_KEYS = (1 << 31) // _ROWS  # numbers of 32 bits count a program's edges
_ROOM = 16  # at the least, for a row's list
_ROWS_AT_ONCE = 1 << 16
_LAST_KEY = 0x7FFFFFFF
_LOWEST = -(1 << 62)
_VANISHES = 60.0  # e to the minus this is far from the least number of float32
_ROUNDING = 1e-4


class EmittedEdges(NamedTuple):
    """The kept edges of all queries, head after head, sorted by query, then key.

    `mass` and `degree` are (B, H, Q): the attention of all edges, and how many are kept; `key`
    (edges,) int32 and `attention` (edges,) float32.
    """

    mass: Tensor
    degree: Tensor
    key: Tensor
    attention: Tensor

    def elements(self) -> Iterator[EmittedEdges]:
        """Take those of each element of the batch: mass and degree are (H, Q)."""
        sizes = self.degree.flatten(1).sum(1).tolist()
        lists = (edges.split(sizes) for edges in (self.key, self.attention))
        return map(EmittedEdges, self.mass, self.degree, *lists)


def can_emit(call: AttentionCall, keep: Keep) -> str | None:
    """Return why kernels cannot emit the edges that `keep` keeps, or None if they can."""
    if find_spec("triton") is None:
        return "Triton is not installed"
    if not isinstance(call.graph, TokenGraph):
        return "a plain edge_index has no tiles"
    if call.query.dtype == torch.float64:
        return "its kernels know no float64"
    if type(keep) is TopK:
        if min(keep.k, call.graph.num_keys) > MOST_SLOTS:
            return f"it keeps more than {MOST_SLOTS} edges of a query"
    elif type(keep) is Threshold and call.graph.num_keys > _MOST_KEYS:
        return f"a query has more than {_MOST_KEYS:,} keys"
    elif type(keep) is not Threshold:
        return f"{keep} is neither a Threshold nor a TopK"
    return scores.why_not(call) or mask_tiles.why_not(call.graph)


@torch.no_grad()
def emit(call: AttentionCall, keep: Keep) -> EmittedEdges:
    """Compute the edges of a call for which `can_emit` gives None."""
    passes = _Passes(call)
    most = min(keep.k, passes.keys) if isinstance(keep, TopK) else 0
    bound = passes.sum_up(most)
    mass = passes.share_out(scores.sink_logits(call))
    if most:
        return EmittedEdges(mass, *passes.largest(most, bound))
    assert isinstance(keep, Threshold)
    return EmittedEdges(mass, *passes.at_least(keep.t))


class _Passes:
    """Passes over the scores of a call; they share what each row's powers sum up to."""

    def __init__(self, call: AttentionCall) -> None:
        score = kernel_score(call)
        graph = call.token_graph
        self.shape = call.query.shape[:3]
        self.rows = self.shape.numel()
        self.keys, self.device = graph.num_keys, call.query.device
        heads, width = call.query.shape[1], score.query.shape[-1]
        query, key = (side.flatten(0, 1).contiguous() for side in (score.query, score.key))
        tables = [None if x is None else x.contiguous() for x in (score.inside, score.outside)]
        tiles = mask_tiles.mask_tiles(graph, self.device)
        self.given = (
            query, key, score.scale, tables[0], score.cap, tables[1], *tiles,
            graph.num_queries, graph.num_keys, width, heads,
        )  # fmt: skip
        self.top, self.total = self._per_row(), self._per_row()
        is_quick = torch.backends.cuda.matmul.allow_tf32
        self.options = {
            "ROWS": _ROWS,
            "WIDTH": max(_power_of_two(width), _LEAST_DIM),
            "SIZE": mask_tiles.SIZE,
            "WORD": mask_tiles.WORD,
            "PRECISION": "tf32" if is_quick else "ieee",
        }

    def sum_up(self, most: int) -> Tensor:
        """Sum up the powers of each row; give what at least `most` of its scores reach, or -inf."""
        bound = torch.full(self.shape, -torch.inf, device=self.device)
        groups = 0 if not 0 < most <= _MOST_BOUNDED else 32 if most <= 16 else 64
        self._run("sums", self.top, self.total, most, bound, GROUPS=groups)
        return bound

    def share_out(self, sink: Tensor | None) -> Tensor:
        """Add each row's sink to its sum; give the share of the row's edges."""
        own = self.total
        if sink is not None:
            largest = torch.maximum(self.top, sink)
            own = self.total * torch.exp(self.top - largest)
            self.top, self.total = largest, own + torch.exp(sink - largest)
        mass = torch.where(self.total == 0, 0.0, own / self.total)
        self.top = self.top.masked_fill(self.top == -torch.inf, 0.0)
        self.total = self.total.masked_fill(self.total == 0, 1.0)
        return mass

    def at_least(self, least: float) -> tuple[Tensor, Tensor, Tensor]:
        """Find edges with attention of at least `least`: degrees, keys and attention."""
        floor = self._floor(self.top + torch.log((least * self.total).clamp_min(1e-37)))
        start = self._evenly(_ROOM)
        count, key, score = self._collect(floor, start, _ROOM * self.rows)
        if int(count.max()) > _ROOM:
            start = torch.cat([start[:1], count.cumsum(0)])
            count, key, score = self._collect(floor, start, int(start[-1]))
        row = torch.repeat_interleave(count.long())
        before = count.cumsum(0) - count
        place = torch.arange(len(row), device=self.device) + (start[:-1] - before)[row]
        key, score = key[place], score[place]
        attention = self._shared(score, row)
        kept = attention >= least
        row, attention = row[kept], attention[kept]
        code, order = (row * self.keys + key[kept]).sort()  # a row's edges come in any order
        degree = torch.zeros_like(count).index_add_(0, row, torch.ones_like(key[kept]))
        return degree.view(self.shape), (code % self.keys).int(), attention[order]

    def largest(self, most: int, bound: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Find the `most` largest edges of each row: degrees, keys and attention."""
        floor, room = self._floor(bound), max(_ROOM, _power_of_two(4 * most))
        if most > _MOST_BOUNDED:
            key, attention = self._by_slots(
                most, floor, self.top.new_ones(self.rows, dtype=torch.int32)
            )
        else:
            count, key, score = self._collect(floor, self._evenly(room), room * self.rows)
            key, attention = self._of_lists(most, room, count, key, score)
            is_crowded = count > room
            if bool(is_crowded.any()):
                others = self._by_slots(most, floor, is_crowded.int())
                key = torch.where(is_crowded[:, None], others[0], key)
                attention = torch.where(is_crowded[:, None], others[1], attention)
        key, order = key.sort(dim=-1)
        is_edge = key >= 0
        degree = is_edge.sum(-1, dtype=torch.int32)
        return degree.view(self.shape), key[is_edge], attention.gather(-1, order)[is_edge]

    def _of_lists(
        self, most: int, room: int, count: Tensor, key: Tensor, score: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Take the largest of each row's list: keys, -1 where there is none, and attention.

        Attention and key of an edge are one number: attention, which is not negative, orders as its
        bits do, and comes first; among equals the smaller key is the larger number.
        """
        found = []
        slots = torch.arange(room, device=self.device)
        for first in range(0, self.rows, _ROWS_AT_ONCE):
            some = slice(first, min(first + _ROWS_AT_ONCE, self.rows))
            rows = torch.arange(some.start, some.stop, device=self.device)
            attention = self._shared(score.view(-1, room)[some], rows[:, None])
            code = attention.view(torch.int32).long().bitwise_left_shift_(32)
            code.bitwise_or_(_LAST_KEY - key.view(-1, room)[some])
            code.masked_fill_(slots >= count[some, None], -1)
            found.append(code.sort(dim=-1, descending=True).values[:, :most])
        best = torch.cat(found)
        is_edge = best >= 0
        key = torch.where(is_edge, _LAST_KEY - (best & 0xFFFFFFFF), -1).int()
        return key, (best >> 32).int().view(torch.float32)

    def _by_slots(self, most: int, floor: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
        """Do the same for wanted rows by a pass that holds each row's largest.

        It takes longer, however few candidates there are, but needs no room for any.
        """
        key = torch.empty(self.rows, most, dtype=torch.int32, device=self.device)
        attention = torch.empty_like(key, dtype=torch.float32)
        options = {"SLOTS": _power_of_two(most), "LOWEST": _LOWEST}
        self._run("largest", self.top, self.total, most, floor, wanted, key, attention, **options)
        return key, attention

    def _collect(self, floor: Tensor, start: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
        """List the edges of each row that reach its floor, as far as there is room."""
        count = torch.zeros(self.rows, dtype=torch.int32, device=self.device)
        key = torch.empty(size, dtype=torch.int32, device=self.device)
        score = torch.empty_like(key, dtype=torch.float32)
        # The interpreter and other makers' GPUs know no PTX.
        is_nvidia = self.device.type == "cuda" and torch.version.hip is None
        self._run("collect", floor, start, count, key, score, IN_PTX=is_nvidia)
        return count, key, score

    def _evenly(self, room: int) -> Tensor:
        """Give each row's list the same room."""
        return torch.arange(self.rows + 1, device=self.device) * room

    def _floor(self, score: Tensor) -> Tensor:
        """Lower scores by more than rounding adds: nothing below them is kept.

        Scores so far below a row's largest that their attention may be 0 are all equal. The passes
        compute a score in the same way, so that they round it alike.
        """
        score = score.masked_fill(score <= self.top - _VANISHES, -torch.inf)
        return score - _ROUNDING * torch.maximum(score.abs(), self.top.abs()).clamp_min(1)

    def _shared(self, score: Tensor, row: Tensor) -> Tensor:
        """Turn scores of rows into attention."""
        return torch.exp(score - self.top.view(-1)[row]) / self.total.view(-1)[row]

    def _per_row(self) -> Tensor:
        return torch.empty(self.shape, dtype=torch.float32, device=self.device)

    def _run(self, name: str, *more: Any, **options: Any) -> None:
        from gattn.engines.kernels import passes

        batch, heads, queries = self.shape
        grid = -(-queries // _ROWS), batch * heads
        with torch.cuda.device_of(self.top):
            getattr(passes, name)[grid](*self.given, *more, **self.options, **options, **_LAUNCH)


def _power_of_two(number: int) -> int:
    return 1 << (max(number, 1) - 1).bit_length()
