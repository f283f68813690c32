"""Normalizers: how the scores of a neighbourhood become attention, one idea per file."""

from gattn.normalizers.base import Normalizer
from gattn.normalizers.entrywise import Identity, ReLU, Sigmoid
from gattn.normalizers.proportional import Proportional
from gattn.normalizers.softmax import Softmax
from gattn.normalizers.sparse import Entmax, Entmax15, Sparsemax
from gattn.normalizers.top_k import TopKSoftmax

__all__ = [
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
]
