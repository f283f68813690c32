"""Lets marks pass through products of matrices as numbers do: times zero, they give nothing."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from gattn.models.doors.proof.probing.one_run.inputs import has_nan, is_nan, mapped
from gattn.models.doors.proof.probing.one_run.picking import tensors_in
from gattn.models.watch.inside import is_inside

_PRODUCTS = frozenset(("matmul", "mm", "bmm", "mv", "einsum", "linear", "tensordot"))
_PRODUCTS |= {"conv1d", "conv2d", "conv3d"}


def is_product(name: str) -> bool:
    """Return whether a function of this name multiplies matrices."""
    return name.strip("_").removeprefix("r") in _PRODUCTS


def marks_through(func: Any, given: Any, x: Tensor, y: Tensor, holds: Tensor) -> Tensor:
    """Return where the NaN in a tensor comes to in its product with another one.

    `holds` says where the other one is not zero.
    """
    new = {id(x): x.isnan().to(x.dtype), id(y): holds.to(y.dtype)}
    args, kwargs = mapped(lambda z: new.get(id(z)) if isinstance(z, Tensor) else z, given)
    marks: Tensor = func(*args, **kwargs) > 0.5
    return marks


class Zeros(TorchFunctionMode):
    """Leaves out NaN that is multiplied by zero, as by a matrix that only moves tokens."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run a function; NaN times zero is zero in products of matrices."""
        given = kwargs or {}
        result = func(*args, **given)
        is_other = is_inside() or not is_product(getattr(func, "__name__", ""))
        if is_other or not isinstance(result, Tensor):
            return result
        with torch._C.DisableTorchFunction():
            factors = tensors_in((args, given))[:2]
            is_sparse = any(x.layout != torch.strided for x in factors)  # It holds no zeros.
            if is_sparse or not result.is_floating_point():
                return result
            marked = [x for x in factors if _is_partly_marked(x)]
            if len(marked) != 1:
                return result
            others = [x for x in factors if not has_nan(x) and _has_zeros(x)]
            if len(others) != 1:
                return result
            (x,), (y,) = marked, others

            marks = marks_through(func, (args, given), x, y, y != 0)
            clean = torch.where(x.isnan(), 0.0, x)
            args, given = mapped(lambda z: clean if z is x else z, (args, given))
            found = func(*args, **given)
            result.data.copy_(found.masked_fill(marks, torch.nan))  # It may be followed.
            return result


def _is_partly_marked(x: Tensor) -> bool:
    """Return whether some numbers of a vector are NaN, and others are not."""
    return has_nan(x) and not is_nan(x)


def _has_zeros(x: Tensor) -> bool:
    return int(x.count_nonzero()) < x.numel()
