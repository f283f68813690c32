"""Scores of positions alone: their base, and biases to add to another weight function."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from gattn.checks import whole
from gattn.errors import ContractError
from gattn.weights.base import Tree, WeightFunction
from gattn.weights.pairs import DotForm, Pairs, Positions


class PositionWeight(WeightFunction):
    """The base of weight functions that read only pairs: their positions or edge features."""

    def prepare(self, query: Tensor, key: Tensor, positions: Positions) -> tuple[Tree, Tree]:
        """Read no vectors."""
        return None, None

    def dot_form(self, query: Tree, key: Tree) -> DotForm:
        """Be a term of pairs."""
        return DotForm(None, None, (self,))


class ALiBi(PositionWeight):
    r"""Attention with linear biases, :math:`-m_h |i - j|`.

    If the number of heads n is a power of two, the slopes are :math:`2^{-8h/n}`, h = 1 .. n;
    other numbers continue with every second slope of the next power of two.

    Parameters
    ----------
    num_heads : int
        The number of heads.

    References
    ----------
    Press et al. (2022), Train short, test long.
    """

    is_relative = True

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        num_heads = whole("num_heads (at least one head)", num_heads, 1)
        self.slopes = nn.Buffer(torch.tensor(alibi_slopes(num_heads)), persistent=False)

    def forward(self, query: Tree, key: Tree, pairs: Pairs) -> Tensor:
        """Score pairs."""
        return -self.slopes * pairs.offset.abs()

    def extra_repr(self) -> str:
        """Show the heads."""
        return str(len(self.slopes))


def alibi_slopes(num_heads: int) -> list[float]:
    """List ALiBi's slope of each head."""
    if num_heads < 1:
        raise ContractError(f"ALiBi needs at least one head, not {num_heads}.")
    power = 1 << (num_heads.bit_length() - 1)
    slopes = [2.0 ** (-8 * h / power) for h in range(1, power + 1)]
    between = [2.0 ** (-4 * h / power) for h in range(1, 2 * power + 1, 2)]
    return slopes + between[: num_heads - power]


class T5RelativeBias(PositionWeight):
    r"""T5's bias :math:`b_h[\mathrm{bucket}(j - i)]`, learned, 0 at first.

    Each near offset has a bucket; far ones share buckets whose size grows logarithmically.

    Parameters
    ----------
    num_heads : int
        The number of heads.
    num_buckets : int
        The number of buckets.
    max_distance : int
        The distance from which all offsets share the last bucket.
    bidirectional : bool
        Whether keys after the query have buckets of their own, half of them; if not, they share
        the bucket of offset 0.

    References
    ----------
    Raffel et al. (2020), Exploring the limits of transfer learning with T5.
    """

    is_relative = True

    def __init__(
        self,
        num_heads: int,
        num_buckets: int = 32,
        max_distance: int = 128,
        bidirectional: bool = True,
    ) -> None:
        super().__init__()
        exact = num_buckets // (4 if bidirectional else 2)
        if not 1 <= exact < max_distance:
            raise ContractError(
                f"T5RelativeBias needs at least {4 if bidirectional else 2} buckets and a "
                f"max_distance above {exact}, which has a bucket of its own; it got "
                f"num_buckets={num_buckets} and max_distance={max_distance}."
            )
        self.num_buckets = num_buckets
        self.max_distance = max_distance
        self.bidirectional = bidirectional
        self.bias = nn.Parameter(torch.zeros(num_buckets, num_heads))

    def bucket(self, offset: Tensor) -> Tensor:
        """Find the bucket of each offset j - i, whole numbers of any shape."""
        buckets, first, distance = self.num_buckets, torch.zeros_like(offset), -offset
        if self.bidirectional:
            buckets //= 2
            first, distance = (offset > 0) * buckets, offset.abs()
        distance = distance.clamp_min(0)
        exact = buckets // 2
        growth = torch.log(distance.clamp_min(1).float() / exact)
        growth = growth / math.log(self.max_distance / exact) * (buckets - exact)
        far = (exact + growth.long()).clamp_max(buckets - 1)
        return first + torch.where(distance < exact, distance, far)

    def forward(self, query: Tree, key: Tree, pairs: Pairs) -> Tensor:
        """Score pairs."""
        return self.bias[self.bucket(pairs.offset[..., 0])]

    def extra_repr(self) -> str:
        """Show the sizes."""
        return ", ".join(str(size) for size in reversed(self.bias.shape))


class RelativePosition(PositionWeight):
    r"""A bias per clipped offset, :math:`b_h[\mathrm{clip}(j - i, \pm m)]`, learned, 0 at first.

    Parameters
    ----------
    num_heads : int
        The number of heads.
    max_distance : int
        m: all farther offsets on one side share a bias.

    References
    ----------
    Shaw et al. (2018), Self-attention with relative position representations, for the clipping.
    """

    is_relative = True

    def __init__(self, num_heads: int, max_distance: int) -> None:
        super().__init__()
        if max_distance < 0:
            raise ContractError(f"max_distance must be 0 or more, not {max_distance!r}.")
        self.max_distance = max_distance
        self.bias = nn.Parameter(torch.zeros(2 * max_distance + 1, num_heads))

    def forward(self, query: Tree, key: Tree, pairs: Pairs) -> Tensor:
        """Score pairs."""
        farthest = self.max_distance
        offset = pairs.offset[..., 0].clamp(-farthest, farthest)
        return self.bias[offset + farthest]

    def extra_repr(self) -> str:
        """Show the sizes."""
        return f"{self.bias.shape[1]}, {self.max_distance}"
