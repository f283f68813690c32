"""Functions of tensors, recorded once to be replayed on others of the same shapes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import Parameter
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, is_in_torch_dispatch_mode

from gattn.engines.tensors.program import Outputs, Program, Step, UnrecordableError

_UNFIT = {
    torch.Tag.nondeterministic_seeded,
    torch.Tag.data_dependent_output,
    torch.Tag.dynamic_output_shape,
    torch.Tag.inplace_view,
}

_PLAIN = {Tensor, Parameter}

_MOST_OFF = 0.01
"""The share of numbers that may differ by more than rounding, as they nearly cancel."""

_READS = {
    Tensor.numpy,
    Tensor.tolist,
    Tensor.data_ptr,
    Tensor.untyped_storage,
    Tensor.storage,
    Tensor.__array__,
    Tensor.__dlpack__,
}


class Recorder(TorchDispatchMode):
    """Records the operations that run below autograd, of the function and of its gradient."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.steps: list[Step] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation, and record it."""
        is_known = func.namespace == "aten" and _UNFIT.isdisjoint(func.tags)
        if not is_known or not _PLAIN.issuperset(types):
            raise UnrecordableError(f"{func} cannot be replayed")
        found = func(*args, **(kwargs or {}))
        step = Step(func, args, kwargs or {}, found)
        if any(x.is_conj() or x.is_neg() for x in (*step.reads, *step.gives)):
            raise UnrecordableError(f"{func} has a tensor that is not what its memory holds")
        self.steps.append(step)
        return found

    def captured(self) -> list[Tensor]:
        """List the tensors with a gradient that came from elsewhere."""
        made = {id(x) for step in self.steps for x in step.gives}
        found = {id(x): x for step in self.steps for x in step.reads if x.requires_grad}
        return [x for key, x in found.items() if key not in made]


class _Escapes(TorchFunctionMode):
    """Refuses what reads a tensor's numbers without an operation."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _READS or not _PLAIN.issuperset(types):
            raise UnrecordableError(f"{func} reads numbers")
        return func(*args, **(kwargs or {}))


def record(
    function: Callable[..., Outputs], first: Sequence[Tensor], second: Sequence[Tensor]
) -> tuple[Program, list[Tensor]] | None:
    """Record a function; also list the tensors with a gradient that it uses besides its inputs.

    Parameters
    ----------
    function : callable
        Takes the tensors and gives some, or None for some.
    first : sequence of Tensor
        Tensors to record it on; they become the program's inputs.
    second : sequence of Tensor
        Others of the same shapes, on which the program must give what the function gives.

    Returns
    -------
    tuple or None
        None if the function draws random numbers, reads numbers to decide what to do, or is
        not seen in full, or while gradients are computed forwards.
    """
    if is_in_torch_dispatch_mode() or forward_ad._current_level >= 0:
        return None
    try:
        with _Escapes(), Recorder() as recorder:
            outputs = function(*first)
        program = Program(recorder.steps, first, outputs)
    except UnrecordableError:
        return None
    captured = recorder.captured()
    expected = function(*second)
    for x, other in zip(program.inputs, second, strict=True):
        if x is not None:
            x.detach().copy_(other)
    try:
        found = program()
    except RuntimeError:  # Something happened to its tensors that is no operation.
        return None
    is_right = all(_agree(x, y) for x, y in zip(found, expected, strict=True))
    return (program, captured) if is_right else None


def _agree(found: Tensor | None, expected: Tensor | None) -> bool:
    if found is None or expected is None:
        return found is expected
    expected = expected.detach()
    if not expected.is_floating_point():
        return torch.equal(found, expected)
    finite = expected.masked_fill(~expected.isfinite(), 0.0).abs()
    size = float(finite.amax()) if finite.numel() else 0.0
    share = math.sqrt(torch.finfo(expected.dtype).eps)
    off = ~found.isclose(expected, rtol=share, atol=0.0, equal_nan=True)
    # A score of -1e9 for a mask must not excuse others: few may be lost by cancellation.
    few = int(off.sum()) <= _MOST_OFF * off.numel()
    return few and torch.allclose(found, expected, rtol=0.0, atol=share * size, equal_nan=True)
