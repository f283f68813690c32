"""Bounds on what dropped edges can have had."""

from __future__ import annotations

from decimal import ROUND_CEILING, Context

import numpy as np
import torch
from torch import Tensor

from gattn.analysis.reading.layers import Layers
from gattn.heads.head import AttentionGraph, Floats
from gattn.heads.steps import Merged, NoSelfLoops, Step
from gattn.keep import All, Keep, Threshold, TopK, TopMass


def largest_dropped(layers: Layers, *, self_loops: bool = False) -> Floats:
    """Bound each head's largest dropped attention, (layers, heads); 0 for arrays.

    A dropped edge has less than a `Threshold` asked for, at most as much as the weakest edge of its
    row that a `TopK` or `TopMass` kept, and at most all the attention that its row lost.

    Self-loops that were dropped on purpose do not count unless `self_loops`.
    """
    if not layers.graphs:
        return np.zeros((len(layers), len(layers.heads)))
    return np.array([[_largest(head, self_loops) for head in heads] for heads in layers.graphs])


def edge_errors(layers: Layers) -> Tensor:
    """Bound how much attention an edge of each query may lack, (layers, heads, queries)."""
    dropped = layers.dropped.cpu()
    largest = largest_dropped(layers, self_loops=True)
    return torch.minimum(dropped, torch.from_numpy(largest).to(dropped)[..., None])


def reads_later(layers: Layers) -> bool | None:
    """Return whether tokens attend to later ones; None if only dropped edges could.

    Which keys were dropped is not known, but how many: a token with more edges than tokens up to it
    had a later one, and one with exactly as many is assumed to be causal.
    """
    if not layers.graphs:
        return any(bool(layers.read(n).triu(1).any()) for n in range(len(layers)))
    found: list[bool | None] = [_reads_later(h) for heads in layers.graphs for h in heads]
    return True if True in found else None if None in found else False


def _reads_later(head: AttentionGraph) -> bool | None:
    if head.attention[head.key > head.query].any():
        return True
    if not _largest(head, self_loops=False):
        return False
    if any(isinstance(step, Merged) for step in head.kept_by):
        return None
    seen = head.node_positions + 1
    if (head.total_edges > seen).any():
        return True
    return None if (head.total_edges < seen)[head.dropped_edges > 0].any() else False


def at_most(bound: float) -> str:
    """Write a bound in two digits, rounded up."""
    return f"{float(Context(2, ROUND_CEILING).create_decimal(repr(float(bound)))):g}"


def _largest(head: AttentionGraph, self_loops: bool) -> float:
    lost = (head.dropped_edges > 0) * np.maximum(head.total_mass - head.kept_mass, 0)
    if not lost.any():
        return 0.0
    limits = [_limit(head, step, self_loops) for step in head.kept_by]
    return float(np.minimum(lost, np.max(limits, axis=0)).max())


def _limit(head: AttentionGraph, step: Keep | Step, self_loops: bool) -> Floats:
    """Bound the dropped edges of each row, as one step allows."""
    rows = head.graph.num_queries
    if isinstance(step, All) or (isinstance(step, NoSelfLoops) and not self_loops):
        return np.zeros(rows)
    if isinstance(step, Threshold):
        return np.full(rows, np.nextafter(float(step.t), 0))
    limit = np.full(rows, np.inf)
    if isinstance(step, TopK | TopMass):
        np.minimum.at(limit, head.query, head.attention)
    return limit
