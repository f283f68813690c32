"""The one place that chooses how attention is computed."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from gattn.engines import blocks, edges, fused, tiles
from gattn.engines.base import AttentionCall
from gattn.errors import ContractError

NAMES = ("fused", "tiles", "edges", "message_passing")


def choose(call: AttentionCall) -> ModuleType:
    """Choose the engine for a call.

    torch's fused kernel where it can; tiles where enough of the pairs on them are edges, or a
    single one holds all; else the edges by themselves.
    """
    if fused.can_run(call) is None:
        return fused
    return edges if tiles_waste(call) else tiles


def choose_for_graphs(call: AttentionCall, name: str | None = None) -> ModuleType:
    """Choose the engine that gives each edge's attention: tiles or edges.

    Raises
    ------
    ContractError
        Where another is named, or one that cannot run this.
    """
    if name is None:
        return edges if tiles_waste(call) else tiles
    engine = named(name, call)
    if engine not in (tiles, edges):
        raise ContractError(
            f"The engine {name} gives outputs alone; attention graphs take tiles or edges."
        )
    return engine


def tiles_waste(call: AttentionCall) -> str | None:
    """Say why tiles do not serve, or None where they do: they hold few pairs that are no edges."""
    if reason := tiles.can_run(call):
        return reason
    pairs, num_edges = tiles.pairs(call), call.graph.num_edges
    if pairs > max(pairs_worth_an_edge(call) * num_edges, blocks.HEIGHT**2):
        return f"they hold {pairs:,} pairs for {num_edges:,} edges"
    return None


def pairs_worth_an_edge(call: AttentionCall) -> float:
    """Say how many pairs on tiles take about as long as an edge by itself (as measured)."""
    if call.is_scored_pair_by_pair:
        return 1.5
    return 3.5 if call.wants_gradient else 3.0


def named(name: str, call: AttentionCall) -> ModuleType:
    """Take an engine by name.

    Raises
    ------
    ContractError
        Where there is none of that name, or it cannot run this call.
    """
    if name not in NAMES:
        raise ContractError(f"engine must be one of {', '.join(NAMES)}, not {name!r}.")
    engine = import_module(f"gattn.engines.{name}")
    if reason := engine.can_run(call):
        raise ContractError(
            f"The engine {name} cannot run this: {reason}. Leave engine out and gattn chooses "
            f"{choose(call).__name__.rpartition('.')[2]}."
        )
    return engine
