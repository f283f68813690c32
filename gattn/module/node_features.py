"""The features of nodes that a layer takes, their sizes, and their projections to heads."""

from __future__ import annotations

from typing import TypeAlias

from torch import Tensor
from torch_geometric.nn import Linear

from gattn.checks import whole
from gattn.errors import ShapeError

Features: TypeAlias = Tensor | tuple[Tensor, ...]
"""Features of nodes that are both, or of (sources, targets), or (sources, targets, values)."""


def sizes_of(in_channels: int | tuple[int, ...]) -> tuple[int, int, int]:
    """Take the sizes of sources, targets and values."""
    given = in_channels if isinstance(in_channels, (tuple, list)) else (in_channels, in_channels)
    if len(given) not in (2, 3):
        raise ShapeError(
            "in_channels must be a size, or those of (sources, targets) or (sources, targets, "
            f"values), not {in_channels!r:.60}."
        )
    sizes = [size_of("in_channels", size) for size in given]
    return sizes[0], sizes[1], sizes[-1] if len(sizes) > 2 else sizes[0]


def size_of(name: str, size: int) -> int:
    """Take a size, or -1 for that of the first input."""
    if isinstance(size, int) and size == -1:
        return -1
    return whole(f"{name}, unless -1,", size, 1, ShapeError)


def sides_of(x: Features) -> tuple[Tensor, Tensor, Tensor]:
    """Take the features of sources, targets and values."""
    given = tuple(x) if isinstance(x, (tuple, list)) else (x, x)
    if len(given) not in (2, 3) or not all(isinstance(side, Tensor) for side in given):
        kinds = ", ".join(type(side).__name__ for side in given)
        raise ShapeError(
            "x must be the nodes' features, or those of (sources, targets) or (sources, targets, "
            f"values); queries are made of the targets' features. Got ({kinds})."
        )
    if given[0].dim() not in (2, 3) or len({side.dim() for side in given}) > 1:
        shapes = ", ".join(str(tuple(side.shape)) for side in given)
        raise ShapeError(
            f"expected features (nodes, channels) or (batch, nodes, channels), got {shapes}."
        )
    return given[0], given[1], given[2] if len(given) > 2 else given[0]


def linear(size: int, channels: int, bias: bool) -> Linear:
    """Make a projection, of the size of its first input if `size` is -1."""
    return Linear(size, channels, bias, weight_initializer="glorot", bias_initializer="zeros")


def to_heads(projection: Linear, x: Tensor, heads: int) -> Tensor:
    """Project features (..., nodes, channels) to (batch or 1, heads, nodes, dim)."""
    if projection.in_channels not in (-1, x.shape[-1]):
        raise ShapeError(
            f"expected features of {projection.in_channels} channels, got {tuple(x.shape)}."
        )
    batch = x.shape[0] if x.dim() > 2 else 1
    projected: Tensor = projection(x)
    dim = projected.shape[-1] // heads
    return projected.view(batch, x.shape[-2], heads, dim).transpose(1, 2)
