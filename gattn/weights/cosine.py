"""Cosine similarity."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from gattn.checks import finite
from gattn.normalizers.base import widened
from gattn.weights.base import Positions, Tree
from gattn.weights.dot import Dot
from gattn.weights.parameters import scaled, shown_factor


class Cosine(Dot):
    r"""The cosine similarity :math:`\tau_h \cos(q, k)`. The cosine with a zero vector is 0.

    Parameters
    ----------
    tau : float or Tensor
        The inverse temperature, or one a head, shape (heads,); a `nn.Parameter` is learned.
    """

    def __init__(self, tau: float | Tensor = 1.0) -> None:
        super().__init__()
        tau = finite("tau", tau)
        self.tau = nn.Buffer(tau) if type(tau) is Tensor else tau

    def prepare(self, query: Tensor, key: Tensor, positions: Positions) -> tuple[Tree, Tree]:
        """Bring vectors to length 1, the query's to tau."""
        return scaled(_unit(query), self.tau), _unit(key)

    def extra_repr(self) -> str:
        """Show tau."""
        return f"tau={shown_factor(self.tau)}"


class SwinCosine(Dot):
    r"""The scaled cosine of Swin v2, :math:`e^{\min(\theta_h, \ln 100)} \cos(q, k)`.

    Parameters
    ----------
    heads : int
        How many heads; each learns its theta, which starts at ln 10.

    References
    ----------
    Liu et al. (2022), Swin Transformer V2.
    """

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.full((heads,), math.log(10.0)))

    def prepare(self, query: Tensor, key: Tensor, positions: Positions) -> tuple[Tree, Tree]:
        """Bring vectors to length 1, the query's to the inverse temperature."""
        tau = self.theta.clamp(max=math.log(100.0)).exp()
        return scaled(_unit(query), tau), _unit(key)

    def extra_repr(self) -> str:
        """Show the heads."""
        return str(len(self.theta))


def _unit(vectors: Tensor) -> Tensor:
    """Bring vectors to length 1; zero vectors stay, with a gradient of 0.

    Vectors far below `_LEAST` are shorter, so that no gradient is larger than 1 / `_LEAST`.
    """
    if not vectors.shape[-1]:
        return vectors
    wide = widened(vectors)
    largest = wide.detach().abs().amax(-1, keepdim=True)
    # Squares of numbers that are 1 at most neither overflow nor, but for those vectors, vanish.
    wide = wide / largest.clamp_min(max(_LEAST, torch.finfo(vectors.dtype).tiny))
    unit = wide / wide.square().sum(-1, keepdim=True).clamp_min(1.0).sqrt()
    return unit.masked_fill(largest == 0, 0.0).to(vectors.dtype)


_LEAST = 1e-12
