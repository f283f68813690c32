"""Tells which token a slot mostly holds, where it depends on several.

In `x.flip(1) + 0.1 * x`, each slot depends on its own token and mostly holds another.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from gattn.models.doors.proof.layouts.differences import CLEARLY, UNKNOWN, Found
from gattn.models.doors.proof.layouts.nudging import Nudging
from gattn.models.doors.proof.layouts.token_inputs import TokenInputs
from gattn.models.doors.proof.layouts.told import Told
from gattn.models.doors.proof.probing.codes import NONE, decoded, sparse_words
from gattn.models.doors.proof.probing.one_run.sites import Site
from gattn.models.doors.proof.probing.one_run.walking import Run
from gattn.models.doors.proof.probing.rerunning import Reruns

_TIMES = 6.0
"""Tokens changed places if all in a circle hold so many times more of others than of their own, and
if each holds so many times more of the same neighbour than of any other token."""
_WORDS = 16
"""So many tokens, or fewer, are each changed in a run of their own."""
_RUNS = 32
"""How many runs tell which tokens slots hold, at first."""
_DRAWS = 4
"""How many times tokens are changed by other numbers, if they seem to have changed places."""


def exchanged(
    some: Sequence[Told],
    first: Sequence[Told],
    inputs: TokenInputs,
    count: int,
    outer: Run,
    reruns: Reruns,
    blind: Collection[Site],
) -> set[Site]:
    """List calls some of whose tokens clearly changed places, and those that come after them.

    More numbers are drawn where calls are `blind`, whose slots depend on all tokens, and where they
    seem to have changed places. Two tokens that nothing tells apart may have.
    """
    nudging = Nudging(some, first, inputs, outer, reruns)
    code = sparse_words(count, _WORDS)
    fewest = max(_RUNS // len(code), 1)
    left, drawn = list(some), 0
    for draws, times in ((fewest, 1.0), (_DRAWS, _TIMES)):
        numbers = range(drawn, drawn + draws)
        runs = [nudging.run(row, numbers) for row in code]
        drawn += draws
        left = [
            one
            for one in left
            if _is_exchanged(one, runs, code, times)
            or (count == 2 and one.site in blind and not _are_own(one, runs))
        ]
        if not left:
            return set()
    return {one.site for one in some[some.index(left[0]) :]}


def _is_exchanged(one: Told, runs: Sequence[Found], code: Tensor, least: float) -> bool:
    if not all(one.site in run for run in runs):
        return True
    sequences = torch.tensor(one.tokens.sequences, device="cpu")
    values: Tensor | None = None
    are_centred = False
    for side in zip(*(run[one.site] for run in runs), strict=True):
        sizes = torch.stack([sizes for sizes, _ in side])
        held, times = _held(sizes, code)
        if values is not None and values.shape == held.shape:
            held = _as_values(held, times, values)
        if _are_centred(sizes, side[0][1], code, held, times):
            values, are_centred = held if values is None else values, True
            continue
        values = held if values is None else values
        if are_centred and values.shape == held.shape and bool((held == values)[held >= 0].all()):
            continue
        for own in (sequences == sequence for sequence in sequences.unique()):
            places, tokens, clear = (x[own].flatten() for x in (side[0][1], held, times))
            if have_changed_places(places, tokens, clear, code.shape[1], least):
                return True
    return False


def _are_centred(sizes: Tensor, places: Tensor, code: Tensor, held: Tensor, times: Tensor) -> bool:
    """Return whether slots depend on their own tokens and on as many before as after, in a circle.

    So they do after a convolution with circular padding, which may hold more of a neighbour: of the
    same one for all slots. What holds many times more of it has moved, rather.
    """
    count = code.shape[1]
    is_told = (places >= 0) & (places < count) & (sizes[0] != UNKNOWN)
    is_held = is_told & (held >= 0)
    shifts = ((held - places) % count)[is_held]
    if not bool(is_told.any()) or len(shifts.unique()) > 1:
        return False
    if bool(is_held.any()) and bool(shifts[0]) and float(times[is_held].median()) > _TIMES:
        return False
    places, seen = places[is_told], sizes[:, is_told] > 0
    near = code.clone()
    for reach in range(1, count // 2):
        near |= code.roll(reach, 1) | code.roll(-reach, 1)
        changed = near[:, places]
        if not bool((~changed).any(0).all()):
            return False
        if torch.equal(changed, seen):
            return True
    return False


def _as_values(held: Tensor, times: Tensor, values: Tensor) -> Tensor:
    """Let slots of which nothing is known hold what their values do, if all others do so."""
    is_hidden = times < 0
    are_alike = bool((is_hidden | (held == values) | (values < 0)).all())
    return torch.where(is_hidden, values, held) if are_alike else held


def _are_own(one: Told, runs: Sequence[Found]) -> bool:
    """Return whether the slots of two tokens hold more of their own than of the other."""
    for side in zip(*(run[one.site] for run in runs), strict=True):
        sizes, places = torch.stack([sizes for sizes, _ in side]), side[0][1]
        is_told = ((places == 0) | (places == 1)) & (sizes[0] != UNKNOWN)
        own = sizes.gather(0, places.clamp(0, 1)[None])[0]
        other = sizes.gather(0, 1 - places.clamp(0, 1)[None])[0]
        if not bool(is_told.any()):
            continue
        if not float(own[is_told].prod()) > CLEARLY**2 * float(other[is_told].prod()):
            return False
    return True


def _held(sizes: Tensor, code: Tensor) -> tuple[Tensor, Tensor]:
    """Return the token that each slot clearly holds, below zero if none, and how clearly it does.

    The runs that change a slot most are those that change what it holds: by how many times more
    they do than all other runs, it holds more of that than of any other.
    """
    weight = int(code[:, 0].sum())
    order = sizes.sort(0, descending=True).values
    least, most = order[weight - 1], order[weight]
    seen = sizes > most
    found = decoded(seen, torch.ones_like(seen), code)
    is_clear = (least > CLEARLY * most.clamp(min=0)) & (least > 0)
    times = least / most.clamp(min=torch.finfo(sizes.dtype).tiny)
    return torch.where(is_clear, found, NONE), times


def _with_hidden(held: Tensor, times: Tensor, count: int) -> Tensor:
    """Let the only slot of which nothing is known hold the only token that no other holds.

    A causal mask hides the first query and the last key, as each has a single score.
    """
    hidden = (times < 0) & (held < 0)
    missing = sorted(set(range(count)) - set(held.tolist()))
    if int(hidden.sum()) != 1 or len(missing) != 1:
        return held
    return held.masked_fill(hidden, missing[0])


def have_changed_places(
    places: Tensor, held: Tensor, times: Tensor, count: int, least: float
) -> bool:
    """Return whether some tokens hold each other's places, in a circle, clearly at `least`.

    Only a token that a single slot holds counts, and so a convolution, whose slots hold neighbours,
    changes no places, nor what reads one way: its first slot holds its own token alone.
    """
    is_token = (places >= 0) & (places < count)
    places, held, times = places[is_token], held[is_token], times[is_token]
    held = _with_hidden(held, times, count)
    is_told = held >= 0
    places, held, times = places[is_told], held[is_told], times[is_told].clamp(min=1)
    alone = (places.bincount(minlength=count) == 1) & (held.bincount(minlength=count) == 1)
    own = torch.arange(count, device="cpu")
    of = own.scatter(0, places, held)
    clear = torch.ones(count, dtype=times.dtype, device="cpu").scatter(0, places, times)
    waiting = set(own[alone & (of != own)].tolist())
    while waiting:
        first = token = min(waiting)
        product = 1.0
        while token in waiting:
            waiting.discard(token)
            product *= float(clear[token])
            token = int(of[token])
        if token == first and product > least:
            return True
    return False
