"""Finds which elements of a model's batch learned tokens belong to, by what the model answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor, nn

from gattn.models.doors.proof.layouts.slots import Owner, ranks
from gattn.models.doors.proof.probing.codes import NONE, decoded, words
from gattn.models.doors.proof.probing.one_run.walking import Entered, Given, Run
from gattn.models.doors.proof.probing.taints import (
    CLEAR,
    along,
    along_dim,
    change,
    replaced,
    sources,
    with_nan,
)


class Answering(Protocol):
    """Runs the model, and lists the numbers of its answer."""

    def __call__(self, row: Tensor | None = None, entered: Entered | None = None) -> list[Tensor]:
        """Run it with some elements of its batch changed, or with what `entered` puts there."""


class Answers:
    """What a model's answers tell of its batch.

    Parameters
    ----------
    answered : Answering
        Runs the model.
    places : mapping
        What some runs of its modules were given.
    size : int
        How many elements its batch has.
    """

    def __init__(
        self, answered: Answering, places: Mapping[tuple[str, int], Given], size: int
    ) -> None:
        self._answered, self._places, self._size = answered, places, size
        self._code = words(size)

    def owner(self, place: tuple[str, int], source: int) -> Owner | None:
        """Return the dimension of an input of a run that is the batch; None if none is proved."""
        plain, of_batch = self._answer
        found: set[tuple[int, ...]] = set()
        for dim, size in enumerate(sources(self._places[place])[source].shape):
            changes = (_entering(place, source, dim, row) for row in self._code)
            runs = [self._answered(entered=one) for one in changes if size == self._size]
            for own, one in zip(of_batch, self._told(plain, runs) if runs else (), strict=False):
                if own is not None and one is not None:
                    found.add((dim, *own[one.argsort()].tolist()))
        (dim, *elements) = found.pop() if len(found) == 1 else (-1,)
        return None if dim < 0 else Owner(dim, torch.tensor(elements, device="cpu"))

    @cached_property
    def _answer(self) -> tuple[list[Tensor], list[Tensor | None]]:
        """The model's answer, and the batch of each dimension of each part of it."""
        plain = self._answered()
        return plain, self._told(plain, [self._answered(row) for row in self._code])

    def filled(
        self, place: tuple[str, int], source: int, dim: int, elements: Tensor
    ) -> Tensor | None:
        """Say to which elements learned rows belong that a model put beside those of the batch.

        They are as many for each, in their places: NaN in them must reach what is made of it.
        """
        unknown = elements == NONE
        for own in _completions(elements, self._size):
            each = torch.ones(self._size, dtype=torch.bool, device="cpu")
            ranks_of = ranks(torch.where(unknown, own, -1))
            most = int(ranks_of[unknown].max())
            marks = [(row[own] & unknown, row) for row in self._code]
            marks += [(unknown & (ranks_of == n), each) for n in range(most + 1)]
            if all(
                torch.equal(self._reached(_entering(place, source, dim, some)), wanted)
                for some, wanted in marks
            ):
                return own
        return None

    def _reached(self, entered: Entered) -> Tensor:
        """Return which elements of the batch some change reaches in the model's answer."""
        found = torch.zeros(self._size, dtype=torch.bool, device="cpu")
        plain, of_batch = self._answer
        after, batches = self._answered(entered=entered), iter(of_batch)
        if [x.shape for x in after] != [x.shape for x in plain]:
            return found
        for x, before in zip(after, plain, strict=True):
            marks = (change(x, before) >= CLEAR)[None]
            for dim, own in zip(range(before.dim()), batches, strict=False):
                if own is not None:
                    found[own[along_dim(marks, dim + 1)[0]]] = True
        return found

    def _told(self, plain: Sequence[Tensor], runs: Sequence[list[Tensor]]) -> list[Tensor | None]:
        """Say which element each index of each dimension of each part of the answer belongs to."""
        if any([x.shape for x in one] != [x.shape for x in plain] for one in runs):
            return [None for x in plain for _ in x.shape]
        found: list[Tensor | None] = []
        every = torch.arange(self._size, device="cpu")
        for n, before in enumerate(plain):
            marks = torch.stack([change(one[n], before) for one in runs]) >= CLEAR
            for dim in range(before.dim()):
                own = along_dim(marks, dim + 1)
                elements = decoded(own, torch.ones_like(own), self._code)
                is_each = torch.equal(elements.sort().values, every)
                found.append(elements if is_each else None)
        return found


def _entering(place: tuple[str, int], source: int, dim: int, row: Tensor) -> Entered:
    """Put NaN into some indices of a dimension of an input of a run, as it begins."""

    def entered(run: Run, module: nn.Module, now: Given) -> Given | None:
        some = sources(now) if run.place == place else []
        if not some:
            return None
        x = some[source]
        return replaced(now, x, with_nan(x, along(x, dim, row)))

    return entered


def _completions(elements: Tensor, size: int) -> Iterator[Tensor]:
    """Fill in those of a dimension that has all of an element of the batch in turn, or apart."""
    if len(elements) % size:
        return
    for is_turned in (False, True):
        rows = elements.reshape(-1, size).mT if is_turned else elements.reshape(size, -1)
        highest = rows.amax(1, keepdim=True)
        if not bool(((rows == highest) | (rows == NONE)).all()):
            continue
        if torch.equal(highest[:, 0].sort().values, torch.arange(size, device="cpu")):
            full = highest.expand_as(rows)
            yield (full.mT if is_turned else full).flatten()
