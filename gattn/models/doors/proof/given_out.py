"""Proves that code only keeps the arrays and lists that it makes of a model's numbers.

So it may those that it picks out of attention.

It is given other numbers in their place: if the model then attends and gives the same, bit for bit,
nothing depends on them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor

from gattn.models.doors.functions.calling.raw_call import RawCall, observed
from gattn.models.doors.functions.mode import FunctionMode
from gattn.models.doors.proof.kernels import without_fast_path
from gattn.models.doors.proof.layouts.sameness import are_same
from gattn.models.doors.proof.probing.failing import is_out_of_memory
from gattn.models.doors.proof.probing.one_run.attention_picked import picks_attention
from gattn.models.doors.proof.probing.one_run.digests import digest
from gattn.models.doors.proof.probing.one_run.reading_modes import Name, Reading
from gattn.models.doors.proof.probing.one_run.walking import Walk

Change = Callable[[Tensor, torch.Generator], Tensor]


def _between(x: Tensor, generator: torch.Generator) -> Tensor:
    """Draw numbers between 0 and 1, as shares of attention are."""
    return torch.rand(x.shape, generator=generator, device="cpu").to(x)


def _large(x: Tensor, generator: torch.Generator) -> Tensor:
    """Draw large numbers of both signs, far apart: code may compare one with another."""
    return (1e3 * torch.randn(x.shape, generator=generator, device="cpu")).to(x)


_CHANGES: tuple[Change, ...] = (
    lambda x, _: x.flatten().flip(0).reshape(x.shape),
    lambda x, _: -x,
    lambda x, _: torch.zeros_like(x),
    lambda x, _: torch.full_like(x, 1e-6),
    lambda x, _: torch.full_like(x, 1e3),
    lambda x, _: torch.full_like(x, -1e3),
    _between,
    *[_large] * 6,
)


_SIZES: tuple[Callable[[int], int], ...] = (
    lambda n: n,
    lambda n: n + 1,
    lambda n: 1,
    lambda n: 2 * n + 1,
    lambda n: max(n - 1, 1),
    lambda n: 10 * n + 10,
)
"""How many numbers are given in place of so many that a mask picked."""


def are_only_kept(walk: Walk, run: Callable[[], Any], names: Collection[Name]) -> bool:
    """Return whether a model attends and gives the same, whatever numbers code is given there."""
    first = _ran(walk, run, _Giving(walk, names, lambda x, _: x))
    return first is not None and all(
        (other := _ran(walk, run, _Giving(walk, names, change, seed))) is not None
        and other[0] == first[0]
        and are_same(other[1], first[1])
        for seed, change in enumerate(_CHANGES)
    )


def _ran(walk: Walk, run: Callable[[], Any], giving: _Giving) -> tuple[list[object], Any] | None:
    """Return what a model attended to and gave; None if it fails."""
    attended: list[object] = []

    def see(call: RawCall) -> None:
        given = (call.output, call.value, call.query, call.key, call.scores, call.mask)
        attended.append([None if x is None else (x.shape, digest(x)) for x in given])

    try:
        with FunctionMode(), without_fast_path(), walk.following(), observed(see), giving:
            result = run()
        return None if giving.is_written else (attended, result)
    except Exception as error:
        if is_out_of_memory(error):
            raise
        return None


class _Giving(Reading):
    """Gives code other numbers in some places."""

    def __init__(self, walk: Walk, names: Collection[Name], change: Change, seed: int = 0) -> None:
        super().__init__(walk, {})
        self._names, self._change = names, change
        self._generator = torch.Generator().manual_seed(seed)
        self._size = _SIZES[seed % len(_SIZES)]
        self._given: list[tuple[Tensor, Tensor]] = []

    @property
    def is_written(self) -> bool:
        """Whether code wrote into arrays that it was given, which are a tensor's memory."""
        return not all(are_same(x, before) for x, before in self._given)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run a function, on other numbers if it is one of those."""
        if self._is_own() and picks_attention(func, args):
            result = func(*args, **(kwargs or {}))
            return self._picked(result) if self._name(func) in self._names else result
        if self._is_read(func) and self._name(func) in self._names:
            with torch._C.DisableTorchFunction():
                other = self._change(args[0].detach(), self._generator).clone()
                self._given.append((other, other.clone()))
                args = (other, *args[1:])
        return func(*args, **(kwargs or {}))

    def _picked(self, x: Tensor) -> Tensor:
        """Return other numbers than those that were picked, and as many others if a mask did."""
        with torch._C.DisableTorchFunction():
            some = x.detach()
            if x.dim() == 1:
                size = self._size(len(x))
                some = torch.cat([some, some.new_ones(size)])[:size]
            return self._change(some, self._generator).clone()
