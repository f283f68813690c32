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
edit
    A change to the graph inside a live model. `Edit`: `Cut`, `Scale`, `Restrict`, `Use`, `Swap`.
survey
    A dataset on the disk: what a model attends to in each text of a corpus. `survey`, `Survey`.
part
    Some texts of a survey, one file in each of its folders: in it wholly, or not at all.
engine
    A way to compute the same attention. Users never have to choose one.
reach
    The keys that some queries may attend to, all together.
block, tile, piece
    Some queries against the keys that they reach; what of it is scored at once is a piece.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gattn import analysis as analysis
    from gattn import engines as engines
    from gattn import surveys as surveys
    from gattn.attention import attention_graphs, graph_attention
    from gattn.checks import memory_limit
    from gattn.files import load, save
    from gattn.graph import TokenGraph
    from gattn.head import AttentionGraph
    from gattn.keep import All, Keep, Threshold, TopK, TopMass
    from gattn.models.capturing import capture, capture_many, capturing
    from gattn.models.editing import edited
    from gattn.models.edits import Cut, Edit, ModelScore, Restrict, Scale, Swap, Use
    from gattn.models.effects import effect
    from gattn.models.estimates import estimate
    from gattn.models.loading import load_model
    from gattn.module import GraphAttention
    from gattn.normalizers import (
        Entmax,
        Entmax15,
        Identity,
        Normalizer,
        Proportional,
        ReLU,
        Sigmoid,
        Softmax,
        Sparsemax,
        TopKSoftmax,
    )
    from gattn.surveys.capture import CaptureGraphs
    from gattn.surveys.ray_pool import RayPool
    from gattn.surveys.reading import Survey, open_survey
    from gattn.surveys.running import survey
    from gattn.teaching import steps
    from gattn.trace import AttentionTrace
    from gattn.weights import (
        GAT,
        Additive,
        ALiBi,
        Bilinear,
        Cosine,
        Dot,
        EdgeBias,
        EdgeProduct,
        GATv2,
        KernelFeatures,
        L1Distance,
        Pairs,
        PerformerFeatures,
        Polynomial,
        PositionWeight,
        RelativePosition,
        Rotary,
        ScaledDotProduct,
        Softcap,
        SquaredDistance,
        SwinCosine,
        T5RelativeBias,
        WeightFunction,
    )

__version__ = "0.1.0"

__all__ = [
    "GAT",
    "ALiBi",
    "Additive",
    "All",
    "AttentionGraph",
    "AttentionTrace",
    "Bilinear",
    "CaptureGraphs",
    "Cosine",
    "Cut",
    "Dot",
    "EdgeBias",
    "EdgeProduct",
    "Edit",
    "Entmax",
    "Entmax15",
    "GATv2",
    "GraphAttention",
    "Identity",
    "Keep",
    "KernelFeatures",
    "L1Distance",
    "ModelScore",
    "Normalizer",
    "Pairs",
    "PerformerFeatures",
    "Polynomial",
    "PositionWeight",
    "Proportional",
    "RayPool",
    "ReLU",
    "RelativePosition",
    "Restrict",
    "Rotary",
    "Scale",
    "ScaledDotProduct",
    "Sigmoid",
    "Softcap",
    "Softmax",
    "Sparsemax",
    "SquaredDistance",
    "Survey",
    "Swap",
    "SwinCosine",
    "T5RelativeBias",
    "Threshold",
    "TokenGraph",
    "TopK",
    "TopKSoftmax",
    "TopMass",
    "Use",
    "WeightFunction",
    "attention_graphs",
    "capture",
    "capture_many",
    "capturing",
    "edited",
    "effect",
    "estimate",
    "graph_attention",
    "load",
    "load_model",
    "memory_limit",
    "open_survey",
    "save",
    "steps",
    "survey",
]

_HOMES = {
    "gattn.attention": ("attention_graphs", "graph_attention"),
    "gattn.checks": ("memory_limit",),
    "gattn.files": ("load", "save"),
    "gattn.graph": ("TokenGraph",),
    "gattn.head": ("AttentionGraph",),
    "gattn.keep": ("All", "Keep", "Threshold", "TopK", "TopMass"),
    "gattn.models.capturing": ("capture", "capture_many", "capturing"),
    "gattn.models.editing": ("edited",),
    "gattn.models.edits": ("Cut", "Edit", "ModelScore", "Restrict", "Scale", "Swap", "Use"),
    "gattn.models.effects": ("effect",),
    "gattn.models.estimates": ("estimate",),
    "gattn.models.loading": ("load_model",),
    "gattn.module": ("GraphAttention",),
    "gattn.normalizers": (
        "Entmax",
        "Entmax15",
        "Identity",
        "Normalizer",
        "Proportional",
        "ReLU",
        "Sigmoid",
        "Softmax",
        "Sparsemax",
        "TopKSoftmax",
    ),
    "gattn.surveys.capture": ("CaptureGraphs",),
    "gattn.surveys.ray_pool": ("RayPool",),
    "gattn.surveys.reading": ("Survey", "open_survey"),
    "gattn.surveys.running": ("survey",),
    "gattn.teaching": ("steps",),
    "gattn.trace": ("AttentionTrace",),
    "gattn.weights": (
        "GAT",
        "ALiBi",
        "Additive",
        "Bilinear",
        "Cosine",
        "Dot",
        "EdgeBias",
        "EdgeProduct",
        "GATv2",
        "KernelFeatures",
        "L1Distance",
        "Pairs",
        "PerformerFeatures",
        "Polynomial",
        "PositionWeight",
        "RelativePosition",
        "Rotary",
        "ScaledDotProduct",
        "Softcap",
        "SquaredDistance",
        "SwinCosine",
        "T5RelativeBias",
        "WeightFunction",
    ),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    if name in ("analysis", "engines", "surveys"):
        return import_module(f"gattn.{name}")
    if name not in _HOME_OF:
        raise AttributeError(f"module 'gattn' has no attribute {name!r}")
    return getattr(import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
