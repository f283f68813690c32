"""Engines: ways to compute the same attention, and the one place that chooses."""

from __future__ import annotations

from types import ModuleType

from gattn.engines import dense, fused
from gattn.engines.base import AttentionCall
from gattn.graph import TokenGraph
from gattn.rules import Causal, Complete


def choose(call: AttentionCall) -> ModuleType:
    """Choose the engine for a call.

    torch's fused kernel where it can; the dense formula where (nearly) all pairs are edges; else
    message passing on the edge list.
    """
    if fused.can_run(call) is None:
        return fused
    if has_tiles(call):
        return dense
    from gattn.engines import message_passing

    return message_passing


def has_tiles(call: AttentionCall) -> bool:
    """Say whether the dense formula serves: (nearly) all pairs of the graph are edges."""
    graph = call.graph
    full = isinstance(graph, TokenGraph) and isinstance(graph.rule, (Complete, Causal))
    return full and dense.can_run(call) is None
