"""Finds of which of a model's inputs, and of its own tensors, numbers were made alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gattn.models.doors.functions.calling.memory import Memory, memory_of
from gattn.models.doors.proof.probing.one_run.constants import Name
from gattn.models.doors.proof.probing.one_run.inputs import leaves
from gattn.models.doors.proof.probing.one_run.picking import tensors_in

_NAMESPACES = frozenset(("aten", "prim", "prims"))

Made = frozenset[int | Name]
"""Inputs, by their numbers, and tensors that the model holds, by their names."""


class Origins:
    """Follows numbers from kernel to kernel.

    Memory is followed rather than tensors: what is written to a part of it counts for all. Numbers
    of which something else is known to be made, or chance, have no origins.

    Parameters
    ----------
    model : nn.Module
        The model.
    """

    def __init__(self, model: nn.Module) -> None:
        self._known: dict[Memory | None, Made | None] = {}
        self._has_begun = self._is_lost = False
        self._sizes: Made = frozenset()
        self._integers: set[int] = set()
        for module_name, module in model.named_modules():
            for held in (module._parameters, module._buffers, vars(module)):
                for name, x in held.items():
                    if isinstance(x, Tensor):
                        self._add(x, frozenset(((module_name, name),)))

    def begin(self, given: Any) -> None:
        """Follow what the model is given."""
        if self._has_begun:  # Numbers would say which of other inputs is meant.
            return
        self._has_begun = True
        found: dict[Memory | None, Made | None] = {}
        for number, x in enumerate(leaves(given)):
            if isinstance(x, Tensor) and (memory := memory_of(x)) is not None:
                found[memory] = (found.get(memory) or frozenset()) | {number}
                if not x.is_floating_point() and not x.is_complex():
                    self._integers.add(number)
        self._known.update(found)

    def note(self, func: Any, given: Sequence[Tensor], result: Any, *, is_random: bool) -> None:
        """Look at a kernel that ran."""
        is_known = getattr(func, "namespace", "") in _NAMESPACES and not is_random
        made = self.of(given) if is_known else None
        if is_sized_by_numbers(func, given):
            self._size(made)
        schema = getattr(func, "_schema", None)
        written = given if schema is not None and schema.is_mutable else ()
        for x in (*tensors_in((result,)), *written):
            self._add(x, made)

    def are_integers(self, made: Made | None) -> bool:
        """Return whether something was made alone of integers and masks that the model is given."""
        return made is not None and self._integers.issuperset(made)

    def are_given(self, tensors: Sequence[Tensor]) -> bool:
        """Return whether one of some tensors is known to be made of what the model is given."""
        made = (self._known.get(memory_of(x)) or () for x in tensors)
        return any(isinstance(one, int) for some in made for one in some)

    def lose(self) -> None:
        """Note that Python's numbers, which kernels take too, may be made of anything."""
        self._is_lost = True

    def _size(self, made: Made | None) -> None:
        """Note that sizes, which code reads unseen and kernels take too, are made of something."""
        if made is None:
            self.lose()
        else:
            self._sizes |= made

    def of(self, tensors: Sequence[Tensor]) -> Made | None:
        """Return of what some tensors were made alone; None if that is not known."""
        if self._is_lost:
            return None
        found = self._sizes
        for x in tensors:
            own = self._known.get(memory_of(x))
            if own is None:
                return None
            found |= own
        return found

    def _add(self, x: Tensor, made: Made | None) -> None:
        memory = memory_of(x)
        if memory is None:
            return
        before = self._known.get(memory, frozenset())
        self._known[memory] = None if before is None or made is None else before | made


def is_sized_by_numbers(func: Any, given: Sequence[Tensor]) -> bool:
    """Return whether numbers decide the size of a result: of indices only masks do."""
    if torch.Tag.dynamic_output_shape not in getattr(func, "tags", ()):
        return False
    is_index = "index" in getattr(func, "__name__", "")
    return not is_index or any(x.dtype in (torch.bool, torch.uint8) for x in given[1:])
