"""The residual stream as a sum of what wrote it: embeddings, heads, MLPs and biases."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from gattn.errors import CaptureError
from gattn.models.stream.rounding import tolerance

if TYPE_CHECKING:
    from gattn.models.stream.sublayers import Branch, FixedNorm

Kind = Literal["embedding", "head", "mlp", "bias", "given", "error"]


@dataclass(frozen=True)
class Writer:
    """What wrote a part of the residual stream.

    Parameters
    ----------
    kind : {"embedding", "head", "mlp", "bias", "given", "error"}
        What it is. An "mlp" is all that a layer adds after its self-attention, the cross-attention
        of a decoder included. The "bias" of a layer is what its attention adds besides its heads,
        and the shifts of norms that give the stream; without a layer it is what the head that reads
        the stream adds itself. A part may be "given", and the "error" is what those leave over.
    layer, head : int, optional
        Where it is.
    name : str
        The name of an embedding, or of a given part.
    """

    kind: Kind
    layer: int | None = None
    head: int | None = None
    name: str = ""

    def __str__(self) -> str:
        if self.kind == "head":
            return f"{self.layer}.{self.head}"
        if self.layer is not None:
            return f"{self.kind} {self.layer}"
        return self.name or self.kind


@dataclass(frozen=True, eq=False)
class Stream:
    """The residual stream before a layer, as a sum.

    Parameters
    ----------
    writers : list of Writer
        What wrote its parts.
    parts : Tensor (writers, tokens, dim)
        The parts.
    """

    writers: list[Writer]
    parts: Tensor

    def check(self, total: Tensor, what: str) -> None:
        """Refuse unless the parts sum to the stream that the model has, (tokens, dim)."""
        total = total.detach()
        missing = (self.parts.detach().sum(0) - total).abs()
        if not bool((missing <= tolerance(total) * total.abs().amax(-1, keepdim=True)).all()):
            error = float(missing.max() / total.abs().max())
            raise CaptureError(
                f"What embeddings, heads and MLPs write does not sum to the residual stream before "
                f"{what}: the relative error is {error:.1e}. The model adds something else to it."
            )


class Growing:
    """A stream to which layer after layer is added."""

    def __init__(self, embeddings: Stream) -> None:
        self.writers, self.parts = list(embeddings.writers), [embeddings.parts]
        self.depth = 0

    def stream(self) -> Stream:
        """Return the stream before the next layer."""
        return Stream(list(self.writers), torch.cat(self.parts))

    def add(self, sublayer: Branch) -> None:
        """Add a layer's heads, its biases and its MLP."""
        layer, heads = sublayer.layer, sublayer.by_head()
        self.depth = layer + 1
        self._append([Writer("head", layer, n) for n in range(len(heads))], heads)
        bias = sublayer.bias.clone()[None]
        self._append([Writer("bias", layer)], bias)
        total = sublayer.after
        if sublayer.end_norm is not None and sublayer.norm is not None:
            self._norm(sublayer.norm, bias)
            total = sublayer.norm(total) + sublayer.norm.shift
        end = sublayer.end if sublayer.before_end is None else sublayer.before_end
        self._append([Writer("mlp", layer)], (end - total)[None])
        if sublayer.end_norm is not None:
            self._norm(sublayer.end_norm, self.parts[-2])

    def _append(self, writers: list[Writer], parts: Tensor) -> None:
        self.writers += writers
        self.parts.append(parts)

    def _norm(self, norm: FixedNorm, bias: Tensor) -> None:
        """Apply a norm to all parts; what it adds itself is bias."""
        at = next(n for n, one in enumerate(self.parts) if one is bias)
        self.parts = [norm(one) for one in self.parts]
        self.parts[at] = self.parts[at] + norm.shift
