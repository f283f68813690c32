"""What a call of a model is given, and what it gives: arguments by name, and tensors in them."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn


def arguments(
    module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Name a call's arguments."""
    if not args:
        return kwargs
    names = list(inspect.signature(module.forward).parameters)
    return {**dict(zip(names, args, strict=False)), **kwargs}


def of_choices(values: Any) -> Any:
    """Read the choices of multiple choice models, (texts, choices, tokens), as texts."""
    return values.flatten(0, 1) if isinstance(values, Tensor) and values.dim() == 3 else values


def first_tensor(outputs: Any) -> Tensor | None:
    """Find the first tensor of a model's outputs: an encoder's last hidden states."""
    some = list(outputs.values()) if isinstance(outputs, Mapping) else outputs
    first = some[0] if isinstance(some, (tuple, list)) and len(some) else some
    return first if isinstance(first, Tensor) and first.dim() > 1 else None


def is_mask(name: str, given: Any) -> bool:
    """Say whether an argument is an attention mask."""
    return name.endswith("attention_mask") and isinstance(given, Tensor)


def repeated(rows: Tensor | None, count: int) -> Tensor | None:
    """Repeat what is known of sequences, where a cache goes on as several continuations of each."""
    if rows is None or len(rows) == count:
        return rows
    return None if count % len(rows) else rows.repeat_interleave(count // len(rows), dim=0)
