"""Sparse distributions: entmax and its special cases, by the package `entmax`."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from gattn.checks import finite
from gattn.errors import ContractError
from gattn.normalizers.base import Normalizer, filled, widened


class Entmax(Normalizer):
    r"""The alpha-entmax :math:`A_{ij} = [(\alpha - 1) w_{ij} - \tau_i]_+^{1/(\alpha - 1)}`.

    :math:`\tau_i` makes the row sum to 1. Scores far below the largest get exactly 0. Alpha 1
    would be the softmax; 1.5 is `Entmax15`; 2 is `Sparsemax`.

    Parameters
    ----------
    alpha : float or Tensor
        Above 1; or one per head, shape (heads,); a `nn.Parameter` is learned.

    References
    ----------
    Peters et al. (2019), Sparse sequence-to-sequence models. Correia et al. (2019), Adaptively
    sparse transformers.
    """

    is_distribution = True

    def __init__(self, alpha: float | Tensor) -> None:
        super().__init__()
        alpha = finite("alpha", alpha)
        if bool((torch.as_tensor(alpha) <= 1).any()):
            raise ContractError(f"alpha must be above 1, not {alpha!r}; 1 is Softmax().")
        self.alpha = nn.Buffer(alpha) if type(alpha) is Tensor else alpha

    def forward(self, scores: Tensor) -> Tensor:
        """Normalize rows."""
        if not scores.shape[-1]:
            return scores
        wide = widened(scores)
        alpha = self._alpha(wide)
        top = wide.detach().amax(-1, keepdim=True)
        # The solvers sort: NaN and infinity would raise errors or pass for ordinary numbers.
        empty, broken = top == -torch.inf, ~(top < torch.inf)
        wide = wide.masked_fill(empty | broken, 0.0)
        wide = wide - top.masked_fill(empty | broken, 0.0)
        # A score below this gets 0 whatever the others are: sums stay finite and exact.
        least = -1 / (alpha.detach() - 1) - 1
        attention = self._sparse(torch.maximum(wide, least), alpha)
        attention = attention.masked_fill(empty, 0.0).masked_fill(broken, torch.nan)
        return attention.to(scores.dtype)

    def _alpha(self, wide: Tensor) -> Tensor:
        """Shape alpha to broadcast against (..., heads, queries, keys)."""
        alpha = filled(self.alpha, wide)
        return alpha[:, None, None] if alpha.dim() else alpha

    def _sparse(self, wide: Tensor, alpha: Tensor) -> Tensor:
        from entmax.root_finding import entmax_bisect

        solve: Callable[..., Tensor] = entmax_bisect
        return solve(wide, alpha, dim=-1)

    def extra_repr(self) -> str:
        """Show alpha."""
        return "alpha per head" if isinstance(self.alpha, Tensor) else str(self.alpha)


class Entmax15(Entmax):
    """The 1.5-entmax, between softmax and sparsemax, by its exact algorithm.

    References
    ----------
    Peters et al. (2019), Sparse sequence-to-sequence models.
    """

    def __init__(self) -> None:
        super().__init__(1.5)

    def _sparse(self, wide: Tensor, alpha: Tensor) -> Tensor:
        from entmax.activations import entmax15

        solve: Callable[..., Tensor] = entmax15
        return solve(wide, dim=-1)

    def extra_repr(self) -> str:
        """Show nothing: alpha is in the name."""
        return ""


class Sparsemax(Entmax):
    """The Euclidean projection of a neighbourhood's scores onto distributions.

    References
    ----------
    Martins & Astudillo (2016), From softmax to sparsemax.
    """

    def __init__(self) -> None:
        super().__init__(2.0)

    def _sparse(self, wide: Tensor, alpha: Tensor) -> Tensor:
        from entmax.activations import sparsemax

        solve: Callable[..., Tensor] = sparsemax
        return solve(wide, dim=-1)

    def extra_repr(self) -> str:
        """Show nothing: alpha is in the name."""
        return ""
