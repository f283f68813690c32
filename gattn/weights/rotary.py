"""Rotary position embedding."""

from __future__ import annotations

import torch
from torch import Tensor

from gattn.checks import finite_number
from gattn.errors import ContractError, ShapeError
from gattn.weights.base import PairFunction, Tree, WeightFunction, as_weight_function
from gattn.weights.pairs import CappedForm, DotForm, Pairs, Positions


class Rotary(WeightFunction):
    r"""Rotates queries and keys by their positions, then applies another weight function.

    Feature pair m of a token at position p turns by the angle
    :math:`p \, b^{-2m/d}`, so that a dot product depends on offsets only.

    Parameters
    ----------
    weight : WeightFunction or callable
        What scores the rotated vectors.
    base : float
        b.
    interleaved : bool
        Whether features 2m and 2m + 1 are a pair (GPT-J), or m and m + d/2 (Llama).
    dim : int, optional
        d: how many features turn, counted from the first; all by default.

    References
    ----------
    Su et al. (2021), RoFormer.
    """

    def __init__(
        self,
        weight: WeightFunction | PairFunction,
        base: float = 10000.0,
        interleaved: bool = False,
        dim: int | None = None,
    ) -> None:
        super().__init__()
        if dim is not None and (dim < 2 or dim % 2):
            raise ContractError(f"dim must be an even number >= 2, not {dim!r}.")
        if not finite_number("base", base) > 0:
            raise ContractError(f"base must be above 0, not {base!r}.")
        self.weight = as_weight_function(weight)
        self.base = base
        self.interleaved = interleaved
        self.dim = dim

    def prepare(self, query: Tensor, key: Tensor, positions: Positions) -> tuple[Tree, Tree]:
        """Rotate, then prepare the weight function itself."""
        query, key = self.rotate(query, positions.query), self.rotate(key, positions.key)
        return self.weight.prepare(query, key, positions)

    def rotate(self, vectors: Tensor, positions: Tensor) -> Tensor:
        """Rotate (..., tokens, features) by positions (tokens,)."""
        dim = vectors.shape[-1] if self.dim is None else self.dim
        if dim % 2 or dim > vectors.shape[-1]:
            raise ShapeError(
                f"{self} turns an even number of features, at most all of them, not {dim} of "
                f"{vectors.shape[-1]}; choose another dim."
            )
        turned, rest = vectors[..., :dim], vectors[..., dim:]
        shape = (dim // 2, 2) if self.interleaved else (2, dim // 2)
        axis = -1 if self.interleaved else -2
        left, right = turned.unflatten(-1, shape).unbind(axis)
        cos, sin = self._circle(vectors, positions, dim)
        rotated = torch.stack([left * cos - right * sin, right * cos + left * sin], axis)
        return torch.cat([rotated.flatten(-2), rest], dim=-1)

    def _circle(self, vectors: Tensor, positions: Tensor, dim: int) -> tuple[Tensor, Tensor]:
        """Find cosines and sines (tokens, dim / 2), in at least float32."""
        wide = torch.promote_types(vectors.dtype, torch.float32)
        steps = torch.arange(0, dim, 2, dtype=wide, device=vectors.device)
        angles = positions.to(wide)[:, None] * self.base ** (-steps / dim)
        return angles.cos().to(vectors.dtype), angles.sin().to(vectors.dtype)

    def forward(self, query: Tree, key: Tree, pairs: Pairs) -> Tensor:
        """Score rotated pairs."""
        scores: Tensor = self.weight(query, key, pairs)
        return scores

    def on_tile(self, query: Tree, key: Tree, pairs: Pairs) -> Tensor:
        """Score a tile of rotated vectors."""
        return self.weight.on_tile(query, key, pairs)

    def dot_form(self, query: Tree, key: Tree) -> DotForm | None:
        """Keep the weight function's dot form."""
        return self.weight.dot_form(query, key)

    def capped_form(self, query: Tree, key: Tree) -> CappedForm | None:
        """Keep the weight function's capped form."""
        return self.weight.capped_form(query, key)

    def extra_repr(self) -> str:
        """Show the weight function and what is not the default."""
        shown = [repr(self.weight)]
        if self.base != 10000.0:
            shown.append(f"base={self.base}")
        if self.interleaved:
            shown.append("interleaved=True")
        if self.dim is not None:
            shown.append(f"dim={self.dim}")
        return ", ".join(shown)
