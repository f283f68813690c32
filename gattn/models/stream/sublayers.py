"""Attention sublayers as sums of vectors: what each token, by each head, adds to each other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from gattn.graph.rules.keys import list_keys
from gattn.models.edit.applying import parts
from gattn.models.read.reading import Reading
from gattn.models.stream.rounding import tolerance
from gattn.normalizers.base import widened

# Beside numbers as large, the small constant that norms add to a variance is nothing.
_PROBE, _PROBE_OF_HALF = 4096.0, 256.0


@dataclass(frozen=True, eq=False)
class FixedNorm:
    r"""A norm, or a scale, whose statistics stay what they were: a linear map of each token.

    :math:`x_i \to f_i \cdot g \odot (x_i - \bar x_i) + s`, the mean only where `is_centred`.

    Parameters
    ----------
    gain, shift : Tensor (dim of the model,)
        The vectors g and s.
    factor : Tensor (tokens,)
        The number f of each token: one over its standard deviation, say.
    is_centred : bool
        Whether the mean is taken off, as in a layer norm.
    """

    gain: Tensor
    shift: Tensor
    factor: Tensor
    is_centred: bool

    def turned(self, vectors: Tensor) -> Tensor:
        """Apply what is the same for all tokens: all but the factor and the shift."""
        if self.is_centred:
            vectors = vectors - vectors.mean(-1, keepdim=True)
        return vectors * self.gain

    def __call__(self, vectors: Tensor) -> Tensor:
        """Apply the linear map to one vector per token, (tokens, dim)."""
        return self.turned(vectors) * self.factor[:, None]

    @classmethod
    def of(cls, module: nn.Module, given: Tensor, output: Tensor) -> FixedNorm | None:
        """Read a norm or scale from what it made of its tokens, or give None where it is none.

        It is asked for zeros and for one vector of large numbers, which tells its gain.
        """
        signs = torch.ones_like(given[0])
        signs[1::2] = -1
        size = _PROBE if signs.dtype in (torch.float32, torch.float64) else _PROBE_OF_HALF
        probes = torch.stack([torch.zeros_like(signs), size * signs])
        try:
            shift, answer = widened(module.forward(probes[None])[0])
        except (TypeError, ValueError, RuntimeError, IndexError):  # It takes no tokens.
            return None
        given, wanted = widened(given), widened(output) - shift
        signs, answer = widened(signs), answer - shift
        ones = torch.ones_like(given[:, 0])
        candidates = [cls(answer / (size * signs), shift, ones, False)]
        for is_centred in (True, False):
            unit = signs - signs.mean() if is_centred else signs
            gain = answer / (unit / unit.square().mean().sqrt())
            one = cls(gain, shift, ones, is_centred)
            plain = one.turned(given)
            squares = plain.square().sum(-1).clamp_min(torch.finfo(plain.dtype).tiny)
            candidates.append(replace(one, factor=(plain * wanted).sum(-1) / squares))
        limit = tolerance(output) * wanted.abs().amax(-1, keepdim=True)
        return next(
            (x for x in candidates if bool(((x(given) - wanted).abs() <= limit).all())), None
        )


@dataclass(frozen=True, eq=False)
class Sublayer:
    r"""The attention sublayer of one layer and sequence: vectors that sum to its output.

    .. math::
        y_i = x_i + \sum_j \sum_h A^h_{ij} f_i v^h_j W^h + b_i

    Norms and scales on the way from the output projection to the sum stand, their statistics
    fixed, in `weights`, `factor` and `bias`. Numbers are at least float32.

    Parameters
    ----------
    stack, layer, name
        Where it is, and the path of its attention module.
    reading : Reading
        The call of one sequence, which tells the attention.
    residual : Tensor (tokens, dim)
        The residual stream x before it.
    values : Tensor (heads, tokens, value dim)
        The values v, one head for each of the queries.
    weights : Tensor (heads, value dim, dim)
        What the output projection makes of each head's values.
    factor : Tensor (tokens,)
        The number f of each query.
    bias : Tensor (tokens, dim)
        What is added besides.
    after : Tensor (tokens, dim)
        The sum y, not rounded to half precision; in a parallel block, which adds its MLP to the
        same sum, y is virtual.
    end : Tensor (tokens, dim)
        The residual stream behind the whole layer, its MLP too.
    norm : FixedNorm, optional
        What reads y next, where that is a norm.
    is_post_norm : bool
        Whether that norm is the layer's own, its output the residual stream, as in BERT.
    is_parallel : bool
        Whether the MLP reads the same residual as the attention, as in GPT-NeoX.
    error : float
        How far the vectors and the bias were at most from what the model added to x, relative to
        the largest number of it.
    """

    stack: str
    layer: int
    name: str
    reading: Reading
    residual: Tensor
    values: Tensor
    weights: Tensor
    factor: Tensor
    bias: Tensor
    after: Tensor
    end: Tensor
    norm: FixedNorm | None = None
    is_post_norm: bool = False
    is_parallel: bool = False
    error: float = 0.0

    def __len__(self) -> int:
        return len(self.residual)

    @property
    def heads(self) -> int:
        """How many heads there are."""
        return len(self.values)

    def rows(self) -> Iterator[tuple[slice, Tensor]]:
        """Walk the attention by blocks of whole rows: which queries, and (heads, queries, keys).

        A block lies where the next one will: copy what should stay.
        """
        some = parts(self.reading)
        if len(some) > 1:
            yield slice(0, len(self)), self._edited()
            return
        for block in some[0].blocks(scores=False):
            attention = block.attention[0]
            if attention.shape[-1] < len(self) or not isinstance(block.columns, slice):
                dense = attention.new_zeros(*attention.shape[:2], len(self))
                dense[..., list_keys(block.columns)] = attention
                attention = dense
            yield block.rows, attention

    def _edited(self) -> Tensor:
        """Give the whole attention (heads, queries, keys) where heads have edits of their own."""
        whole = self.values.new_zeros(self.heads, len(self), len(self))
        for part in parts(self.reading):
            heads = torch.tensor(part.heads, device=whole.device)[:, None, None]
            for block in part.blocks(scores=False):
                rows = torch.arange(len(self), device=whole.device)[block.rows, None]
                keys = list_keys(block.columns).to(whole.device)
                whole[heads, rows, keys] = block.attention[0]
        return whole

    def moved(self, keys: slice = slice(None)) -> Tensor:
        """Give what each head makes of each key's value, v W: (keys, heads, dim)."""
        return torch.einsum("hjv,hvd->jhd", self.values[:, keys], self.weights)

    def added(self) -> Tensor:
        """Give what all tokens together add to each, without the bias: (tokens, dim)."""
        found = torch.empty_like(self.residual)
        for rows, attention in self.rows():
            heads = (attention @ self.values).transpose(0, 1)
            found[rows] = heads.flatten(1) @ self.weights.flatten(0, 1)
        return found * self.factor[:, None]

    def own(self) -> Tensor:
        """Give what each token keeps: its residual, and what it adds to itself (tokens, dim)."""
        diagonal = self.values.new_empty(self.heads, len(self))
        for rows, attention in self.rows():
            diagonal[:, rows] = attention.diagonal(rows.start, 1, 2)
        heads = (self.values * diagonal[..., None]).transpose(0, 1)
        added = heads.flatten(1) @ self.weights.flatten(0, 1)
        return self.residual + added * self.factor[:, None]

    def normed(self) -> Sublayer:
        """Give the same vectors behind the norm that reads their sum, its statistics fixed.

        They sum to what that norm gives. Where no norm reads the sum they stay.
        """
        norm = self.norm
        if norm is None:
            return self
        return replace(
            self,
            residual=norm(self.residual),
            weights=norm.turned(self.weights),
            factor=self.factor * norm.factor,
            bias=norm(self.bias) + norm.shift,
            after=norm(self.after) + norm.shift,
            norm=None,
        )
