"""The one place that chooses an engine, and that says why."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from torch import Tensor

from gattn.engines import edges, fused, tiles
from gattn.engines.call import AttentionCall, attention_call, naming_shapes
from gattn.engines.kernels.emitting import can_emit
from gattn.engines.shared import blocks
from gattn.errors import ContractError
from gattn.graph.token_graph import TokenGraph
from gattn.keep import Keep, TopK
from gattn.normalizers import Normalizer
from gattn.weights.base import PairFunction, WeightFunction

NAMES = ("fused", "tiles", "edges", "flex", "message_passing")

KERNELS_ON = ("cuda",)
"""The devices on which gattn's own kernels are chosen."""


def choose(call: AttentionCall) -> ModuleType:
    """Choose the engine for a call.

    torch's fused kernel if it can; tiles if enough of the pairs on them are edges, or a single
    tile holds them all; else edges. Flex attention runs where it is named: that it is faster is
    not measured yet.

    Parameters
    ----------
    call : AttentionCall
        The inputs, checked.

    Returns
    -------
    module
        The engine.
    """
    if fused.can_run(call) is None:
        return fused
    return edges if tiles_waste(call) else tiles


def choose_for_graphs(call: AttentionCall, name: str | None = None) -> ModuleType:
    """Choose the engine that gives each edge's attention: tiles or edges.

    Parameters
    ----------
    call : AttentionCall
        The inputs, checked.
    name : {"tiles", "edges"}, optional
        Which; by default the faster one.

    Returns
    -------
    module
        The engine.

    Raises
    ------
    ContractError
        If another is named, or one that cannot run this call.
    """
    if name is None:
        return edges if tiles_waste(call) else tiles
    engine = named(name, call)
    if engine not in (tiles, edges):
        raise ContractError(
            f"The engine {name} computes outputs only; attention graphs take tiles or edges."
        )
    return engine


def emits(call: AttentionCall, keep: Keep) -> bool:
    """Return whether kernels emit the edges that are kept, so that no engine walks blocks.

    Parameters
    ----------
    call : AttentionCall
        The inputs, checked.
    keep : Keep
        Which edges are kept.

    Returns
    -------
    bool
        Whether they do: on a GPU, where tiles would be chosen.
    """
    is_on = call.query.device.type in KERNELS_ON
    return is_on and can_emit(call, keep) is None and tiles_waste(call) is None


def tiles_waste(call: AttentionCall) -> str | None:
    """Return why tiles do not suit the call (too many pairs that are not edges), or None."""
    if reason := tiles.can_run(call):
        return reason
    pairs, num_edges = tiles.pairs(call), call.graph.num_edges
    if pairs <= blocks.HEIGHT**2 and not edges.scores_at_once(call):
        return None
    if pairs > pairs_worth_an_edge(call) * num_edges:
        return f"they hold {pairs:,} pairs for {num_edges:,} edges"
    return None


def pairs_worth_an_edge(call: AttentionCall) -> float:
    """Return how many pairs on tiles take as long as one edge on the edges engine (measured)."""
    if call.is_scored_pair_by_pair:
        return 1.5
    return 3.5 if call.wants_gradient else 3.0


def named(name: str, call: AttentionCall) -> ModuleType:
    """Take an engine by name.

    Parameters
    ----------
    name : str
        One of `NAMES`.
    call : AttentionCall
        The inputs, checked.

    Returns
    -------
    module
        The engine.

    Raises
    ------
    ContractError
        If there is no engine of that name, or it cannot run this call.
    """
    if name not in NAMES:
        raise ContractError(f"engine must be one of {', '.join(NAMES)}, not {name!r}.")
    engine = _loaded(name)
    if reason := engine.can_run(call):
        raise ContractError(
            f"The engine {name} cannot run this: {reason}. Leave engine out and gattn chooses "
            f"{_name(choose(call))}."
        )
    return engine


def explain(
    query: Tensor,
    key: Tensor,
    graph: TokenGraph,
    *,
    value: Tensor | None = None,
    weight: WeightFunction | PairFunction | None = None,
    normalizer: Normalizer | None = None,
    edge_features: Tensor | None = None,
) -> None:
    """Print which engine `graph_attention` would choose, why, and how much memory it may take.

    The estimates are upper bounds for one call without gradients, besides inputs and output.

    Parameters
    ----------
    query, key, graph, weight, normalizer, edge_features
        As in `graph_attention`.
    value : Tensor, optional
        The values; by default the keys.

    Raises
    ------
    ShapeError
        If these do not fit together, as in `graph_attention`.

    Examples
    --------
    >>> import torch, gattn
    >>> q = torch.zeros(8, 4096, 64)
    >>> gattn.engines.explain(q, q, gattn.TokenGraph.window(4096, 64))
    """
    call, _ = attention_call(query, key, graph, weight, normalizer, value, edge_features)
    with naming_shapes(call):
        print("\n".join(_lines(call)))


def _lines(call: AttentionCall) -> list[str]:
    graph, chosen = call.token_graph, _name(choose(call))
    pairs = graph.num_queries * graph.num_keys
    share = f"{graph.num_edges / pairs:.2g} of all pairs" if pairs else "no pairs"
    walked = _name(choose_for_graphs(call))
    if emits(call, TopK(1)):
        walked += ", or kernels with TopK or Threshold"
    lines = [
        f"{graph}: {graph.num_edges:,} edges, {share}",
        f"{call.weight}: {_score(call)}; {call.normalizer}; {call.batch_heads} heads in all",
        f"graph_attention runs {chosen}, attention_graphs {walked}:",
    ]
    width = max(len(name) for name in NAMES)
    for name in NAMES:
        engine = _loaded(name)
        reason = engine.can_run(call)
        told = f"cannot: {reason}" if reason else f"up to {_size(engine.memory(call))}"
        if not reason and engine is tiles:
            told += f", {tiles.pairs(call):,} pairs"
            if graph.num_edges:
                told += f", {tiles.pairs(call) / graph.num_edges:.1f} per edge"
        lines.append(f"{'>' if name == chosen else ' '} {name:{width}}  {told}")
    return lines


def _score(call: AttentionCall) -> str:
    form = call.dot_form
    if form is None:
        return "scored pair by pair"
    parts = [] if form.query is None else [f"a dot product of {form.query.shape[-1]} features"]
    if form.bias:
        parts.append(f"{len(form.bias)} term{'s' * (len(form.bias) > 1)} of pairs")
    return " and ".join(parts)


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            break
        count /= 1024
    return f"{count:.0f} {unit}" if count >= 10 or unit == "B" else f"{count:.1f} {unit}"


def _loaded(name: str) -> ModuleType:
    return import_module(f"gattn.engines.{name}")  # message_passing loads torch-geometric


def _name(engine: ModuleType) -> str:
    return engine.__name__.rpartition(".")[2]
