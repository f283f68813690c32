"""Attention graphs, which edges are kept, and what edits change."""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

import gattn
from gattn import AttentionGraph, AttentionTrace, TokenGraph

TEXT = "The river tall green lamp river tall green"
OTHER = "The horse saw the old dog and ran to"
LAYER, HEAD = 2, 1  # an induction head
SPREAD = 3, 0  # a head with much to drop
KEEPS = {
    "All": gattn.All(),
    "Threshold": gattn.Threshold(0.1),
    "TopK": gattn.TopK(2),
    "TopMass": gattn.TopMass(0.9),
}


@cache
def _model() -> tuple[Any, Any]:
    return gattn.load_model()


@cache
def _trace() -> AttentionTrace:
    return gattn.capture(TEXT, *_model())


def _kept(name: str) -> Figure:
    figure, ax = plt.subplots(figsize=(5, 2.6), layout="constrained")
    _trace()[SPREAD].keep(KEEPS[name]).draw("arcs", ax=ax)
    return figure


def _use() -> gattn.Use:
    network = _trace()[LAYER, HEAD].to_networkx()
    network.remove_edges_from([(j, i) for j, i in network.edges if j == 0 and i])
    return gattn.Use(AttentionGraph.from_networkx(network), layer=LAYER, head=HEAD)


EDITS: dict[str, Callable[[], Any]] = {
    "Cut": lambda: gattn.Cut(layer=LAYER, head=HEAD, key=0, query=slice(1, None)),
    "Scale": lambda: gattn.Scale(0.5, layer=LAYER, head=HEAD, key=0),
    "Restrict": lambda: gattn.Restrict(TokenGraph.window(64, 3), layer=LAYER, head=HEAD),
    "Use": _use,
    "Swap": lambda: gattn.Swap(layer=LAYER, head=HEAD, normalizer=gattn.Sparsemax()),
    "Patch": lambda: gattn.Patch(OTHER, layer=LAYER, head=HEAD),
    "Ablate": lambda: gattn.Ablate("mean", layer=LAYER, head=HEAD, what="attention"),
    "Without": lambda: gattn.Without("1.1", side="key", layer=LAYER, head=HEAD),
}


def _edited(name: str) -> Figure:
    model, tokenizer = _model()
    with gattn.edited(model, EDITS[name]()):
        after = gattn.capture(TEXT, model, tokenizer)
    figure, axes = plt.subplots(1, 2, figsize=(6.4, 3.2), layout="constrained")
    for ax, trace, title in zip(axes, (_trace(), after), ("as it is", name), strict=True):
        trace[LAYER, HEAD].draw("matrix", ax=ax)
        ax.set_title(title)
    return figure


def _layouts() -> Figure:
    figure, axes = plt.subplots(2, 2, figsize=(9, 6), layout="constrained")
    for ax, layout in zip(axes.flat, ("arcs", "columns", "circle", "matrix"), strict=True):
        _trace()[LAYER, HEAD].draw(layout, ax=ax)
        ax.set_title(f'head.draw("{layout}")')
    return figure


PICTURES = (
    {f"keep_{name}": partial(_kept, name) for name in KEEPS}
    | {f"edit_{name}": partial(_edited, name) for name in EDITS}
    | {"head_layouts": _layouts, "trace": lambda: _trace().draw()}
)
