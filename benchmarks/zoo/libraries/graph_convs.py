"""torch-geometric: its convolutions with attention, on a small random graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import gattn
from benchmarks.coverage.libraries.case import Case
from benchmarks.coverage.libraries.checks import EDITED, TOLERANCE, _line, _reason
from benchmarks.coverage.libraries.same import difference, same, state
from benchmarks.coverage.libraries.verdict import (
    CAPTURED,
    EXACT,
    NO_ATTENTION,
    REFUSED,
    WRONG,
    Verdict,
    WrongError,
)
from gattn.errors import GattnError

_NODES, _EDGES = 7, 16
_WITHOUT_SOFTMAX = ("FAConv", "GCNConv")
_LOOPS = {"add_self_loops": False}
Convs = dict[str, tuple[Callable[[Any], nn.Module], tuple[str, ...]]]


def _convs() -> Convs:
    """List how each conv is made, and what it takes after nodes and edges."""
    return {
        "GATConv": (lambda g: g.GATConv(5, 4, heads=2, **_LOOPS), ()),
        "GATConv, edge features": (
            lambda g: g.GATConv(5, 4, heads=2, edge_dim=3, **_LOOPS),
            ("edge_attr",),
        ),
        "GATConv, self-loops": (lambda g: g.GATConv(5, 4, heads=2), ()),
        "GATConv, mean of heads": (
            lambda g: g.GATConv(5, 4, heads=3, concat=False, **_LOOPS),
            (),
        ),
        "GATv2Conv": (lambda g: g.GATv2Conv(5, 4, heads=2, **_LOOPS), ()),
        "GATv2Conv, edge features": (
            lambda g: g.GATv2Conv(5, 4, heads=2, edge_dim=3, share_weights=True, **_LOOPS),
            ("edge_attr",),
        ),
        "GATv2Conv, self-loops": (lambda g: g.GATv2Conv(5, 4, heads=2), ()),
        "TransformerConv": (lambda g: g.TransformerConv(5, 4, heads=2), ()),
        "TransformerConv, edge features": (
            lambda g: g.TransformerConv(5, 4, heads=2, edge_dim=3, beta=True),
            ("edge_attr",),
        ),
        "SuperGATConv, MX": (lambda g: g.SuperGATConv(5, 4, heads=2, **_LOOPS), ()),
        "SuperGATConv, SD": (
            lambda g: g.SuperGATConv(5, 4, heads=2, attention_type="SD", **_LOOPS),
            (),
        ),
        "RGATConv": (lambda g: g.RGATConv(5, 4, 3, heads=2), ("edge_type",)),
        "RGATConv, within relations": (
            lambda g: g.RGATConv(5, 4, 3, heads=2, attention_mechanism="within-relation"),
            ("edge_type",),
        ),
        "AGNNConv": (lambda g: g.AGNNConv(**_LOOPS), ()),
        "GeneralConv, additive": (lambda g: g.GeneralConv(5, 4, attention=True, heads=2), ()),
        "GeneralConv, dot product": (
            lambda g: g.GeneralConv(5, 4, attention=True, heads=2, attention_type="dot_product"),
            (),
        ),
        "HEATConv": (
            lambda g: g.HEATConv(5, 4, 2, 3, 4, 3, 4, heads=2),
            ("node_type", "edge_type", "edge_attr"),
        ),
        "PointTransformerConv": (
            lambda g: g.PointTransformerConv(5, 4, **_LOOPS),
            ("first_positions",),
        ),
        "GENConv, softmax": (lambda g: g.GENConv(5, 4, aggr="softmax", learn_t=True), ()),
        "SAGEConv, softmax": (lambda g: g.SAGEConv(5, 4, aggr="softmax"), ()),
        "SAGEConv, attentional": (
            lambda g: g.SAGEConv(5, 4, aggr=g.aggr.AttentionalAggregation(nn.Linear(5, 1))),
            (),
        ),
        "FeaStConv": (lambda g: g.FeaStConv(5, 4, heads=2, **_LOOPS), ()),
        "FAConv": (lambda g: g.FAConv(5, **_LOOPS), ("x_0",)),
        "GCNConv": (lambda g: g.GCNConv(5, 4), ()),
        "HypergraphConv": (
            lambda g: g.HypergraphConv(5, 4, use_attention=True, heads=2),
            ("hyperedge_weight", "hyperedge_attr"),
        ),
        "models.GAT": (lambda g: _models().GAT(5, 4, 2, heads=2, **_LOOPS), ()),
        "models.GAT, v2": (lambda g: _models().GAT(5, 4, 2, v2=True, heads=2, **_LOOPS), ()),
    }


def names() -> list[str]:
    return list(_convs())


def build(name: str) -> Case:
    import torch_geometric.nn as library

    torch.manual_seed(0)
    make, more = _convs()[name]
    model = make(library).eval()
    for parameter in model.parameters():
        parameter.data.add_(0.3 * torch.randn_like(parameter))
    pairs = torch.randperm(_NODES * _NODES)
    pairs = pairs[pairs // _NODES != pairs % _NODES][:_EDGES]
    graph = {
        "edge_index": torch.stack((pairs // _NODES, pairs % _NODES)),
        "edge_attr": torch.randn(_EDGES, 3),
        "edge_type": torch.randint(0, 3, (_EDGES,)),
        "node_type": torch.randint(0, 2, (_NODES,)),
        "x_0": torch.randn(_NODES, 5),
        "hyperedge_weight": torch.ones(_NODES),
        "hyperedge_attr": torch.randn(_NODES, 5),
        "first_positions": torch.randn(_NODES, 3),
    }
    return Case(name, model, (torch.randn(_NODES, 5), graph, more), call=_called)


def _called(model: nn.Module, x: Tensor, graph: dict[str, Tensor], more: tuple[str, ...]) -> Any:
    index, rest = graph["edge_index"], [graph[one] for one in more]
    if "first_positions" in more:
        return model(x, rest[0], index)
    if "x_0" in more:
        return model(x, rest[0], index)
    if more == ("edge_attr",):
        return model(x, index, edge_attr=rest[0])
    return model(x, index, *rest)


def examine(case: Case) -> Verdict:
    """Compare what is captured with what the conv returns, and each cut with the graph without."""
    told = Verdict(case.name, EXACT)
    plain, before = case.run(), state(case.model)
    try:
        with gattn.capturing(case.model, keep=gattn.All()) as run:
            watched = case.run()
        (trace,) = run.traces
        if not same(plain, watched) or state(case.model) != before:
            raise WrongError("the output or the model changes while capturing")
        shown = _compare(case, trace)
    except GattnError as error:
        without = case.name in _WITHOUT_SOFTMAX
        return Verdict(case.name, NO_ATTENTION if without else REFUSED, _line(error))
    except Exception as error:
        return Verdict(case.name, WRONG, _reason(error))
    stacks = {name: len(stack.layers) for name, stack in trace.stacks.items()}
    edits = 0
    try:
        if (
            "self-loops" not in case.name
            and len(stacks) == 1
            and not case.name.startswith("models")
        ):
            edits = _cut_each(case, next(iter(stacks)))
    except GattnError as error:
        return Verdict(case.name, CAPTURED, _line(error), sum(stacks.values()), shown)
    except Exception as error:
        return Verdict(case.name, WRONG, _reason(error))
    return Verdict(told.name, EXACT, "", sum(stacks.values()), shown, edits, stacks=stacks)


def _compare(case: Case, trace: Any) -> int:
    """Compare with `return_attention_weights`, if the conv has it; else rows must sum to one."""
    x, graph, more = case.args
    given = {one: graph[one] for one in more}
    try:
        with torch.no_grad():
            index, weights = case.model(
                x, graph["edge_index"], **given, return_attention_weights=True
            )[1]
    except (TypeError, ValueError):
        return 0
    own = np.zeros((weights.shape[1], _NODES, _NODES))
    own[:, index[1], index[0]] = weights.numpy().T
    seen = np.zeros(own.shape)
    for stack in trace.stacks.values():
        seen += np.stack([head.to_dense() for _, head in stack.items()])
    if (error := np.abs(own - seen).max()) > TOLERANCE:
        raise WrongError(f"the attention is not the conv's own: off by {error:.1e}")
    return 1


def _cut_each(case: Case, stack: str) -> int:
    """Cut each edge: the output must be the conv's on the graph without it."""
    x, graph, more = case.args
    for edge, (key, query) in enumerate(graph["edge_index"].T.tolist()):
        stays = torch.arange(_EDGES) != edge
        less = {
            name: value[..., stays] if name == "edge_index" else value[stays]
            for name, value in graph.items()
            if name.startswith("edge_")
        }
        torch.manual_seed(0)
        with torch.no_grad():
            expected = _called(case.model, x, {**graph, **less}, more)
        with gattn.edited(case.model, gattn.Cut(query=query, key=key, stack=stack)):
            output = case.run()
        if (error := difference(output, expected)) > EDITED:
            raise WrongError(f"the cut of {key} -> {query} is not the conv without: {error:.1e}")
    return _EDGES


def _models() -> Any:
    from torch_geometric.nn import models

    return models
