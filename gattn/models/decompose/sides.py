"""The queries or keys of a head as a linear map of the residual stream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gattn.errors import CaptureError
from gattn.models.stream.rounding import tolerance
from gattn.models.stream.writers.parts import Stream

_ROWS = 16
"""Rows of a matrix at a time: each reads all parts."""
_SPARSE = 4
"""Fewer than one in so many parts are listed; of more, all are kept."""


def sum_of_parts(parts: Tensor) -> Tensor:
    """Return the sum of parts, (writers, tokens, dim), of which most may be zero."""
    return torch.sparse.sum(parts, 0).to_dense() if parts.is_sparse else parts.sum(0)


@dataclass(frozen=True, eq=False)
class Side:
    """The queries or keys of a head as a linear map of the residual stream.

    Parameters
    ----------
    vectors : Tensor (tokens, dim of the head)
        What the model computed.
    constant : Tensor (tokens, dim of the head)
        What does not come from the stream: biases.
    stream : Tensor (..., dim of the model)
        The stream before the layer, of all slots, of which `computed` is made.
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

    def of(self, stream: Stream) -> Tensor:
        """Return what parts of the stream give, and the constant: (writers, tokens, head dim).

        The tensor is sparse in its first two dimensions where most parts are zero.
        """
        some, size = stream.dictionaries, self.vectors.shape[-1]
        whole = stream.parts.new_empty(*stream.parts.shape[:2], size)
        listed = [whole.new_empty(len(one.tokens), size) for one in some]
        for rows in torch.arange(size, device="cpu").split(_ROWS):
            maps = torch.stack([self._row(int(n)) for n in rows])
            whole[..., rows] = torch.einsum("pnd,knd->pnk", stream.parts, maps)
            for found, one in zip(listed, some, strict=True):
                found[:, rows] = one.through(maps)
        whole = torch.cat([whole, self.constant[None].to(whole)])
        return self._joined(whole, stream, listed) if some else whole

    @staticmethod
    def _joined(whole: Tensor, stream: Stream, listed: list[Tensor]) -> Tensor:
        """Put the parts of dictionaries between the whole ones and the constant."""
        count, tokens, size = whole.shape
        numbers = [torch.arange(count, device="cpu").repeat_interleave(tokens)]
        numbers[0][-tokens:] = len(stream.all_writers)
        places, first = [torch.arange(tokens, device="cpu").repeat(count)], count - 1
        for one in stream.dictionaries:
            numbers.append(first + one.numbers.cpu())
            places.append(one.tokens.cpu())
            first += len(one.writers)
        indices = torch.stack([torch.cat(numbers), torch.cat(places)]).to(whole.device)
        values = torch.cat([whole.flatten(0, 1), *listed])
        shape = first + 1, tokens, size
        found = torch.sparse_coo_tensor(indices, values, shape, check_invariants=True).coalesce()
        is_sparse = _SPARSE * found.indices().shape[1] < (first + 1) * tokens
        return found if is_sparse else found.to_dense()

    def _row(self, n: int) -> Tensor:
        with torch.enable_grad():
            some = self.computed[:, n].sum()
            (found,) = torch.autograd.grad(some, self.stream, retain_graph=True)
        return found.reshape(-1, found.shape[-1])[self.slots]

    def check(self, parts: Tensor, what: str) -> None:
        """Refuse unless the parts sum to the vectors."""
        missing = (sum_of_parts(parts) - self.vectors).abs()
        if not bool((missing <= tolerance(self.vectors) * self.vectors.abs().max()).all()):
            error = float(missing.max() / self.vectors.abs().max())
            raise CaptureError(
                f"{what} are not linear in the residual stream, with norms held fixed: the parts "
                f"leave a relative error of {error:.1e}. There is a function that gattn does not "
                "hold fixed between the stream and the attention, such as a gate, a convolution "
                "over tokens, or an MLP, as in Conformers."
            )


class Columns(torch.autograd.Function):
    """A linear module whose gradient takes only the outputs that have one.

    One output of one head has a gradient to few columns of the product that made it.
    """

    @staticmethod
    def forward(ctx: Any, given: Tensor, weight: Tensor, result: Tensor) -> Tensor:
        """Return what the module gave, (..., outputs), for its weight (outputs, inputs)."""
        ctx.save_for_backward(weight)
        return result.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        """Return the gradient to what it was given."""
        (weight,), (gradient,) = ctx.saved_tensors, gradients
        columns = gradient.flatten(0, -2).any(0).nonzero().flatten()
        return gradient[..., columns] @ weight[columns], None, None
