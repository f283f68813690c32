"""Cosine similarity."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from gattn.normalizers.base import widened
from gattn.weights.base import Tree
from gattn.weights.dot import Dot
from gattn.weights.pairs import Positions
from gattn.weights.parameters import fixed_or_learned, scaled, shown_factor


class Cosine(Dot):
    r"""The cosine similarity :math:`\tau_h \cos(q, k)`.

    Lengths below 1e-8 count as 1e-8, as in torch's `cosine_similarity`: the cosine with a zero
    vector is 0. Half precision is computed in float32.

    Parameters
    ----------
    tau : float or Tensor
        The inverse temperature, or one per head, shape (heads,); a `nn.Parameter` is learned.
    """

    def __init__(self, tau: float | Tensor = 1.0) -> None:
        super().__init__()
        self.tau = fixed_or_learned("tau", tau)

    def prepare(self, query: Tensor, key: Tensor, positions: Positions) -> tuple[Tree, Tree]:
        """Bring vectors to length 1, the query's to tau."""
        return scaled(_unit(query, 1e-8), self.tau), _unit(key, 1e-8)

    def extra_repr(self) -> str:
        """Show tau."""
        return f"tau={shown_factor(self.tau)}"


class SwinCosine(Dot):
    r"""The scaled cosine of Swin v2, :math:`e^{\min(\theta_h, \ln 100)} \cos(q, k)`.

    Lengths below 1e-12 count as 1e-12, as in torch's `normalize`. Half precision is computed in
    float32.

    Parameters
    ----------
    num_heads : int
        The number of heads; each learns its theta, which starts at ln 10.

    References
    ----------
    Liu et al. (2022), Swin Transformer V2.
    """

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.full((num_heads,), math.log(10.0)))

    def prepare(self, query: Tensor, key: Tensor, positions: Positions) -> tuple[Tree, Tree]:
        """Bring vectors to length 1, the query's to the inverse temperature."""
        tau = self.theta.clamp(max=math.log(100.0)).exp()
        return scaled(_unit(query, 1e-12), tau), _unit(key, 1e-12)

    def extra_repr(self) -> str:
        """Show the heads."""
        return str(len(self.theta))


def _unit(vectors: Tensor, least: float) -> Tensor:
    """Divide vectors by their lengths, or by `least` if that is more.

    No gradient is larger than 1 / `least`, or in float16 than its smallest normal number allows.
    """
    if not vectors.shape[-1]:
        return vectors
    wide, tiny = widened(vectors), torch.finfo(vectors.dtype).tiny
    unit = _divided(wide, least)
    if tiny > least and vectors.requires_grad:
        smooth = _divided(wide, tiny)
        unit = unit.detach() + (smooth - smooth.detach())
    return unit.to(vectors.dtype)


def _divided(vectors: Tensor, least: float) -> Tensor:
    # Squares of numbers up to 1 do not overflow, and vanish for short vectors only.
    largest = vectors.detach().abs().amax(-1, keepdim=True).clamp_min(least)
    vectors = vectors / largest
    squares = vectors.square().sum(-1, keepdim=True)
    return vectors / torch.maximum(squares, (least / largest).square()).sqrt()
