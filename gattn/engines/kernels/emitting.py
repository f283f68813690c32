"""Kept edges straight from kernels: no row of scores is ever in memory."""

from __future__ import annotations

import math
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
_MOST_BOUNDED = 32  # edges of a query for which a bound is worth its time
_LOWEST = -(1 << 62)


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
    elif type(keep) is not Threshold:
        return f"{keep} is neither a Threshold nor a TopK"
    return scores.why_not(call) or mask_tiles.why_not(call.graph)


@torch.no_grad()
def emit(call: AttentionCall, keep: Keep) -> EmittedEdges:
    """Compute the edges of a call for which `can_emit` gives None."""
    passes = _Passes(call)
    mass = passes.share_out(scores.sink_logits(call), keep)
    if isinstance(keep, TopK):
        return EmittedEdges(mass, *passes.largest(keep.k))
    assert isinstance(keep, Threshold)
    return EmittedEdges(mass, *passes.at_least(keep.t))


class _Passes:
    """Passes over the scores of a call; they share what each row's powers sum up to."""

    def __init__(self, call: AttentionCall) -> None:
        score = kernel_score(call)
        graph = call.token_graph
        self.shape = call.query.shape[:3]
        self.keys, self.device = graph.num_keys, call.query.device
        heads, width = call.query.shape[1], score.query.shape[-1]
        query, key = (side.flatten(0, 1).contiguous() for side in (score.query, score.key))
        tables = [None if x is None else x.contiguous() for x in (score.inside, score.outside)]
        tiles = mask_tiles.mask_tiles(graph, self.device)
        self.given = (
            query, key, score.scale, tables[0], score.cap, tables[1], *tiles,
            graph.num_queries, graph.num_keys, width, heads,
        )  # fmt: skip
        self.top, self.total = self._per_row(torch.float32), self._per_row(torch.float32)
        is_quick = torch.backends.cuda.matmul.allow_tf32
        self.options = {
            "ROWS": _ROWS,
            "WIDTH": max(_power_of_two(width), _LEAST_DIM),
            "SIZE": mask_tiles.SIZE,
            "WORD": mask_tiles.WORD,
            "PRECISION": "tf32" if is_quick else "ieee",
        }

    def share_out(self, sink: Tensor | None, keep: Keep) -> Tensor:
        """Sum up the powers of each row and of its sink; give the share of the row's edges."""
        most = min(keep.k, self.keys) if isinstance(keep, TopK) else 0
        slots = _power_of_two(most) if 0 < most <= _MOST_BOUNDED else 0
        self.bound = self._per_row(torch.float32) if slots else None
        self._run("sums", self.top, self.total, most, self.bound, SLOTS=slots)
        own = self.total
        if sink is not None:
            largest = torch.maximum(self.top, sink)
            own = self.total * torch.exp(self.top - largest)
            self.top, self.total = largest, own + torch.exp(sink - largest)
        return torch.where(self.total == 0, 0.0, own / self.total)

    def at_least(self, least: float) -> tuple[Tensor, Tensor, Tensor]:
        """Find edges with attention of at least `least`: degrees, keys and attention."""
        degree = self._per_row(torch.int32)
        reached = torch.empty(2 * math.prod(self.grid), dtype=torch.int32, device=self.device)
        self._run("count", self.top, self.total, least, degree, reached)
        stop = degree.flatten().cumsum(0)
        start = stop - degree.flatten()
        key, attention = self._lists(int(stop[-1]))
        self._run("write", self.top, self.total, least, start, reached, key, attention)
        return degree, key, attention

    def largest(self, most: int) -> tuple[Tensor, Tensor, Tensor]:
        """Find the `most` largest edges of each row: degrees, keys and attention."""
        most = min(most, self.keys)
        key, attention = (x.view(*self.shape, most) for x in self._lists(self.top.numel() * most))
        options = {"SLOTS": _power_of_two(most), "LOWEST": _LOWEST}
        self._run("largest", self.top, self.total, most, self.bound, key, attention, **options)
        key, order = key.sort(dim=-1)
        is_edge = key >= 0
        degree = is_edge.sum(-1, dtype=torch.int32)
        return degree, key[is_edge], attention.gather(-1, order)[is_edge]

    def _lists(self, size: int) -> tuple[Tensor, Tensor]:
        key = torch.empty(size, dtype=torch.int32, device=self.device)
        return key, torch.empty(size, dtype=torch.float32, device=self.device)

    def _per_row(self, dtype: torch.dtype) -> Tensor:
        return torch.empty(self.shape, dtype=dtype, device=self.device)

    @property
    def grid(self) -> tuple[int, int]:
        batch, heads, queries = self.shape
        return -(-queries // _ROWS), batch * heads

    def _run(self, name: str, *more: Any, **options: int) -> None:
        from gattn.engines.kernels import passes

        with torch.cuda.device_of(self.top):
            kernel = getattr(passes, name)[self.grid]
            kernel(*self.given, *more, **self.options, **options, **_LAUNCH)


def _power_of_two(number: int) -> int:
    return 1 << (max(number, 1) - 1).bit_length()
