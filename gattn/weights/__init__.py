"""Edge weight functions: what an edge scores, one idea per file."""

from gattn.weights.additive import GAT, Additive, GATv2
from gattn.weights.base import WeightFunction
from gattn.weights.cosine import Cosine, SwinCosine
from gattn.weights.distance import L1Distance, SquaredDistance
from gattn.weights.dot import Bilinear, Dot, ScaledDotProduct
from gattn.weights.edge_features import EdgeBias, EdgeProduct
from gattn.weights.kernel import KernelFeatures, PerformerFeatures, Polynomial
from gattn.weights.pairs import CappedForm, DotForm, Pairs, Positions
from gattn.weights.position import ALiBi, PositionWeight, RelativePosition, T5RelativeBias
from gattn.weights.rotary import Rotary
from gattn.weights.softcap import Softcap

__all__ = [
    "GAT",
    "ALiBi",
    "Additive",
    "Bilinear",
    "CappedForm",
    "Cosine",
    "Dot",
    "DotForm",
    "EdgeBias",
    "EdgeProduct",
    "GATv2",
    "KernelFeatures",
    "L1Distance",
    "Pairs",
    "PerformerFeatures",
    "Polynomial",
    "PositionWeight",
    "Positions",
    "RelativePosition",
    "Rotary",
    "ScaledDotProduct",
    "Softcap",
    "SquaredDistance",
    "SwinCosine",
    "T5RelativeBias",
    "WeightFunction",
]
