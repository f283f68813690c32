"""Edge weight functions: what an edge scores, one idea a file."""

from gattn.weights.base import Pairs, Positions, WeightFunction
from gattn.weights.dot import Dot, ScaledDotProduct

__all__ = ["Dot", "Pairs", "Positions", "ScaledDotProduct", "WeightFunction"]
