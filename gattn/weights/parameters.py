"""Parameters of weight functions: one number or one per head, fixed or learned."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from gattn.checks import finite
from gattn.errors import ShapeError


def a_head(factor: float | Tensor) -> float | Tensor:
    """Shape a factor, or one per head, to broadcast against (batch, heads, tokens, any)."""
    return factor[:, None, None] if isinstance(factor, Tensor) and factor.dim() else factor


def scaled(tokens: Tensor, factor: float | Tensor) -> Tensor:
    """Scale vectors (batch, heads, tokens, any) by a factor, or one per head, in their dtype."""
    return (tokens * a_head(factor)).to(tokens.dtype)


def fixed_or_learned(name: str, factor: float | Tensor) -> float | Tensor:
    """Check a factor, or one per head; a plain tensor moves along with its module, as a buffer."""
    factor = finite(name, factor)
    return nn.Buffer(factor) if type(factor) is Tensor else factor


def shown_factor(factor: float | Tensor) -> str:
    """Write a factor for a repr: its value if it is one fixed number."""
    if not isinstance(factor, Tensor):
        return str(factor)
    if isinstance(factor, nn.Parameter):
        return "learned"
    return "fixed per head" if factor.dim() else str(factor.item())


def learned(*shape: int, fan_in: int) -> nn.Parameter:
    """Draw a learned tensor from a normal distribution of variance 1 / fan_in."""
    return nn.Parameter(torch.randn(shape) * fan_in**-0.5)


def transformed(tokens: Tensor, matrix: Tensor, bias: Tensor | None = None) -> Tensor:
    """Multiply vectors (B, H, tokens, D) by a matrix per head, (H, D, E); `bias` is (H, E)."""
    if tokens.shape[0] != 1:
        found = tokens @ matrix
        return found if bias is None else found + bias[:, None]
    one = tokens.squeeze(0)
    found = torch.bmm(one, matrix) if bias is None else torch.baddbmm(bias[:, None], one, matrix)
    return found.unsqueeze(0)


def expect_features(weight: nn.Module, side: str, tokens: Tensor, size: Sequence[int]) -> None:
    """Refuse vectors (batch, heads, tokens, dim) of other heads or dim than a weight function's.

    Raises
    ------
    ShapeError
        If they differ.
    """
    found = [tokens.shape[1], tokens.shape[-1]]
    if found != list(size):
        raise ShapeError(
            f"{weight} is for a {side} of {size[0]} heads and {size[1]} features each; it got "
            f"{found[0]} heads and {found[1]} features. Build it for those sizes."
        )
