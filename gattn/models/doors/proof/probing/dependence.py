"""Finds on which positions of a module's input the slots of an attention call depend."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
from torch import Tensor

from gattn.models.doors.proof.probing.codes import NONE, decoded, words
from gattn.models.doors.proof.probing.taints import Reached

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
    is_spread : bool
        Whether one position reaches several slots of an element.
    is_one : bool
        Whether the input is a single token, or the only slot depends on all of its tokens and
        there is no batch: nothing is to be told apart.
    is_seen : bool
        Whether a run showed that a slot depends on it; it may depend on it unseen where nothing
        tells that it does not.
    """

    depends: Tensor
    apart: set[int] = field(default_factory=set)
    batch: set[int] = field(default_factory=set)
    index: dict[int, Tensor] = field(default_factory=dict)
    marks: list[Tensor] = field(default_factory=list)
    hidden: list[Tensor] = field(default_factory=list)
    _codes: dict[int, Tensor] = field(default_factory=dict)
    is_spread: bool = False
    is_one: bool = False
    is_seen: bool = False

    @property
    def tells_tokens(self) -> bool:
        """Whether slots of one element depend on different positions."""
        if self.depends.shape[1] == 1:
            return self.is_one or bool(self.apart)
        return bool(self.apart - self.batch)

    @property
    def is_single(self) -> bool:
        """Whether one slot of each element, the same in all, depends on it: a new token's key."""
        slots = self.depends[:1]
        return int(slots.sum()) == 1 and bool((self.depends == slots).all())

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

    def has_own(self, dim: int, index: Tensor) -> bool:
        """Return whether slots depend on some indices (slots,) of a dimension, others aside."""
        place = list(self.index).index(dim)
        own = self._codes[dim][:, index]
        found = self.marks[place] | self.hidden[place] | ~own
        return bool((found.all(1) | ~self.depends).all())


@dataclass(eq=False)
class Dependence:
    """How a call depends on one input of some shape."""

    shape: tuple[int, ...]
    queries: Side
    keys: Side

    @property
    def sides(self) -> tuple[Side, Side]:
        """Both sides."""
        return self.queries, self.keys

    def complete(self, probe: Probe) -> None:
        """Find the index that each slot depends on, dimension by dimension."""
        for dim, size in enumerate(self.shape):
            if not any(dim in side.apart and dim not in side.index for side in self.sides):
                continue
            code = words(size)
            runs = [_both(probe(self.along(dim, row))) for row in code]
            for n, side in enumerate(self.sides):
                if dim in side.apart:
                    seen, known = (torch.stack([run[n][m] for run in runs]) for m in (0, 1))
                    side.learn(dim, seen, known, code)
        for side in self.sides:
            if side.index:
                # The runs along each dimension mark every position: what none reaches has none.
                side.depends = torch.stack([x != NONE for x in side.index.values()]).all(0)
                side.index = {n: x.where(side.depends, NONE) for n, x in side.index.items()}

    def along(self, dim: int, marked: Tensor) -> Tensor:
        """Shape marks of one dimension's indices so that they broadcast to the input."""
        return marked.reshape([-1 if n == dim else 1 for n in range(len(self.shape))])


def outlined(shape: tuple[int, ...], probe: Probe) -> Dependence:
    """Find which dimensions of an input tell slots apart, with one run for each."""
    whole = probe(torch.ones((), dtype=torch.bool))
    found = Dependence(
        shape,
        *(Side(seen | ~known, is_seen=bool((seen & known).any())) for seen, known in _both(whole)),
    )
    for dim, size in enumerate(shape):
        if size > 1 and any(bool(side.depends.any()) for side in found.sides):
            first = _both(probe(found.along(dim, torch.arange(size) == size // 2)))
            others: list[Any] = []
            for n, side in enumerate(found.sides):
                seen, known = first[n]
                if not bool((seen & known).any()):  # No query stands for it, say.
                    seen, known = _apart(found, dim, n, others, probe) or first[n]
                side.note(dim, seen, known)
    _note_spread(found, probe)
    _note_unseen(found, probe)
    return found


def _apart(
    found: Dependence, dim: int, n: int, runs: list[Any], probe: Probe
) -> tuple[Tensor, Tensor] | None:
    """Mark some indices of a dimension after others, until some slots of a side are reached alone.

    Returns that run, or the first; None where the only slot is reached by all that reach any.
    """
    indices, depends = torch.arange(found.shape[dim]), found.sides[n].depends
    marks = [indices % 3 > 0]
    marks += [(indices >> bit) % 2 > 0 for bit in range((len(indices) - 1).bit_length())]
    for place, marked in enumerate(marks):
        if place == len(runs):
            runs.append(_both(probe(found.along(dim, marked))))
        seen, known = runs[place][n]
        if bool((seen & known).any()) and bool((depends & known & ~seen).any()):
            return seen, known
    return None if depends.shape[1] == 1 else runs[0][n]


def _note_unseen(found: Dependence, probe: Probe) -> None:
    """Find sides that depend on nothing of an input, as learned queries do.

    Scores tell nothing of a query while all of its keys are NaN, so where none was seen to be NaN,
    tokens are marked that leave it some keys. Where even a token that takes all keys away, such as
    the first one of a recurrent network, does so for all queries alike, none of them stands for it.
    """
    for n, (side, other) in enumerate((found.sides, found.sides[::-1])):
        dims = other.apart - other.batch
        if side.is_seen or not bool(side.depends.any()) or not dims:
            continue
        are_apart, is_doubtful, is_known = False, side.depends, ~side.depends
        for dim in dims:
            code = words(found.shape[dim])
            runs = [_both(probe(found.along(dim, row)))[n] for row in code]
            seen, known = (torch.stack([run[m] for run in runs]) for m in (0, 1))
            side.is_seen |= bool((seen & known).any())
            are_apart |= bool((known != known[..., :1]).any())
            is_doubtful = is_doubtful & ~_is_free(known, code)
            is_known = is_known | known.any(0)
        if (
            not side.is_seen
            and bool(is_known.all())
            and not (are_apart and bool(is_doubtful.all()))
        ):
            side.depends = torch.zeros_like(side.depends)
            side.apart, side.batch = set(), set()


def _is_free(known: Tensor, code: Tensor) -> Tensor:
    """Return which slots (lead, slots) some run of a code knows for each position."""
    patterns, place = torch.unique(known.flatten(1), dim=1, return_inverse=True)
    free: Tensor = (code.T.float() @ patterns.float() > 0).all(0)
    return free[place].reshape(known.shape[1:])


def refine(found: Dependence, probe: Probe) -> None:
    """Find dimensions of which a side depends on one index alone, as where a loop takes one.

    Marking that index reaches what all others do not.
    """
    for n, side in enumerate(found.sides):
        for dim, size in enumerate(found.shape):
            if size == 1 or dim in side.apart or not bool(side.depends.any()):
                continue
            one = torch.arange(size) == size // 2
            first, other = (_both(probe(found.along(dim, marks)))[n] for marks in (one, ~one))
            if bool((first[0] & first[1] & other[0] & other[1]).any()):
                continue
            code = words(size)
            runs = [_both(probe(found.along(dim, row)))[n] for row in code]
            marked, told = (torch.stack([run[m] for run in runs]) for m in (0, 1))
            index = decoded(marked, told, code)
            most = (marked & told | ~told).sum(0)  # What is hidden may be marks of others.
            is_own = (index >= 0) & (most == code[:, 0].sum())
            if bool(is_own[side.depends].all()):
                side.apart.add(dim)
                side.learn(dim, marked, told, code)
                if side.is_batch(dim):
                    side.batch.add(dim)


def reaches_all_keys(shape: tuple[int, ...], probe: Probe) -> bool:
    """Prove that no part of an input reaches some keys, or values, of an element without others.

    The first, middle and last index of each dimension are marked: a convolution that mixes the
    tokens next to each other does not take the first ones to the last.
    """
    is_reached = False
    for dim, size in enumerate(shape):
        form = [-1 if n == dim else 1 for n in range(len(shape))]
        for index in sorted({0, size // 2, size - 1}) if size > 1 else ():
            run = probe((torch.arange(size) == index).reshape(form))
            sides = torch.stack((run.keys, run.values))
            is_whole = (sides.all(2) | ~sides.any(2)).all()
            if not bool(run.keys_known.all() & is_whole):
                return False
            is_reached |= bool(run.keys.any())
    return is_reached


def are_of_one_each(
    shapes: Sequence[tuple[int, ...]], features: Sequence[int], probes: Sequence[Probe]
) -> bool:
    """Prove that each element is made of one position of inputs alone, and of some.

    Any two positions differ in some bit of their numbers; a dimension of `features` is no position.
    """
    reached: Any = False
    for shape, of, probe in zip(shapes, features, probes, strict=True):
        form = [1 if n == of else size for n, size in enumerate(shape)]
        numbers = torch.arange(prod(form)).reshape(form)
        for bit in range(max(1, (prod(form) - 1).bit_length())):
            halves = [probe((numbers >> bit) % 2 == half) for half in (0, 1)]
            one, other = (run.keys.any(1) | run.queries.any(1) for run in halves)
            if bool((one & other).any()):
                return False
            reached = reached | one | other
    return bool(torch.as_tensor(reached).all())


def _note_spread(found: Dependence, probe: Probe) -> None:
    """Mark one position, to see how many slots it reaches."""
    apart = set.union(*(side.apart for side in found.sides))
    if apart:
        one = torch.ones((), dtype=torch.bool)
        for dim in apart:
            size = found.shape[dim]
            # Not in the middle, where windows begin: each would be reached once.
            one = one & found.along(dim, torch.arange(size) == 2 * size // 5)
        for side, (seen, known) in zip(found.sides, _both(probe(one)), strict=True):
            side.is_spread = bool(((seen & known).sum(1) > 1).any())


def plainly(shape: tuple[int, ...], lead: tuple[int, ...], probe: Probe) -> Dependence | None:
    """Prove that (batch, tokens, channels) is attended to as (batch, heads, tokens, .).

    In each run the tokens are marked whose word has a one: a slot with the marks of one token
    depends on no other, since words of the same weight hold no other word. Returns None if it is
    not so.
    """
    batch, tokens, _ = shape
    for marks in words(batch * tokens).reshape(-1, batch, tokens):
        wanted = marks[:, None].expand(batch, lead[1], tokens).reshape(-1, tokens)
        for seen, known in _both(probe(marks[..., None])):
            if seen.shape != wanted.shape or bool(((seen != wanted) & known).any()):
                return None
    element = torch.arange(batch).repeat_interleave(lead[1])[:, None].expand(-1, tokens)
    index = {1: torch.arange(tokens).expand(len(element), -1)} if tokens > 1 else {}
    if batch > 1:
        index[0] = element
    batched = {0} & set(index)
    depends = torch.ones_like(element, dtype=torch.bool)
    return Dependence(shape, *(Side(depends, set(index), batched, dict(index)) for _ in range(2)))


def _both(reached: Reached) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    return (reached.queries, reached.queries_known), (reached.keys, reached.keys_known)
