"""Reads self-attention as graphs.

Self-attention is message passing on a directed graph of tokens:
A_ij = exp w(i, j) / sum over k in N(i) of exp w(i, k), with a weight function w of one's choice.

The words
---------
token graph
    Who may attend to whom. Nodes are token positions; the edge j -> i exists where query i may
    attend to key j. `TokenGraph`.
neighbourhood N(i)
    The in-edges of i: the keys that query i may attend to.
weight function w(i, j)
    What an edge scores before normalising. `WeightFunction`; its value is the edge's score.
normalizer
    Turns the scores of a neighbourhood into attention A_ij. `Normalizer`.
attention graph
    One head's result: the edges that were kept, each with its attention. `AttentionGraph`.
trace
    All attention graphs of one run of a model, by (layer, head). `AttentionTrace`.
keep
    Which edges of a head are kept: `All`, `Threshold`, `TopK`, `TopMass`.
engine
    A way to compute the same attention. Users never have to choose one.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gattn.attention import attention_graphs, graph_attention
    from gattn.files import load, save
    from gattn.graph import TokenGraph
    from gattn.head import AttentionGraph
    from gattn.keep import All, Keep, Threshold, TopK, TopMass
    from gattn.models.capture import capture, capture_many
    from gattn.models.loading import load_model
    from gattn.module import GraphAttention
    from gattn.steps import steps
    from gattn.trace import AttentionTrace
    from gattn.weights import Dot, Pairs, ScaledDotProduct, WeightFunction

__version__ = "0.1.0"

_HOMES = {
    "gattn.attention": ("attention_graphs", "graph_attention"),
    "gattn.files": ("load", "save"),
    "gattn.graph": ("TokenGraph",),
    "gattn.head": ("AttentionGraph",),
    "gattn.keep": ("All", "Keep", "Threshold", "TopK", "TopMass"),
    "gattn.models.capture": ("capture", "capture_many"),
    "gattn.models.loading": ("load_model",),
    "gattn.module": ("GraphAttention",),
    "gattn.steps": ("steps",),
    "gattn.trace": ("AttentionTrace",),
    "gattn.weights": ("Dot", "Pairs", "ScaledDotProduct", "WeightFunction"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = sorted(_HOME_OF)


def __getattr__(name: str) -> object:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'gattn' has no attribute {name!r}")
    return getattr(import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
