"""Lets values decide in a run as they did in another one: orders, masks, and what code reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from gattn.errors import CaptureError
from gattn.models.doors.orders import decides, digest
from gattn.models.doors.proof.probing.one_run.inputs import has_nan, numbers_of
from gattn.models.doors.proof.probing.one_run.picking import tensors_in
from gattn.models.watch.inside import is_inside

_RANKS = frozenset(("sort", "msort", "topk", "kthvalue", "max", "min", "median", "nanmedian"))
_RANKS |= {"mode", "cummax", "cummin"}
"""What gives numbers by rank, with the indices of these."""
_AFTER_A_NUMBER = frozenset(("topk", "kthvalue"))
"""The dimension of these comes after how many, or which."""


class Deciding(TorchFunctionMode):
    """Notes what values decide in a run, or lets them decide as in an earlier one.

    Parameters
    ----------
    wanted : list, optional
        What values decided then; None where that is to be noted.
    """

    def __init__(self, wanted: list[Any] | None = None) -> None:
        super().__init__()
        self.wanted = wanted
        self.decided: list[Any] = []
        self._by_values: list[bool] = []

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run a function; what values decided stays."""
        given = kwargs or {}
        result = func(*args, **given)
        return result if is_inside() else self.settled(func, args, given, result)

    def settled(
        self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
    ) -> Any:
        """Return what a function gives, with what values decided then."""
        with torch._C.DisableTorchFunction():
            if not decides(func, args, kwargs, result):
                return result
            return self._decided(getattr(func, "__name__", ""), args, kwargs, result)

    def by_values_in(self, hidden: Deciding | None) -> list[bytes]:
        """Describe what was decided by what the model is given, which is NaN in another run."""
        known = [] if hidden is None else hidden._by_values
        is_whole = len(known) == len(self.decided)
        return [
            digest(one) if not is_whole or known[n] else b"" for n, one in enumerate(self.decided)
        ]

    def _decided(
        self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any
    ) -> Any:
        number = len(self.decided)
        self.decided.append(copied(result))
        if self.wanted is None:
            return result
        if number >= len(self.wanted):
            raise CaptureError("values decide more than in the first run")
        given = tensors_in((*args, *kwargs.values()))
        is_by_values = any(x.is_floating_point() and has_nan(numbers_of(x)) for x in given)
        self._by_values.append(is_by_values)
        return as_decided(name, args, kwargs, result, self.wanted[number])


def as_decided(
    name: str, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any, wanted: Any
) -> Any:
    """Return what a function gives, with the integers, masks and sizes of an earlier run.

    Numbers of another size than then depend on all that it is given.
    """
    given = (*args, *kwargs.values())
    if name in _RANKS and isinstance(result, tuple) and len(result) == 2:
        number = 2 if name in _AFTER_A_NUMBER else 1
        dim = kwargs.get("dim", args[number] if len(args) > number else -1)
        dim = dim if isinstance(dim, int) and not isinstance(dim, bool) else -1
        kind: Any = type(result)
        picked = _along(tensors_in(given)[0], wanted[1], dim)
        if picked.shape == result[0].shape:  # What is known of it holds of these, too.
            result[0].data.copy_(picked)
            picked = result[0]
        return kind((picked, wanted[1].clone()))
    if isinstance(result, (tuple, list)):
        pairs = zip(result, wanted, strict=True)
        return type(result)([as_decided("", args, kwargs, *pair) for pair in pairs])
    if not isinstance(result, Tensor):
        return wanted
    if result.is_floating_point() or result.is_complex():
        return result if result.shape == wanted.shape else torch.full_like(wanted, torch.nan)
    return result.copy_(wanted) if any(x is result for x in given) else wanted.clone()


def _along(x: Tensor, index: Tensor, dim: int) -> Tensor:
    """Take the numbers of a tensor at the indices that a rank or an extreme gave."""
    if index.dim() == x.dim():
        return torch.take_along_dim(x, index, dim)
    return torch.take_along_dim(x, index.unsqueeze(dim), dim).squeeze(dim)


def copied(result: Any) -> Any:
    """Copy what a function gave."""
    if isinstance(result, Tensor):
        return result.detach().clone()
    if isinstance(result, (tuple, list)):
        return type(result)([copied(x) for x in result])
    return result
