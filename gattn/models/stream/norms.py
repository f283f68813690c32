"""Norms with their statistics held fixed, and those that the residual stream goes through."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gattn.models.stream.rounding import tolerance
from gattn.normalizers.base import widened

# Next to numbers as large, the small constant that norms add to a variance vanishes.
_PROBE, _PROBE_OF_HALF = 4096.0, 256.0


@dataclass(frozen=True, eq=False)
class FixedNorm:
    r"""A norm, or a scale, with its statistics held fixed: a linear map of each token.

    :math:`x_i \to f_i \cdot g \odot (x_i - \bar x_i) + s`, the mean only where `is_centred`.

    Parameters
    ----------
    gain, shift : Tensor (dim of the model,)
        The vectors g and s.
    factor : Tensor (tokens,)
        The number f of each token, such as one over its standard deviation.
    is_centred : bool
        Whether the mean is subtracted, as in a layer norm.
    """

    gain: Tensor
    shift: Tensor
    factor: Tensor
    is_centred: bool

    def turned(self, vectors: Tensor) -> Tensor:
        """Apply what all tokens share: everything but the factor and the shift."""
        if self.is_centred:
            vectors = vectors - vectors.mean(-1, keepdim=True)
        return vectors * self.gain

    def __call__(self, vectors: Tensor) -> Tensor:
        """Apply the linear map to one vector per token, (tokens, dim)."""
        return self.turned(vectors) * self.factor[:, None]

    @classmethod
    def of(
        cls, apply: Callable[[Tensor], Tensor], given: Tensor, output: Tensor
    ) -> FixedNorm | None:
        """Read a norm or scale from its input and output, or give None if it is neither.

        It is applied to zeros, and to one vector of large numbers, which shows its gain.
        """
        signs = torch.ones_like(given[0])
        signs[1::2] = -1
        size = _PROBE if signs.dtype in (torch.float32, torch.float64) else _PROBE_OF_HALF
        probes = torch.stack([torch.zeros_like(signs), size * signs])
        try:
            shift, answer = widened(apply(probes[None])[0])
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
class StreamNorm:
    """A norm, or a scale, that the stream goes through, and what it takes: (tokens, dim).

    That is the stream, and what else was added to it.
    """

    norm: FixedNorm
    given: Tensor

    @classmethod
    def of_number(cls, size: float, output: Tensor) -> StreamNorm:
        """Make the scale that multiplies by a number."""
        ones = torch.ones_like(output)
        norm = FixedNorm(size * ones[0], 0 * ones[0], ones[:, 0], False)
        return cls(norm, output / size)

    @property
    def output(self) -> Tensor:
        """What it gives."""
        return self.norm(self.given) + self.norm.shift
