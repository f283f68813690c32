"""Finds on which positions of a module's input the slots of an attention call depend."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gattn.models.doors.proof.probing.codes import NONE, SEVERAL, decoded, words
from gattn.models.doors.proof.probing.taints import Reached

_FEWEST = 3
"""With fewer indices, each is marked by itself anyway."""
Probe = Callable[[Tensor], Reached]
"""Runs a module with NaN where booleans, which broadcast to its input, are true."""


@dataclass(eq=False)
class Side:
    """How the queries or the keys of a call depend on one input.

    Parameters
    ----------
    depends : Tensor (lead, slots)
        Which slots depend on it at all.
    apart, batch : set of int
        The dimensions whose indices reach different slots, and those of them whose indices reach
        all slots of an element or none.
    index : dict
        For a dimension, the index that each slot (lead, slots) depends on.
    marks : list of Tensor (lead, runs, slots)
        The slots that were marked in the runs of a code.
    hidden : list of Tensor (lead, runs, slots)
        The slots of which it is not known whether they were marked.
    ends : list of Tensor (lead, runs, slots)
        Where slots mix several positions, those that the first and the last index of a dimension
        reach: half of all may reach all slots.
    is_spread : bool
        Whether one position reaches several slots of an element.
    is_one : bool
        Whether the input is a single token, or the only slot depends on all of its tokens and
        there is no batch: nothing is to be told apart.
    is_seen : bool
        Whether a run showed that a slot depends on it; it may depend on it unseen where nothing
        tells that it does not.
    has_untold : bool
        Whether it is not known where some keys stand since a mask takes them from all queries.
    unseen : set of int
        The dimensions of which a run told nothing of any slot.
    """

    depends: Tensor
    apart: set[int] = field(default_factory=set)
    batch: set[int] = field(default_factory=set)
    index: dict[int, Tensor] = field(default_factory=dict)
    marks: list[Tensor] = field(default_factory=list)
    hidden: list[Tensor] = field(default_factory=list)
    ends: list[Tensor] = field(default_factory=list)
    _codes: dict[int, Tensor] = field(default_factory=dict)
    is_spread: bool = False
    is_one: bool = False
    is_seen: bool = False
    has_untold: bool = False
    unseen: set[int] = field(default_factory=set)

    @property
    def tells_tokens(self) -> bool:
        """Whether slots of one element depend on different positions."""
        if self.depends.shape[1] == 1:
            return self.is_one or bool(self.apart)
        return bool(self.apart - self.batch)

    @property
    def is_single(self) -> bool:
        """Whether one slot of each element depends on it: a new token's key."""
        return bool((self.depends.sum(1) == 1).all())

    @property
    def is_exact(self) -> bool:
        """Whether each slot depends on one position or none."""
        is_told = bool(self.index) or (self.is_one and self.is_single)
        return is_told and all(bool((x >= NONE).all()) for x in self.index.values())

    def is_batch(self, dim: int) -> bool:
        """Whether the slots of each element have one index along a dimension."""
        index = self.index[dim]
        most = index.amax(1, keepdim=True)
        return bool((index >= NONE).all()) and bool((index == most)[index != NONE].all())

    def note(self, dim: int, seen: Tensor, known: Tensor) -> None:
        """Learn from a run in which some indices of a dimension were marked."""
        self.is_seen |= bool((seen & known).any())
        sure = self.depends & known
        if not bool(sure.any()):
            self.unseen.add(dim)
        if bool((sure & ~seen).any()):
            self.apart.add(dim)
            if bool(((seen | ~sure).all(1) | (~seen | ~sure).all(1)).all()):
                self.batch.add(dim)

    def learn(self, dim: int, seen: Tensor, known: Tensor, code: Tensor) -> None:
        """Learn from the runs of a code over a dimension, (runs, lead, slots)."""
        self.is_seen |= bool((seen & known).any())
        self.index[dim], self._codes[dim] = decoded(seen, known, code), code
        self.marks.append((seen & known).movedim(0, 1))
        self.hidden.append((~known).movedim(0, 1))

    def is_at_one(self, seen: Tensor, known: Tensor, code: Tensor) -> bool:
        """Return whether several slots depend on the same index of a dimension, by a code's runs.

        Half of the indices, which are marked at first, may hold it.
        """
        index = decoded(seen, known, code)[self.depends]
        return (
            self.depends.shape[1] > 1
            and bool(index.numel())
            and bool(((index >= 0) & (index == index[0])).all())
        )

    def mixes(self, dim: int) -> bool:
        """Return whether some slot depends on several indices of a dimension."""
        return bool((self.index[dim] == SEVERAL).any())

    def is_hidden(self, dim: int, some: Tensor) -> bool:
        """Return whether no run along a dimension shows anything of some slots (lead, slots)."""
        if not self.hidden:
            return False
        return bool(self.hidden[list(self.index).index(dim)].all(1)[some].all())

    def fill(self, unknown: Tensor) -> None:
        """Say where slots (lead, slots) stand that no run shows, since a mask takes all they read.

        That is where they stand in every other element, or where their own element stands.
        """
        for dim, index in self.index.items():
            if (alike := _alike(index, unknown)) is not None:
                self.index[dim] = alike
            elif (alike := _alike(index.mT, unknown.mT)) is not None:
                self.index[dim] = alike.mT

    def fill_from(self, other: Side, unknown: Tensor) -> None:
        """Let slots that no run shows stand where those of the other side do, if all others do."""
        for dim, index in self.index.items():
            its = other.index.get(dim)
            if its is None or its.shape != index.shape or bool(unknown.all()):
                continue
            if bool((its[unknown] >= 0).all()) and bool(((index == its) | unknown).all()):
                self.index[dim] = its.clone()

    def fill_unread(self, unread: Tensor) -> None:
        """Say where keys (lead, slots) stand that no query reads and whose values tell nothing."""
        unread = unread & torch.stack([x == NONE for x in self.index.values()]).all(0)
        self.fill(unread)
        left = torch.stack([x == NONE for x in self.index.values()]).any(0)
        self.has_untold = bool((unread & left).any())

    def has_own(self, dim: int, index: Tensor) -> bool:
        """Return whether slots depend on some indices (slots,) of a dimension, others aside."""
        place = list(self.index).index(dim)
        own = self._codes[dim][:, index]
        found = self.marks[place] | self.hidden[place] | ~own
        return bool((found.all(1) | ~self.depends).all())


@dataclass(eq=False)
class Dependence:
    """How a call depends on one input of some shape.

    `values` say, as `Side.index` does, on which index of a dimension the values of each key depend.
    """

    shape: tuple[int, ...]
    queries: Side
    keys: Side
    values: dict[int, Tensor] = field(default_factory=dict, init=False)

    @property
    def sides(self) -> tuple[Side, Side]:
        """Both sides."""
        return self.queries, self.keys

    def complete(self, probe: Probe) -> None:
        """Find the index that each slot depends on, dimension by dimension."""
        reached = None
        for dim in range(len(self.shape)):
            if any(dim in side.apart and dim not in side.index for side in self.sides):
                reached = self._learn(dim, probe)
        for dim in self._tell_hidden(probe):
            self._learn(dim, probe)
        if reached is not None and reached.masked is not None and bool(reached.masked.any()):
            self.queries.fill(reached.masked)
        if reached is not None and reached.unread is not None and self.keys.index:
            self.keys.fill_unread(reached.unread)
        if reached is not None and reached.masked is not None and bool(reached.masked.any()):
            self.queries.fill_from(self.keys, reached.masked)
        self._mark_ends(probe)
        for side in self.sides:
            if side.index:
                # The runs along each dimension mark every position: what none reaches has none.
                side.depends = torch.stack([x != NONE for x in side.index.values()]).all(0)
                side.index = {n: x.where(side.depends, NONE) for n, x in side.index.items()}

    def _learn(self, dim: int, probe: Probe) -> Reached:
        """Find the index of a dimension that each slot depends on; return the first run."""
        code = words(self.shape[dim])
        some = [probe(self.along(dim, row)) for row in code]
        runs = [both(one) for one in some]
        self.learn_values(dim, some, code)
        for n, side in enumerate(self.sides):
            if dim in side.index:
                continue
            seen, known = (torch.stack([run[n][m] for run in runs]) for m in (0, 1))
            self._tell_untold(probe, n, dim, code, seen, known)
            if dim not in side.apart and side.is_at_one(seen, known, code):
                side.apart.add(dim)
                side.batch.add(dim)
            if dim in side.apart:
                side.learn(dim, seen, known, code)
        return some[0]

    def learn_values(self, dim: int, runs: Sequence[Reached], code: Tensor) -> None:
        """Learn of the values from the runs of a code over a dimension."""
        seen = torch.stack([run.values for run in runs])
        self.values[dim] = decoded(seen, torch.ones_like(seen), code)

    def _tell_untold(
        self, probe: Probe, n: int, dim: int, code: Tensor, seen: Tensor, known: Tensor
    ) -> None:
        """Mark half of a run's indices at a time where it tells nothing of a side, but others do.

        Slots that mix tokens may all be reached: what one of these runs hides, they may depend on.
        """
        is_told = known.flatten(1).any(1)
        for number in (~is_told).nonzero()[:, 0].tolist() if bool(is_told.any()) else ():
            own = code[number]
            first = own & (own.cumsum(0) % 2 == 1)
            halves = (probe(self.along(dim, half)) for half in (first, own & ~first))
            (one, is_one_known), (other, is_other_known) = (both(half)[n] for half in halves)
            seen[number] = (one & is_one_known) | (other & is_other_known)
            known[number] = seen[number] | (is_one_known & is_other_known)

    def _tell_hidden(self, probe: Probe) -> list[int]:
        """Find dimensions of which each slot depends on one index, NaN in which leaves no score.

        So it is where tokens of one frame read those of another.
        """
        found = []
        for n, side in enumerate(self.sides):
            tokens = [dim for dim in side.index if dim not in side.batch and not side.mixes(dim)]
            for dim in side.unseen - side.apart - {len(self.shape) - 1} if tokens else ():
                code = words(self.shape[dim])
                two = torch.stack((code[0], ~code[0]))
                seen, known = self._by_halves(probe, n, dim, two, tokens[0])
                if seen.equal(known):  # Slots depend on several.
                    continue
                seen, known = self._by_halves(probe, n, dim, code, tokens[0])
                if bool((decoded(seen, known, code)[side.depends] >= 0).all()):
                    side.apart.add(dim)
                    side.batch |= {dim} if side.is_at_one(seen, known, code) else set()
                    side.learn(dim, seen, known, code)
                    found.append(dim)
        return found

    def _by_halves(self, probe: Probe, n: int, dim: int, code: Tensor, along: int) -> Tensor:
        """Return which slots are marked by the runs of a code, and which are known (2, runs, ...).

        Half of the tokens `along` a dimension are marked at a time, which leaves scores of others.
        """
        own = self.sides[n].index[along].clamp(min=0)
        half = torch.arange(self.shape[along], device="cpu") % 2 == 0
        runs = []
        for row in code:
            found = torch.zeros(2, *own.shape, dtype=torch.bool, device="cpu")
            for some in (half, ~half):
                marks = self.along(dim, row) & self.along(along, some)
                found |= torch.stack(both(probe(marks))[n]) & some[own]
            runs.append(found)
        return torch.stack(runs, 1)

    def _mark_ends(self, probe: Probe) -> None:
        for dim, size in enumerate(self.shape):
            some = [side for side in self.sides if dim in side.index and side.mixes(dim)]
            if not some or size < _FEWEST:
                continue
            rows = torch.arange(size, device="cpu") == torch.tensor([[0], [size - 1]], device="cpu")
            runs = [both(probe(self.along(dim, row))) for row in rows]
            for side in some:
                n = self.sides.index(side)
                side.ends.append(torch.stack([run[n][0] & run[n][1] for run in runs], 1))

    def along(self, dim: int, marked: Tensor) -> Tensor:
        """Shape marks of one dimension's indices so that they broadcast to the input."""
        return marked.reshape([-1 if n == dim else 1 for n in range(len(self.shape))])


def _alike(index: Tensor, unknown: Tensor) -> Tensor | None:
    """Return what all known rows say for the unknown ones; None if they say different things."""
    highest = index.masked_fill(unknown, SEVERAL).amax(0)
    is_known = not bool(unknown.all(0).any()) and bool((highest >= 0).all())
    are_alike = is_known and bool(((index == highest) | unknown).all())
    return highest.expand_as(index) if are_alike else None


def both(reached: Reached) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Return what a run says of queries and of keys: the slots reached, and those known."""
    return (reached.queries, reached.queries_known), (reached.keys, reached.keys_known)
