"""A softmax over the largest scores alone."""

from __future__ import annotations

import torch
from torch import Tensor

from gattn.checks import whole
from gattn.normalizers.base import Normalizer
from gattn.normalizers.softmax import Softmax


class TopKSoftmax(Normalizer):
    """The softmax over the k largest scores of a neighbourhood; the others get 0.

    Ties go to the smaller key (on an edge list in another order, to the earlier edge).

    Parameters
    ----------
    k : int
        How many keys each query keeps.

    References
    ----------
    Gupta et al. (2021), Memory-efficient transformers via top-k attention.
    """

    is_distribution = True

    def __init__(self, k: int) -> None:
        super().__init__()
        self.k = whole("k", k, 1)
        self.softmax = Softmax()

    def forward(self, scores: Tensor) -> Tensor:
        """Normalize rows."""
        order = torch.argsort(scores.detach(), dim=-1, descending=True, stable=True)
        kept = torch.zeros_like(scores, dtype=torch.bool)
        kept = kept.scatter(-1, order[..., : self.k], True)
        attention: Tensor = self.softmax(scores.masked_fill(~kept, -torch.inf))
        return attention

    def extra_repr(self) -> str:
        """Show k."""
        return str(self.k)
