"""Walks all that a module is given, the attributes of objects such as a batch of one's own too."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map

from gattn.models.doors.proof.probing.one_run.digests import digest
from gattn.models.doors.proof.probing.one_run.holding import attributes_of

_DEPTH = 4
"""How deep objects within objects are followed."""


def detached(x: Tensor) -> Tensor:
    """Copy a tensor without its gradient, with the attributes of a class of its own."""
    twin = x.detach().clone()
    if type(x) not in (Tensor, nn.Parameter) and hasattr(twin, "__dict__"):
        vars(twin).update(vars(x))
    return twin


def flattened(given: Any) -> tuple[list[Any], object]:
    """List what is given, and describe its form; of arguments that are tensors it is soon said."""
    args, kwargs = given if isinstance(given, tuple) and len(given) == 2 else (None, None)
    if type(args) is tuple and type(kwargs) is dict:
        found = [*args, *kwargs.values()]
        if all(type(x) is Tensor for x in found):
            return found, (len(args), *kwargs)
    found, form = tree_flatten(given)
    return found, str(form)


def leaves(given: Any, depth: int = _DEPTH) -> list[Any]:
    """List all that is given, tensors in objects included."""
    found: list[Any] = []
    for x in flattened(given)[0]:
        own = _held(x, depth)
        found += [x] if own is None else leaves(own, depth - 1)
    return found


def mapped(function: Callable[[Any], Any], given: Any, depth: int = _DEPTH) -> Any:
    """Apply a function to all that is given; objects that hold tensors are copied for it."""

    def one(x: Any) -> Any:
        own = _held(x, depth)
        if own is None:
            return function(x)
        twin = copy.copy(x)
        vars(twin).update(mapped(function, own, depth - 1))
        return twin

    return tree_map(one, given)


def _held(x: Any, depth: int) -> dict[str, Any] | None:
    """Return the attributes of an object, if it holds tensors."""
    own = attributes_of(x) if depth else None
    if own is None or not any(isinstance(one, Tensor) for one in leaves(own, depth - 1)):
        return None
    return dict(own)


def digests_of(given: Any, numbers: Iterable[int]) -> dict[int, bytes]:
    """Return a digest of each of some tensors that are given, by their number among all."""
    found = leaves(given)
    return {number: digest(found[number]) for number in numbers}


def numbers_of(x: Tensor) -> Tensor:
    """Return the numbers that a tensor holds; a sparse one holds few."""
    if x.layout is torch.strided:
        return x
    return x.coalesce().values() if x.layout is torch.sparse_coo else x.values()


def has_nan(x: Tensor) -> bool:
    """Return whether any number is NaN: if none is, their sum tells so ten times as fast."""
    return bool(x.sum().isnan()) and bool(x.isnan().any())


def is_nan(x: Tensor) -> bool:
    """Return whether all numbers are NaN."""
    return not x.numel() or (bool(x.sum().isnan()) and bool(x.isnan().all()))
