"""Compares outputs, and what a context must leave as it was."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from benchmarks.coverage.libraries.case import tensors


def same(one: Any, other: Any) -> bool:
    """Return whether two outputs are equal bit for bit."""
    a, b = list(tensors(one)), list(tensors(other))
    return len(a) == len(b) and all(_equal(x, y) for x, y in zip(a, b, strict=True))


def _equal(x: torch.Tensor, y: torch.Tensor) -> bool:
    return x.shape == y.shape and bool(((x == y) | (x.isnan() & y.isnan())).all())


def difference(one: Any, other: Any, *, is_padded: bool = False) -> float:
    """Return the largest difference of two outputs, relative to the size of each tensor.

    If the other `is_padded`, its rows of zeros, which PyTorch's fast path gives for padding, may be
    anything.
    """
    a, b = list(tensors(one)), list(tensors(other))
    if [x.shape for x in a] != [x.shape for x in b]:
        return float("inf")
    largest = 0.0
    for x, y in zip(a, b, strict=True):
        if is_padded and y.dim() > 1:
            real = y.any(-1)
            x, y = x[real], y[real]
        if x.numel():
            size = float(y.abs().max()) or 1.0
            largest = max(largest, float((x - y).abs().nan_to_num(torch.inf).max()) / size)
    return largest


def state(model: nn.Module) -> Any:
    """Return what a context must leave as it was: hooks, attributes, parameters, functions."""
    modules = [
        (name, len(m._forward_hooks), len(m._forward_pre_hooks), sorted(vars(m)), m.training)
        for name, m in model.named_modules()
    ]
    functions = (
        F.scaled_dot_product_attention,
        F.softmax,
        F.multi_head_attention_forward,
        torch.softmax,
        torch.Tensor.softmax,
        torch.backends.mha.get_fastpath_enabled(),
        torch.overrides._len_torch_function_stack(),  # type: ignore[attr-defined]
    )
    parameters = [(p.data_ptr(), p._version) for p in model.parameters()]
    return modules, [*map(id, functions[:-2]), *functions[-2:]], parameters
