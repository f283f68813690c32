"""Finds the layers of a model, and the tensor that one is given."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn


def layers_of(model: nn.Module) -> set[int]:
    """Find the modules that are layers: those in lists of modules that are not nested.

    T5's sublayers are lists, too, but of different types of modules.
    """
    lists = {n: m for n, m in model.named_modules() if isinstance(m, nn.ModuleList)}
    found = set()
    for name, one in lists.items():
        is_inside = any(name.startswith(f"{other}.") for other in lists)
        if not is_inside or len({type(module) for module in one}) == 1:
            found |= {id(module) for module in one}
    return found


def first_of(values: Any) -> Tensor | None:
    """Find the first floating-point tensor."""
    if isinstance(values, Tensor):
        return values if values.is_floating_point() else None
    if isinstance(values, dict):
        values = tuple(values.values())
    some = values if isinstance(values, (tuple, list)) else ()
    return next((x for x in some if isinstance(x, Tensor) and x.is_floating_point()), None)
