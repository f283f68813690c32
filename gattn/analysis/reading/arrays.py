"""Attention in arrays: whatever a library or a model gives, as one tensor."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from gattn.checks import refuse_hidden
from gattn.errors import ShapeError
from gattn.heads.stack import Stack
from gattn.heads.trace import AttentionTrace


def tensor(values: Any, wrong: str) -> Tensor:
    """Make a tensor of numbers, single precision at least; `wrong` is the error if they are not."""
    if isinstance(values, Tensor):
        found: Tensor = values.detach()
        return found if found.dtype == torch.float64 else found.float()
    try:
        return torch.from_numpy(np.array(values, dtype=np.float64))
    except (TypeError, ValueError) as error:
        raise ShapeError(wrong) from error


def dense(attention: Any) -> Tensor:
    """Make one tensor (layers, heads, queries, keys) of arrays of attention."""
    if isinstance(attention, (list, tuple)):
        return dense(_stacked(attention))
    values = _attention(attention)
    if not 2 <= values.dim() <= 4 or 0 in values.shape:
        raise ShapeError(
            "Attention is an array (layers, heads, queries, keys), of which the first axes may be "
            f"missing, not {tuple(values.shape)}."
        )
    return values[(None,) * (4 - values.dim())]


def _stacked(layers: list[Any] | tuple[Any, ...]) -> Tensor:
    if any(isinstance(layer, (AttentionTrace, Stack)) for layer in layers):
        raise ShapeError(
            f"An analysis takes one trace, not {len(layers)} at once: choose one, or join "
            "the results of each with gattn.analysis.over_texts."
        )
    if lacking := [n for n, layer in enumerate(layers) if layer is None]:
        raise ShapeError(f"Layer {lacking[0]} has no attention: leave such layers out.")
    parts = list(map(_attention, layers))
    shapes = {tuple(part.shape) for part in parts}
    if len(shapes) != 1:
        raise ShapeError(f"The layers have the shapes {sorted(shapes)}: they must be alike.")
    if parts[0].dim() == 4:
        if len(parts[0]) != 1:
            raise ShapeError(
                f"The layers hold a batch of {len(parts[0])} texts: take one, as in "
                "[layer[n] for layer in attentions]."
            )
        parts = [part[0] for part in parts]
    return torch.stack(parts)


def _attention(values: Any) -> Tensor:
    refuse_hidden("attention", values, ShapeError)
    kind = type(values).__name__
    wrong = f"Attention is a trace, a stack, a head or an array, not {kind}{_hint(values)}."
    return tensor(values, wrong)


def _hint(values: Any) -> str:
    """Return where the attention may be."""
    if isinstance(values, str):
        return ": capture it, as in gattn.capture(text)"
    for name in ("attentions", "trace"):
        if hasattr(type(values), name) or hasattr(values, name):
            return f": pass its .{name}"
    return ""
