"""Weights large enough that attention differs from pair to pair, where a model bears them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.coverage.libraries.case import tensors
from benchmarks.zoo import randomize

_SOFTMAXES = frozenset((torch.ops.aten._softmax.default, torch.ops.aten._safe_softmax.default))


def randomized(make: Callable[[], nn.Module], *args: Any, **kwargs: Any) -> nn.Module:
    """Make a model with large random weights or, if its output then explodes, with its own."""
    torch.manual_seed(0)
    model = make().eval()
    randomize(model)
    with torch.no_grad():
        output = list(tensors(model(*args, **kwargs)))
    if output and all(float(x.abs().max()) < 1e6 for x in output if x.numel()):
        return model
    return with_its_own(make)


def with_its_own(make: Callable[[], nn.Module]) -> nn.Module:
    """Make a model with its own weights, but for gains of zero, which would hide its attention."""
    torch.manual_seed(0)
    model = make().eval()
    for name, parameter in model.named_parameters():
        if name.endswith("weight") and parameter.dim() == 1 and not parameter.any():
            parameter.data.uniform_(0.5, 1.5)
    return model


class _Scores(TorchDispatchMode):
    """Notes the largest number that a softmax kernel is given."""

    largest = 0.0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in _SOFTMAXES and args[0].numel():
            self.largest = max(self.largest, float(args[0].max()))
        return func(*args, **(kwargs or {}))


def largest_score(model: nn.Module, *args: Any) -> float:
    """Return the largest score that a model writes out, outside of fused kernels."""
    with torch.no_grad(), _Scores() as scores:
        model(*args)
    return scores.largest
