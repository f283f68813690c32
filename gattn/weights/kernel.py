"""Kernels: polynomials and feature maps of the dot product."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from gattn.checks import finite_number, whole
from gattn.weights.base import Tree, WeightFunction
from gattn.weights.dot import Dot
from gattn.weights.pairs import Pairs, Positions


class Polynomial(WeightFunction):
    r"""The polynomial kernel :math:`(q \cdot k + c)^p`.

    Parameters
    ----------
    degree : int
        p, at least 1.
    c : float
        What is added before the power.
    """

    def __init__(self, degree: int, c: float = 0.0) -> None:
        super().__init__()
        self.degree = whole("degree", degree, 1, most=2**31 - 1)
        self.c = finite_number("c", c)

    def forward(self, query: Tensor, key: Tensor, pairs: Pairs) -> Tensor:
        """Score pairs."""
        return self._power((query * key).sum(-1))

    def on_tile(self, query: Tensor, key: Tensor, pairs: Pairs) -> Tensor:
        """Multiply matrices, then take the power."""
        return self._power(query @ key.transpose(-2, -1))

    def _power(self, product: Tensor) -> Tensor:
        return (product + self.c) ** self.degree

    def extra_repr(self) -> str:
        """Show degree and constant."""
        return f"{self.degree}, c={self.c}" if self.c else str(self.degree)


class KernelFeatures(Dot):
    r"""The kernel :math:`\phi(q) \cdot \phi(k)` of a feature map.

    With a positive feature map and the normalizer `Proportional` it is linear attention.

    Parameters
    ----------
    feature_map : callable
        phi: (batch, heads, tokens, dim) -> (batch, heads, tokens, features), a token at a time.
        A `nn.Module` may be learned.

    References
    ----------
    Katharopoulos et al. (2020), Transformers are RNNs.
    """

    def __init__(self, feature_map: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.feature_map = feature_map

    def prepare(self, query: Tensor, key: Tensor, positions: Positions) -> tuple[Tree, Tree]:
        """Map both sides."""
        return self.feature_map(query), self.feature_map(key)

    def extra_repr(self) -> str:
        """Show the feature map."""
        return str(getattr(self.feature_map, "__name__", type(self.feature_map).__name__))


class PerformerFeatures(nn.Module):
    r"""The feature map :math:`\phi(x) = \mathrm{ReLU}(xP) + 10^{-3}`, all features positive.

    P has fixed orthonormal columns, drawn anew for each `dim` of them.

    Parameters
    ----------
    dim : int
        Features per head.
    num_features : int, optional
        Features of the map; `dim` by default.
    seed : int
        What P is drawn with.

    References
    ----------
    Choromanski et al. (2021), Rethinking attention with Performers.
    """

    def __init__(self, dim: int, num_features: int | None = None, seed: int = 0) -> None:
        super().__init__()
        num_features = dim if num_features is None else num_features
        generator = torch.Generator().manual_seed(seed)
        shape = (-(-num_features // dim), dim, dim)
        normal = torch.randn(shape, generator=generator, device=generator.device)
        blocks = torch.linalg.qr(normal).Q.to(torch.get_default_device())
        self.projection = nn.Buffer(torch.cat(list(blocks), dim=1)[:, :num_features])

    def forward(self, vectors: Tensor) -> Tensor:
        """Map (..., dim) -> (..., num_features)."""
        return torch.relu(vectors @ self.projection) + 1e-3
