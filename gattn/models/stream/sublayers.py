"""Attention sublayers as sums of vectors: what each token adds to each other, head by head."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from gattn.errors import CaptureError
from gattn.graph.rules.keys import list_keys
from gattn.models.edit.applying import parts
from gattn.models.read.reading import Reading
from gattn.models.stream.norms import FixedNorm, StreamNorm
from gattn.normalizers.base import widened


@dataclass(frozen=True, eq=False, kw_only=True)
class Branch:
    r"""What the heads of a layer add to the residual stream, and the stream around it.

    .. math::
        y_i = x_i + f_i \sum_h o^h_i W^h + b_i

    Norms and scales between the output projection and the sum are folded, with fixed statistics,
    into `weights`, `factor` and `bias`. With sequential pre-norm blocks, ``end - after`` is the
    MLP's part. Numbers are at least float32.

    Parameters
    ----------
    stack, layer, name
        Where it is, and the path of its attention module.
    start : Tensor (tokens, dim)
        The residual stream that the layer is given.
    residual : Tensor (tokens, dim)
        The residual stream x that attention is added to.
    weights : Tensor (heads, value dim, dim)
        The output projection W of each head.
    factor : Tensor (tokens,)
        The number f of each query.
    bias : Tensor (tokens, dim)
        What is added besides the vectors.
    after : Tensor (tokens, dim)
        The sum y, not rounded to half precision; a parallel block, which adds its MLP to the same
        sum, never computes it.
    end : Tensor (tokens, dim)
        The residual stream after the whole layer, MLP included.
    norm : FixedNorm, optional
        What reads y next, if that is a norm.
    is_post_norm : bool
        Whether what `norm` gives is the residual stream, as in BERT.
    earlier : sequence of StreamNorm
        Norms and scales that the stream goes through on its way from `start` to `residual`.
    adds_first : bool
        Whether something else is added to the stream on that way, such as a Conformer's first MLP.
    later : sequence of StreamNorm
        Further norms and scales that the stream goes through on its way to `end`, in order.
    is_changed_last : bool
        Whether another module than a norm makes `end` of the stream.
    is_parallel : bool
        Whether the MLP reads the same residual as the attention, as in GPT-NeoX.
    error : float
        The largest difference between the sum of vectors and bias and what the model added to x,
        relative to the largest number of the latter.
    """

    stack: str
    layer: int
    name: str
    start: Tensor
    residual: Tensor
    weights: Tensor
    factor: Tensor
    bias: Tensor
    after: Tensor
    end: Tensor
    norm: FixedNorm | None = None
    is_post_norm: bool = False
    earlier: Sequence[StreamNorm] = ()
    adds_first: bool = False
    later: Sequence[StreamNorm] = ()
    is_changed_last: bool = False
    is_parallel: bool = False
    error: float = 0.0

    def __len__(self) -> int:
        return len(self.residual)

    @property
    def heads(self) -> int:
        """How many heads there are."""
        return len(self.weights)

    def outputs(self) -> Tensor:
        """Return what heads give before the output projection: (heads, tokens, value dim)."""
        raise NotImplementedError

    def by_head(self) -> Tensor:
        """Return what each head adds to each token: (heads, tokens, dim)."""
        return self.outputs() @ self.weights * self.factor[:, None]

    def added(self) -> Tensor:
        """Return the sum of the vectors added to each token, without the bias: (tokens, dim)."""
        heads = self.outputs().transpose(0, 1)
        return heads.flatten(1) @ self.weights.flatten(0, 1) * self.factor[:, None]

    @property
    def known_norm(self) -> FixedNorm:
        """The norm that reads the sum, if the stream goes through it; all else is refused."""
        if self.norm is None:
            raise CaptureError(
                f"What becomes of the vectors that {self.name} adds is not known: after it, the "
                "residual stream goes, or may go, through a module that is not found to be a norm "
                "or a scale of each token, or through code of the layer's own. Ask for "
                "contributions of='residual', which are those before it."
            )
        return self.norm

    def normed(self) -> Self:
        """Return the vectors after the norm that reads their sum, with its statistics fixed.

        They sum to that norm's output. If no norm reads the sum, they stay the same; what gives the
        stream and is no norm is refused.
        """
        if self.norm is None and not self.is_post_norm:
            return self
        norm = self.known_norm
        return replace(
            self,
            residual=norm(self.residual),
            weights=norm.turned(self.weights),
            factor=self.factor * norm.factor,
            bias=norm(self.bias) + norm.shift,
            after=norm(self.after) + norm.shift,
            norm=None,
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class HeadOutputs(Branch):
    """The branch of one run, by what its heads gave, whatever attention made them of.

    `given` is that before the output projection, (heads, tokens, value dim).
    """

    given: Tensor

    def outputs(self) -> Tensor:
        """Return what heads gave."""
        return self.given


@dataclass(frozen=True, eq=False, kw_only=True)
class Sublayer(Branch):
    r"""The branch of one sequence as vectors from token to token, which sum to it.

    .. math::
        y_i = x_i + \sum_j \sum_h A^h_{ij} f_i v^h_j W^h + b_i

    Parameters
    ----------
    reading : Reading
        The call on one sequence, which has the attention.
    values : Tensor (heads, tokens, value dim)
        The values v, expanded to the query heads.
    """

    reading: Reading
    values: Tensor

    def rows(self) -> Iterator[tuple[slice, Tensor]]:
        """Walk the attention by blocks of whole rows: which queries, and (heads, queries, keys).

        The next block overwrites this one: copy what should be kept.
        """
        some = parts(self.reading)
        if len(some) > 1:
            yield slice(0, len(self)), attention_of(self.reading)
            return
        for block in some[0].blocks(scores=False):
            attention = block.attention[0]
            if attention.shape[-1] < len(self) or not isinstance(block.columns, slice):
                dense = attention.new_zeros(*attention.shape[:2], len(self))
                dense[..., list_keys(block.columns)] = attention
                attention = dense
            yield block.rows, attention

    def moved(self, keys: slice = slice(None)) -> Tensor:
        """Return each head's v W for each key: (keys, heads, dim)."""
        return torch.einsum("hjv,hvd->jhd", self.values[:, keys], self.weights)

    def outputs(self) -> Tensor:
        """Return attention times values, block by block."""
        found = torch.empty_like(self.values)
        for rows, attention in self.rows():
            found[:, rows] = attention @ self.values
        return found

    def own(self) -> Tensor:
        """Return each token's own part: its residual, and what it adds to itself (tokens, dim)."""
        diagonal = self.values.new_empty(self.heads, len(self))
        for rows, attention in self.rows():
            diagonal[:, rows] = attention.diagonal(rows.start, 1, 2)
        heads = (self.values * diagonal[..., None]).transpose(0, 1)
        added = heads.flatten(1) @ self.weights.flatten(0, 1)
        return self.residual + added * self.factor[:, None]


def attention_of(reading: Reading) -> Tensor:
    """Return the whole attention of one sequence, as edited: (heads, queries, keys)."""
    queries, keys = reading.graph.num_queries, reading.graph.num_keys
    whole = widened(reading.attention.query).new_zeros(reading.heads, queries, keys)
    for part in parts(reading):
        heads = torch.tensor(part.heads, device=whole.device)[:, None, None]
        for block in part.blocks(scores=False):
            rows = torch.arange(queries, device=whole.device)[block.rows, None]
            columns = list_keys(block.columns).to(whole.device)
            whole[heads, rows, columns] = block.attention[0].to(whole.dtype)
    return whole
