"""Weights large enough that attention differs from pair to pair, where a model bears them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from benchmarks.coverage.libraries.case import tensors
from benchmarks.zoo import randomize


def randomized(make: Callable[[], nn.Module], *args: Any, **kwargs: Any) -> nn.Module:
    """Make a model with large random weights or, if its output is then not finite, its own."""
    for large in (True, False):
        torch.manual_seed(0)
        model = make().eval()
        if large:
            randomize(model)
        with torch.no_grad():
            output = list(tensors(model(*args, **kwargs)))
        if output and all(float(x.abs().max()) < 1e6 for x in output if x.numel()):
            break
    return model
