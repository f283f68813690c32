"""Knows parameters, also in another type or shape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from gattn.models.doors.functions.calling.memory import version_of
from gattn.models.doors.functions.softmaxes.follow.known import OfTensors

_RESHAPES = frozenset(
    (
        *(Tensor.to, Tensor.type, Tensor.float, Tensor.double, Tensor.half, Tensor.bfloat16),
        *(Tensor.t, Tensor.transpose, Tensor.permute, Tensor.view, Tensor.reshape),
        *(torch.t, torch.transpose, torch.permute, torch.reshape),
        *(Tensor.T.__get__, Tensor.mT.__get__),  # type: ignore[attr-defined]
    )
)
"""Functions whose results hold the numbers of the tensor that they are given, and no others."""
_learned: OfTensors[int] = OfTensors()


def note_learned(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> None:
    """Note what is a parameter in another type or shape, as a cast or transposed weight.

    Changes in place of an inference tensor are not counted, so none is noted.
    """
    if func not in _RESHAPES or kwargs or not args or not is_learned(args[0]):
        return
    if any(not isinstance(x, (int, torch.dtype)) for x in args[1:]) or result.is_inference():
        return
    if result is not args[0]:
        _learned.note(result, version_of(result))


def is_learned(x: Any) -> bool:
    """Return whether a tensor is a parameter, or one in another type or shape."""
    return isinstance(x, nn.Parameter) or (
        isinstance(x, Tensor) and _learned.of(x) == version_of(x)
    )
