"""Reads hidden states: what layers read and write, one vector per token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias, Union

import torch
from numpy.typing import NDArray
from torch import Tensor

from gattn.analysis.reading.arrays import tensor
from gattn.errors import ShapeError

Hidden: TypeAlias = Union[Tensor, NDArray[Any], Sequence[Tensor]]  # noqa: UP007
"""Hidden states: (states, tokens, dim), (tokens, dim), or a model's ``hidden_states`` of one text.

State l is what the model's layer l reads. Padding has to be cut off."""


def read_hidden(hidden: Hidden) -> Tensor:
    """Make one tensor (states, tokens, dim) of hidden states, in single precision at least.

    Raises
    ------
    ShapeError
        If the shape is another, there are several texts, or numbers are not finite.
    """
    if isinstance(hidden, (list, tuple)):
        states = list(map(_state, hidden))
        shapes = {tuple(state.shape) for state in states}
        if not states or len(shapes) > 1:
            raise ShapeError(f"Hidden states have the shapes {sorted(shapes)}: they must be alike.")
        found = torch.stack(states)
    else:
        found = _state(hidden)
    if found.dim() == 2:
        found = found[None]
    if found.dim() == 4 and found.shape[1] == 1:
        found = found[:, 0]
    if found.dim() != 3 or 0 in found.shape:
        raise ShapeError(
            "Hidden states are (states, tokens, dim) of one text, not "
            f"{tuple(found.shape)}: take one text of a batch, as in [h[n] for h in hidden_states]."
        )
    if not bool(found.isfinite().all()):
        raise ShapeError("Hidden states must be finite: look for NaN or overflow in the model.")
    return found


def _state(values: Any) -> Tensor:
    return tensor(values, f"Hidden states are tensors or arrays, not {type(values).__name__}.")
