"""Finds which dimensions of an input tell the slots of a call apart, by a few runs for each."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from gattn.models.doors.proof.probing.codes import decoded, words
from gattn.models.doors.proof.probing.dependence import Dependence, Probe, Side, both
from gattn.models.doors.proof.probing.taints import Reached


def outlined(shape: tuple[int, ...], probe: Probe) -> Dependence:
    """Find which dimensions of an input tell slots apart, with one run for each."""
    whole = probe(torch.ones((), dtype=torch.bool, device="cpu"))
    found = Dependence(
        shape,
        *(Side(seen | ~known, is_seen=bool((seen & known).any())) for seen, known in both(whole)),
    )
    for dim, size in enumerate(shape):
        if size > 1 and any(bool(side.depends.any()) for side in found.sides):
            first = both(probe(found.along(dim, torch.arange(size, device="cpu") == size // 2)))
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
    indices, depends = torch.arange(found.shape[dim], device="cpu"), found.sides[n].depends
    marks = [indices % 3 > 0]
    marks += [(indices >> bit) % 2 > 0 for bit in range((len(indices) - 1).bit_length())]
    for place, marked in enumerate(marks):
        if place == len(runs):
            runs.append(both(probe(found.along(dim, marked))))
        seen, known = runs[place][n]
        if bool((seen & known).any()) and bool((depends & known & ~seen).any()):
            return seen, known
    return None if depends.shape[1] == 1 else runs[0][n]


def _note_unseen(found: Dependence, probe: Probe) -> None:
    """Find sides that depend on nothing of an input, as learned queries do.

    Scores tell nothing of a query while all of its keys are NaN, so where none was seen to be NaN,
    tokens are marked that leave it some keys. Where even a token that takes all keys away, such as
    the first one of a recurrent network, does so for all queries alike, of whatever leading index,
    none of them stands for it.
    """
    for n, (side, other) in enumerate((found.sides, found.sides[::-1])):
        dims = other.apart - other.batch
        if side.is_seen or not bool(side.depends.any()) or not dims:
            continue
        are_apart, is_doubtful, is_known = False, side.depends, ~side.depends
        for dim in dims:
            code = words(found.shape[dim])
            runs = [both(probe(found.along(dim, row)))[n] for row in code]
            seen, known = (torch.stack([run[m] for run in runs]) for m in (0, 1))
            side.is_seen |= bool((seen & known).any())
            are_apart |= bool((known != known[:, :1, :1]).any())
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
            one = torch.arange(size, device="cpu") == size // 2
            first, other = (both(probe(found.along(dim, marks)))[n] for marks in (one, ~one))
            if bool((first[0] & first[1] & other[0] & other[1]).any()):
                continue
            code = words(size)
            some = [probe(found.along(dim, row)) for row in code]
            found.learn_values(dim, some, code)
            runs = [both(run)[n] for run in some]
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
            run = probe((torch.arange(size, device="cpu") == index).reshape(form))
            sides = torch.stack((run.keys, run.values))
            is_whole = (sides.all(2) | ~sides.any(2)).all()
            if not bool(run.keys_known.all() & is_whole):
                return False
            is_reached |= bool(run.keys.any())
    return is_reached


def are_of_one_each(
    shapes: Sequence[tuple[int, ...]],
    features: Sequence[int],
    probes: Sequence[Probe],
    *,
    with_values: bool,
) -> bool:
    """Prove that each element is made of one position of inputs alone, and of some.

    If not `with_values`, these may hold others, too, as of a convolution.

    Any two positions differ in some bit of their numbers; a dimension of `features` is no position.
    """
    reached: Any = False
    for shape, of, probe in zip(shapes, features, probes, strict=True):
        form = [1 if n == of else size for n, size in enumerate(shape)]
        numbers = torch.arange(prod(form), device="cpu").reshape(form)
        for bit in range(max(1, (prod(form) - 1).bit_length())):
            halves = [probe((numbers >> bit) % 2 == half) for half in (0, 1)]
            one, other = (_elements(run, with_values=with_values) for run in halves)
            if bool((one & other).any()):
                return False
            reached = reached | one | other
    return bool(torch.as_tensor(reached).all())


def _elements(run: Reached, *, with_values: bool) -> Tensor:
    """Return which elements a run reaches."""
    found = run.keys.any(1) | run.queries.any(1)
    return found | run.values.any(1) if with_values else found


def _note_spread(found: Dependence, probe: Probe) -> None:
    """Mark one position, to see how many slots it reaches."""
    apart = set.union(*(side.apart for side in found.sides))
    if apart:
        one = torch.ones((), dtype=torch.bool, device="cpu")
        for dim in apart:
            size = found.shape[dim]
            # Not in the middle, where windows begin: each would be reached once.
            one = one & found.along(dim, torch.arange(size, device="cpu") == 2 * size // 5)
        for side, (seen, known) in zip(found.sides, both(probe(one)), strict=True):
            side.is_spread = bool(((seen & known).sum(1) > 1).any())


def plainly(shape: tuple[int, ...], lead: tuple[int, ...], probe: Probe) -> Dependence | None:
    """Prove that (batch, tokens, channels) is attended to as (batch, heads, tokens, .).

    In each run the tokens are marked whose word has a one: a slot with the marks of one token
    depends on no other, since words of the same weight hold no other word. Returns None if it is
    not so.
    """
    batch, tokens, _ = shape
    code, some = words(batch * tokens), []
    for marks in code.reshape(-1, batch, tokens):
        wanted = marks[:, None].expand(batch, lead[1], tokens).reshape(-1, tokens)
        some.append(probe(marks[..., None]))
        for seen, known in both(some[-1]):
            if seen.shape != wanted.shape or bool(((seen != wanted) & known).any()):
                return None
    element = (
        torch.arange(batch, device="cpu").repeat_interleave(lead[1])[:, None].expand(-1, tokens)
    )
    index = {1: torch.arange(tokens, device="cpu").expand(len(element), -1)} if tokens > 1 else {}
    if batch > 1:
        index[0] = element
    batched = {0} & set(index)
    depends = torch.ones_like(element, dtype=torch.bool)
    sides = (Side(depends, set(index), batched, dict(index)) for _ in range(2))
    found = Dependence(shape, *sides)
    found.learn_values(0, some, code)
    place = found.values.pop(0)
    for dim, of in ((0, place // tokens), (1, place % tokens)):
        found.values[dim] = of.where(place >= 0, place)
    return found
