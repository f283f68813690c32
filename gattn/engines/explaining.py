"""Says which engine would run, and why."""

from __future__ import annotations

from importlib import import_module

from torch import Tensor

from gattn.engines import tiles
from gattn.engines.base import AttentionCall, attention_call, naming_shapes
from gattn.engines.choice import NAMES, choose, choose_for_graphs
from gattn.graph.token_graph import TokenGraph
from gattn.normalizers import Normalizer
from gattn.weights.base import PairFunction, WeightFunction


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

    The estimates are for one call without gradients, at most, inputs and output apart.

    Parameters
    ----------
    query, key, graph, weight, normalizer, edge_features
        As in `graph_attention`.
    value : Tensor, optional
        The values; the keys where not given.

    Examples
    --------
    >>> import torch, gattn
    >>> q = torch.zeros(8, 4096, 64)
    >>> gattn.engines.explain(q, q, gattn.TokenGraph.window(4096, 64))
    """
    value = key if value is None else value
    call, _ = attention_call(query, key, graph, weight, normalizer, value, edge_features)
    with naming_shapes(call):
        print("\n".join(_lines(call)))


def _lines(call: AttentionCall) -> list[str]:
    graph, chosen = call.token_graph, _name(choose(call))
    pairs = graph.num_queries * graph.num_keys
    share = f"{graph.num_edges / pairs:.2g} of all pairs" if pairs else "no pairs"
    lines = [
        f"{graph}: {graph.num_edges:,} edges, {share}",
        f"{call.weight}: {_score(call)}; {call.normalizer}; {call.batch_heads} heads in all",
        f"graph_attention runs {chosen}, attention_graphs {_name(choose_for_graphs(call))}:",
    ]
    width = max(len(name) for name in NAMES)
    for name in NAMES:
        engine = import_module(f"gattn.engines.{name}")
        reason = engine.can_run(call)
        told = f"cannot: {reason}" if reason else f"up to {_size(engine.memory(call))}"
        if not reason and engine is tiles:
            told += f", {tiles.pairs(call):,} pairs"
            told += (
                f", {tiles.pairs(call) / graph.num_edges:.1f} an edge" if graph.num_edges else ""
            )
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


def _name(engine: object) -> str:
    return str(getattr(engine, "__name__", engine)).rpartition(".")[2]
