"""Distances: near vectors score high."""

from __future__ import annotations

import torch
from torch import Tensor

from gattn.weights.base import WeightFunction
from gattn.weights.pairs import DotForm, Pairs
from gattn.weights.parameters import fixed_or_learned, scaled, shown_factor


class SquaredDistance(WeightFunction):
    r"""The Gaussian kernel's exponent :math:`-c_h \lVert q - k \rVert^2`.

    Under softmax it is the dot product 2c q.k with the bias -c||k||^2. In half precision it is
    computed pair by pair, as the dot form would lose too many digits to cancellation.

    Parameters
    ----------
    c : float or Tensor
        The factor, or one per head, shape (heads,); a `nn.Parameter` is learned.
    """

    def __init__(self, c: float | Tensor = 1.0) -> None:
        super().__init__()
        self.c = fixed_or_learned("c", c)

    def forward(self, query: Tensor, key: Tensor, pairs: Pairs) -> Tensor:
        """Score pairs."""
        return -self.c * (query - key).square().sum(-1)

    def dot_form(self, query: Tensor, key: Tensor) -> DotForm | None:
        """Expand the square: `c [2q, -|q|^2, -1] . [k, 1, |k|^2]`."""
        if query.dtype in (torch.float16, torch.bfloat16) or not key.shape[-2]:
            return None
        # Around the keys' mean the expanded square cancels few digits.
        centre = key.detach().nan_to_num(0.0, 0.0, 0.0).mean(-2, keepdim=True)
        query, key = query - centre, key - centre
        length, key_length = (x.square().sum(-1, keepdim=True) for x in (query, key))
        features = [2 * query, -length, -torch.ones_like(length)]
        key_features = [key, torch.ones_like(key_length), key_length]
        return DotForm(scaled(torch.cat(features, -1), self.c), torch.cat(key_features, -1))

    def extra_repr(self) -> str:
        """Show the factor."""
        return f"c={shown_factor(self.c)}"


class L1Distance(WeightFunction):
    r"""The Laplace kernel's exponent :math:`-c_h \lVert q - k \rVert_1`.

    Parameters
    ----------
    c : float or Tensor
        The factor, or one per head, shape (heads,); a `nn.Parameter` is learned.
    """

    def __init__(self, c: float | Tensor = 1.0) -> None:
        super().__init__()
        self.c = fixed_or_learned("c", c)

    def forward(self, query: Tensor, key: Tensor, pairs: Pairs) -> Tensor:
        """Score pairs."""
        return -self.c * (query - key).abs().sum(-1)

    def extra_repr(self) -> str:
        """Show the factor."""
        return f"c={shown_factor(self.c)}"
