"""The contracts of weight functions and normalizers, as checks to call from a test."""

from gattn.testing.normalizers import check_normalizer
from gattn.testing.weights import check_weight_function

__all__ = ["check_normalizer", "check_weight_function"]
