"""The queries or keys of a head as a linear map of the residual stream."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gattn.errors import CaptureError
from gattn.models.stream.rounding import tolerance

_ROWS = 16
"""Rows of a matrix at a time: each reads all parts."""


@dataclass(frozen=True, eq=False)
class Side:
    """The queries or keys of a head as a linear map of the residual stream.

    Parameters
    ----------
    vectors : Tensor (tokens, dim of the head)
        What the model computed.
    constant : Tensor (tokens, dim of the head)
        What does not come from the stream: biases.
    stream : Tensor (1, slots, dim of the model)
        The stream before the layer, of which `computed` is made.
    computed : Tensor (tokens, dim of the head)
        The same as `vectors`, with a gradient to `stream`.
    slots : Tensor
        The tokens' slots in the stream.
    """

    vectors: Tensor
    constant: Tensor
    stream: Tensor
    computed: Tensor
    slots: Tensor

    def of(self, parts: Tensor) -> Tensor:
        """Return what parts of the stream (parts, tokens, dim) give: (parts, tokens, head dim)."""
        found = parts.new_empty(*parts.shape[:2], self.vectors.shape[-1])
        for some in torch.arange(self.vectors.shape[-1]).split(_ROWS):
            matrix = torch.stack([self._row(int(n)) for n in some])
            found[..., some] = torch.einsum("pnd,knd->pnk", parts, matrix)
        return found

    def _row(self, n: int) -> Tensor:
        with torch.enable_grad():
            some = self.computed[:, n].sum()
            (found,) = torch.autograd.grad(some, self.stream, retain_graph=True)
        return found[0, self.slots]

    def check(self, parts: Tensor, what: str) -> None:
        """Refuse unless the parts and the constant sum to the vectors."""
        missing = (parts.sum(0) + self.constant - self.vectors).abs()
        if not bool((missing <= tolerance(self.vectors) * self.vectors.abs().max()).all()):
            error = float(missing.max() / self.vectors.abs().max())
            raise CaptureError(
                f"{what} are not linear in the residual stream, with norms held fixed: the parts "
                f"leave a relative error of {error:.1e}. There is a function that gattn does not "
                "hold fixed between the stream and the attention, such as a gate, a convolution "
                "over tokens or a norm that is no module of its own."
            )
