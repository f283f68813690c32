"""Warns of attention that code has read or kept as it was before an edit, which did not reach it.

Where a model changes its attention between softmax and values, as by a mask, edits wait for the
values. What is there by then is edited; what was made of it before is not.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import tree_leaves

from gattn.checks import warn
from gattn.models.doors.functions.calling.memory import memory_of
from gattn.models.doors.functions.calling.raw_call import named
from gattn.models.doors.functions.softmaxes.source import Source

_WAITED = (
    "The attention of {} is edited where it meets the values, since it is changed before, as by a "
    "mask, or ranked. {} is not edited; what comes of the values is.{}"
)
_NO_GRADIENTS = " Under torch.no_grad(), so is the attention that they are multiplied with."


@dataclass(frozen=True, eq=False)
class _Late:
    """A softmax that was edited where it met its values, and the memory that holds that."""

    root: Source
    written: set[StorageWeakRef | None]
    takes_gradients: bool

    def unreached(self, model: nn.Module, result: Any) -> str:
        """Say what no edit reached of what was made of it before; empty if there is nothing."""
        if any(memory is None or memory not in self.written for memory in self.root.given_out):
            return "What Python got of its numbers before"
        left = self.root.living() - self.written
        if left and self.takes_gradients:  # These may need it.
            left &= {memory_of(x) for x in _held(model, result)}
        return "What the model keeps or returns of it" if left else ""


class _Unreached(threading.local):
    def __init__(self) -> None:
        self.late: list[_Late] = []


_unreached = _Unreached()


def note_late(source: Source, written: list[Tensor]) -> None:
    """Note a softmax that was edited where it met its values, and the tensors that hold that."""
    memories = {memory_of(x) for x in written}
    _unreached.late.append(_Late(source.root, memories, torch.is_grad_enabled()))


def forget_late() -> None:
    """Note that a call broke off."""
    _unreached.late.clear()


def warn_of_unreached(model: nn.Module, result: Any) -> None:
    """Warn of what a call has read, keeps or returns of attention as it was before its edits."""
    late = _unreached.late.copy()
    forget_late()
    for one in late:
        if found := one.unreached(model, result):
            more = _NO_GRADIENTS if one.takes_gradients else ""
            warn(_WAITED.format(named(one.root.module), found, more))


def _held(model: nn.Module, result: Any) -> Iterator[Tensor]:
    """Walk the tensors that modules hold as attributes, and those that a call returned."""
    some = [result, getattr(result, "__dict__", None), *map(vars, model.modules())]
    return (x for x in tree_leaves(some) if isinstance(x, Tensor))
