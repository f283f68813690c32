"""Importance of the vectors that a residual stream is a sum of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import torch
from torch import Tensor

from gattn.analysis.reading.results import Array, array
from gattn.errors import SelectionError
from gattn.models.decompose.decomposing import decompose
from gattn.models.run.names.naming import Naming, Tokens
from gattn.models.stream.sublayers import Sublayer
from gattn.names.choices import LayerChoice

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from gattn.models.load.loading import Model
    from gattn.models.run.functions import Runnable

Norm: TypeAlias = Literal[1, 2]

FLOOR = 1e-5
"""The least proximity of a part, so that shares of a sum that is 0 are defined."""

_NUMBERS = 1 << 20
"""How many numbers of vectors are made at once, to stay in the cache."""


def route_importances(
    text: Runnable,
    model: Model = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    *,
    norm: Norm = 1,
    by_head: bool = False,
    layers: LayerChoice = None,
    stack: str | None = None,
    progress: bool = True,
    tokens: Tokens | None = None,
    grid: tuple[int, int] | None = None,
) -> Array:
    """Compute the importance of every edge in `gattn.analysis.routes`, before any threshold.

    Parameters
    ----------
    text, model, tokenizer, norm, stack, progress, tokens, grid
        As in `gattn.analysis.routes`.
    by_head : bool
        Whether to give each head rather than their sum.
    layers : int or sequence of int, optional
        Which layers; all by default.

    Returns
    -------
    Array
        Axes ``layer``, ``head`` if asked for, ``query`` and ``key``. What a row, summed over heads,
        lacks of 1 is the importance of the residual stream.

    Raises
    ------
    SelectionError, CaptureError, ModelError
        As in `gattn.analysis.routes`.
    """
    check_norm(norm)

    def read(sublayer: Sublayer) -> Tensor:
        count, kind = len(sublayer), sublayer.values.dtype
        whole = torch.zeros(
            sublayer.heads if by_head else 1, count, count, dtype=kind, device="cpu"
        )
        for some in importances(sublayer, torch.arange(count, device="cpu"), norm):
            share = some.attention if by_head else some.attention.sum(0, keepdim=True)
            whole[:, some.rows, : share.shape[2]] = share.to(kind).cpu()
        return whole

    found = decompose(
        text,
        model,
        tokenizer,
        read=read,
        layers=layers,
        stack=stack,
        progress=progress,
        naming=Naming(tokens, grid),
    )
    values = torch.stack(found.results)
    positions = range(values.shape[-1])
    axes: dict[str, Any] = {"layer": found.layers, "head": range(values.shape[1])}
    axes |= {"query": positions, "key": positions}
    if not by_head:
        values = values[:, 0]
        del axes["head"]
    return array(
        values,
        axes,
        name="importance",
        computed_from=found.source,
        edits=found.edits,
        notes=[found.check, *found.notes, "what a row lacks of 1 is the residual stream's"],
        tokens={"query": found.tokens, "key": found.tokens},
    )


@dataclass(frozen=True, eq=False)
class Importances:
    """The parts of tokens' streams after a layer's attention.

    `attention` is (heads, rows, keys), `residual` and, in a parallel block, `mlp` (rows,); they sum
    to 1 for each of the `rows`. Keys are the first ones, as many as are read.
    """

    rows: Tensor
    attention: Tensor
    residual: Tensor
    mlp: Tensor | None = None


def importances(sublayer: Sublayer, rows: Tensor, norm: Norm) -> Iterator[Importances]:
    """Compute the importance of each part of some tokens' sums, a block of rows at a time."""
    part = sublayer.normed() if sublayer.is_post_norm else sublayer
    for block, attention in part.rows():
        some = rows[(rows >= block.start) & (rows < block.stop)]
        if len(some):
            yield _of_rows(part, some, attention[:, some - block.start], norm)


def _of_rows(part: Sublayer, rows: Tensor, attention: Tensor, norm: Norm) -> Importances:
    where = rows.to(attention.device)
    read = attention.amax((0, 1)).nonzero()
    keys = int(read.max()) + 1 if len(read) else 0
    attention = attention[..., :keys]
    whole = (part.end if part.is_parallel else part.after)[where]
    near = torch.empty_like(attention, dtype=torch.float64)
    for head in range(part.heads):
        vectors = part.values[head, :keys] @ part.weights[head]
        near[head] = _nearness(whole, attention[head] * part.factor[where, None], vectors, norm)
    near = torch.where(attention != 0, near.clamp_min(FLOOR), 0)
    residual = proximity(part.residual[where], whole, norm)
    mlp = proximity((part.end - part.after)[where], whole, norm) if part.is_parallel else None
    total = near.sum((0, 2)) + residual + (0 if mlp is None else mlp)
    return Importances(
        rows, near / total[:, None], residual / total, None if mlp is None else mlp / total
    )


def _nearness(whole: Tensor, factors: Tensor, vectors: Tensor, norm: Norm) -> Tensor:
    """Compute ||y_i|| - ||y_i - a_ij v_j|| of wholes (rows, dim) and vectors (keys, dim)."""
    if norm == 2:
        # In double precision: the difference of squares cancels.
        y, v, a = whole.double(), vectors.double(), factors.double()
        square = y.square().sum(-1)
        rest = square[:, None] - 2 * a * (y @ v.T) + a.square() * v.square().sum(-1)
        return square.sqrt()[:, None] - rest.clamp_min(0).sqrt()
    distance = torch.zeros_like(factors, dtype=torch.float64)
    for few in range(0, len(whole), step := max(_NUMBERS // max(vectors.numel(), 1), 1)):
        rows = slice(few, few + step)
        read = factors[rows].any(0).nonzero()
        keys = int(read.max()) + 1 if len(read) else 0
        rest = torch.addcmul(
            whole[rows, None], factors[rows, :keys, None], vectors[:keys], value=-1
        )
        distance[rows, :keys] = rest.abs_().sum(-1).double()
    return whole.abs().sum(-1, keepdim=True).double() - distance


def proximity(part: Tensor, whole: Tensor, norm: Norm) -> Tensor:
    """Compute how near parts are to their wholes, both (..., dim)."""
    size = torch.linalg.vector_norm(whole.double(), norm, dim=-1)
    rest = torch.linalg.vector_norm(whole.double() - part.double(), norm, dim=-1)
    near: Tensor = size - rest
    return near.clamp_min(FLOOR)


def kept(shares: Tensor, threshold: float) -> Tensor:
    """Drop shares (parts, rows) up to a threshold, and divide the others by their sum."""
    stays = shares > threshold
    stays |= ~stays.any(0) & (shares == shares.amax(0))
    left = torch.where(stays, shares, 0)
    return left / left.sum(0)


def check_norm(norm: object) -> None:
    """Refuse all but 1 and 2."""
    if norm not in (1, 2) or isinstance(norm, bool):
        raise SelectionError(f"norm is 1 or 2, not {norm!r}.")
