"""Attention that a library shows after mixing heads or softmaxes, as talking heads do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from benchmarks.coverage.libraries.layouts import Heads
from benchmarks.coverage.libraries.softmaxes import Softmax

Place = tuple[str, int]


def mixture_error(
    shown: Tensor, captured: Mapping[Place, Sequence[Heads]], softmaxes: Mapping[Place, Softmax]
) -> float:
    """Return how far shown attention is from a mixture of what one module's layers hold.

    A mixture is a sum of heads, and perhaps a constant, with weights that are the same for all
    sequences, queries and keys: a few weights explain all numbers. The result is infinite if no
    layers have its size.
    """
    modules: dict[str, list[Heads]] = {}
    for place, sequences in captured.items():
        dense = torch.stack([torch.as_tensor(one).double() for one in sequences])
        if shown.dim() == 4 and (len(dense), *dense.shape[2:]) == (len(shown), *shown.shape[2:]):
            modules.setdefault(softmaxes[place].path, []).append(dense)
    wanted = shown.detach().double().movedim(1, -1).flatten(0, -2)
    errors = [_residual(torch.cat(heads, 1), wanted) for heads in modules.values()]
    return min(errors, default=torch.inf)


def _residual(heads: Tensor, wanted: Tensor) -> float:
    known = heads.movedim(1, -1).flatten(0, -2)
    known = torch.cat((known, torch.ones_like(known[:, :1])), 1)
    weights = torch.linalg.lstsq(known, wanted, driver="gelsd").solution
    return float((known @ weights - wanted).abs().max())
