"""Lets all runs of a proof take the same branches where code reads numbers out of tensors."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gattn.models.doors.proof.probing.one_run.missing import REPLACES, found_in
from gattn.models.doors.proof.probing.one_run.origins import Made, Origins
from gattn.models.doors.proof.probing.one_run.picking import By, Picks
from gattn.models.doors.proof.probing.one_run.reading_modes import (
    ALL_NUMBERS,
    AS_MANY,
    Name,
    Noting,
    NotingDecided,
    Repeated,
)
from gattn.models.doors.proof.probing.one_run.state import place_of
from gattn.models.doors.proof.probing.one_run.walking import Run, Walk


class Reads:
    """What code reads of a model's numbers in one run, and lets it read again in others.

    Attributes
    ----------
    are_by_values : bool
        Whether code read numbers that are no constants, nor integers that it made itself, which may
        decide what it does; those that were made of inputs alone are none.
    numbers : set of Name
        Where code read numbers that are no constants, one by one, nor integers.
    inputs : set of int
        The inputs of which numbers were made alone that code read, by their numbers.
    is_decided : bool
        Whether values may decide sizes, or integers that code takes, before attention.
    may_branch : bool
        Whether attention may decide what code does, so that edits of it may change that, perhaps
        before it meets the values itself.
    are_hidden : bool
        Whether numbers were read before attention by none of torch's functions, as in scripted
        code, which then may decide what it does.
    given_out : set of Name
        Where code made arrays or lists of numbers that are no constants, or picked numbers of
        attention by values.

    Parameters
    ----------
    walk : Walk
        The runs of the model's modules.
    picks : Picks
        Learns where code may pick or order tokens itself.
    origins : Origins
        Knows of what numbers were made.
    give_out : callable
        Is told of what code makes arrays or lists that it does more with than keep.
    kept : collection of Name
        Where code makes or picks what it only keeps.
    """

    def __init__(
        self,
        walk: Walk,
        picks: Picks,
        origins: Origins,
        give_out: Callable[[Sequence[Tensor]], None],
        kept: Collection[Name] = (),
    ) -> None:
        self.are_by_values = self.is_decided = self.may_branch = False
        self._has_learned = self._has_attended = self.are_hidden = False
        self._has_hidden, self._count = False, 0
        self.inputs: set[int] = set()
        self.given_out: set[Name] = set()
        self.numbers: set[Name] = set()
        self._kept, self._give_out = kept, give_out
        self._walk, self._picks, self._origins = walk, picks, origins
        self._running: Sequence[Run] = ()
        self._last: Run | None = None
        self._state: object = None
        self._found: dict[Name, Any] = {}
        self._learned: list[Made | None] = []
        self._decided: dict[Name, Any] = {}
        self._tested: dict[Name, Tensor | bool] = {}

    def noting(self) -> AbstractContextManager[Any]:
        """Note what code reads in a run."""
        return Noting(self._walk, self)

    def deciding(self) -> AbstractContextManager[Any]:
        """Note all that values decide in a run, so that it is the same in others."""
        return NotingDecided(self._walk, self._decided)

    @property
    def count_told(self) -> int:
        """How many kernels told Python of numbers, or of sizes that these decide."""
        return self._picks.count_told

    def begin_function(self) -> None:
        """Note that the model's code calls a function."""
        self._has_hidden |= self._picks.count_read > self._count
        self._picks.begin_function()

    def end_function(self) -> None:
        """Note that the function ends."""
        self._count = self._picks.count_read

    def meet(self, name: Name, func: Any, x: Any) -> None:
        """Note what a function that looks for NaN or infinity finds, by which code may decide."""
        if (found := found_in(func, x)) is not None:
            self._tested[name] = found
        if func not in REPLACES and isinstance(x, Tensor) and not self._is_constant(x):
            self.are_by_values |= not self._takes_origins([x])

    def picking(self, name: Name) -> AbstractContextManager[Any]:
        """Note that a function picks numbers of attention, which code may only keep."""
        self.given_out.add(name)
        return self._picks.ignoring() if name in self._kept else nullcontext()

    def learn(self, func: Any, given: Sequence[Tensor]) -> None:
        """Note that a function takes integers for plain numbers, or that they decide a size."""
        numbers = [x for x in given if not x.is_floating_point()]
        if numbers or getattr(func, "__name__", "") in AS_MANY:
            self._picks.tell(numbers or given)
            self._learn(numbers or given)

    def _learn(self, numbers: Sequence[Tensor]) -> None:
        if not all(map(self._is_constant, numbers)):
            made = self._origins.of(numbers)
            self._note_made(made)
            if made is None:
                self._origins.lose()
            self._learned.append(made)

    def _note_made(self, made: Made | None) -> None:
        if not self._origins.are_integers(made):
            self._has_learned = True
            self.may_branch |= self._has_attended

    def attend(self, *, is_read: bool = False) -> None:
        """Note that attention runs, which may depend on what code learned before.

        If its own softmax `is_read` before it meets the values, so may these.
        """
        self.may_branch |= is_read and self._has_learned
        for made in self._learned:
            self.are_by_values |= made is None
            self.is_decided |= not self._origins.are_integers(made)
            self._take(made or ())
        self._learned.clear()
        self._has_attended = True
        self.are_hidden |= self._has_hidden

    def begin(self) -> None:
        """Note that the model begins to run."""
        self._state, self._last = _random_state(), self._walk.running[-1]
        self._running = tuple(self._walk.running)

    def look(self, *, always: bool = False) -> None:
        """See whether random numbers of Python or NumPy were drawn since another module ran."""
        now = self._walk.running[-1] if self._walk.running else None
        if always or now is not self._last:
            state = _random_state()
            if state != self._state:
                self._picks.saw("random", By.CHANCE, self._running)
                self._origins.lose()
            self._state, self._last = state, now
        self._running = tuple(self._walk.running)

    def note(self, func: Any, name: Name, given: Sequence[Tensor], result: Any) -> None:
        """Note what a function gave code to read of some tensors."""
        if name in self._kept:
            return
        self._picks.tell(given)
        is_constant = all(map(self._is_constant, given))
        is_known = is_constant or self._takes_origins(given)
        self.are_by_values |= any(map(self._picks.is_index, given)) and not is_known
        if not is_known:
            self._origins.lose()
        are_floats = any(x.is_floating_point() for x in given)
        if func in ALL_NUMBERS:
            if are_floats and not is_constant:
                self._picks.saw(func.__name__, By.VALUES, self._running)
                self.given_out.add(name)
                self._give_out(given)
            elif not are_floats:
                self._learn(given)
            return
        self._found[name] = result
        if not are_floats and self._picks.repeat():
            self._learn(given)
        if are_floats and not is_constant:
            self.numbers.add(name)
        are_integers = not are_floats and all(x.dtype != torch.bool for x in given)
        self.are_by_values |= not (is_known or are_integers)

    def _is_constant(self, x: Tensor) -> bool:
        return self._picks.own.take(x) or place_of(x) in self._picks.constants

    def _takes_origins(self, given: Sequence[Tensor]) -> bool:
        """Note of what some tensors were made alone; return whether that is known."""
        made = self._origins.of(given)
        self._note_made(made)
        self._take(made or ())
        return made is not None

    def _take(self, made: Made | tuple[()]) -> None:
        for one in made:
            if isinstance(one, int):
                self.inputs.add(one)
            else:
                self._picks.own.note_read(one)

    def repeated(self, begins: Mapping[str, int]) -> AbstractContextManager[Any]:
        """Let code read the same numbers again; `begins` are the first runs of modules."""
        if not (self._found or self._decided or self._tested):
            return nullcontext()
        known = self._found, dict(self._decided), self._tested
        return Repeated(self._walk, *known, begins)


def _random_state() -> object:
    """Return the states of Python's and NumPy's generators."""
    _, keys, place, *_ = np.random.get_state()  # noqa: NPY002
    return random.getstate(), place, keys[0]
