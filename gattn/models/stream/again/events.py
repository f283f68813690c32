"""What the modules of a running layer were given, and gave."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from gattn.models.stream.norms import FixedNorm
from gattn.models.stream.probing import forward_of

Key: TypeAlias = tuple[Any, int]


@dataclass(frozen=True, eq=False)
class Event:
    """A call of a module, or of a function, within a layer.

    Parameters
    ----------
    key : tuple
        The module, or the name of the function, and how many calls of it came before.
    given, output : Tensor (tokens, width)
        Its first tensor, and what it gave. What is given of another width is (tokens, 0).
    is_alone : bool
        Whether it was given nothing else.
    apply : callable, optional
        What it makes of a tensor alone, if it is a function, or a module without modules in it.
    known : FixedNorm, optional
        The norm that it is known to be.
    """

    key: Key
    given: Tensor
    output: Tensor
    is_alone: bool
    apply: Callable[[Tensor], Any] | None = None
    known: FixedNorm | None = None

    @classmethod
    def of_module(cls, key: Key, given: Tensor, output: Tensor, is_alone: bool) -> Event:
        """Make the event of a module."""
        module, _ = key
        is_leaf = not any(True for _ in module.children())
        return cls(
            key, given, output, is_alone, forward_of(module) if is_leaf and is_alone else None
        )

    @cached_property
    def passes(self) -> bool:
        """Whether it gives what it is given, as dropout does."""
        return torch.equal(self.given, self.output)

    @property
    def changes(self) -> bool:
        """Whether it gives other numbers than it is given, as many."""
        return self.given.shape == self.output.shape and not self.passes

    @cached_property
    def norm(self) -> FixedNorm | None:
        """The norm or scale that it is, if it is one."""
        if self.apply is None or not self.changes:
            return self.known
        return FixedNorm.of(self.apply, self.given, self.output)


def own(values: Any) -> Any:
    """Copy tensors, in tuples and such, that may be changed in place later."""
    return tree_map(lambda x: x.detach().clone() if isinstance(x, Tensor) else x, values)
