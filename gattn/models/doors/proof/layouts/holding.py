"""Tells which token a slot mostly holds, where it depends on several.

In `x.flip(1) + 0.1 * x`, each slot depends on its own token and mostly holds another.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from gattn.models.doors.proof.layouts.differences import UNKNOWN, Found
from gattn.models.doors.proof.layouts.nudging import Nudging
from gattn.models.doors.proof.layouts.token_inputs import TokenInputs
from gattn.models.doors.proof.layouts.told import Told
from gattn.models.doors.proof.probing.codes import NONE, decoded, words
from gattn.models.doors.proof.probing.one_run.sites import Site
from gattn.models.doors.proof.probing.one_run.walking import Run
from gattn.models.doors.proof.probing.rerunning import Reruns

_FEW = 8
"""How many tokens are changed each in a run of its own."""
_CLEARLY = 1.2
"""A slot shows what it holds where that changes it by so many times what any other token does."""
_TIMES = 6.0
"""Tokens changed places if all in a circle hold so many times more of others than of their own."""
_DRAWS = 4
"""How many times tokens are changed by other numbers, if they seem to have changed places."""
Side: TypeAlias = tuple[Tensor, Tensor]
_RANK = 0.25
"""Half of the tokens change: so a query that does not leaves half of its scores as they are."""


def exchanged(
    some: Sequence[Told], inputs: TokenInputs, count: int, outer: Run, reruns: Reruns
) -> set[Site]:
    """List calls some of whose tokens clearly changed places, and those that come after them."""
    nudging = Nudging(some, inputs, outer, reruns)
    code = words(count) if count > _FEW else torch.eye(count, dtype=torch.bool, device="cpu")
    sums: list[dict[Site, list[Side]]] = []
    found = {one.site for one in some}
    for draw in range(_DRAWS):
        runs = [nudging.run(row, _RANK, draw) for row in code]
        sums.append({one.site: _sides(one.site, runs) for one in some})
        times = _TIMES if draw else 1.0
        found = {
            one.site
            for one in some
            if one.site in found and _is_exchanged(one, [x[one.site] for x in sums], code, times)
        }
        if not found:
            break
    first = next((n for n, one in enumerate(some) if one.site in found), len(some))
    return {one.site for one in some[first:]}


def _sides(site: Site, runs: Sequence[Found]) -> list[Side]:
    """For each side of a call, list how much its slots differ in each run, and their tokens."""
    if not all(site in run for run in runs):
        return []
    sides = zip(*(run[site] for run in runs), strict=True)
    return [(torch.stack([sizes for sizes, _ in side]), side[0][1]) for side in sides]


def _is_exchanged(one: Told, draws: Sequence[list[Side]], code: Tensor, least: float) -> bool:
    if not all(draws):
        return True
    sequences = torch.tensor(one.tokens.sequences, device="cpu")
    for side in zip(*draws, strict=True):
        places = side[0][1]
        sizes = torch.stack([sizes for sizes, _ in side])
        sizes = sizes.square().mean(0).sqrt().where((sizes != UNKNOWN).all(0), UNKNOWN)
        held, times = _held(sizes, code)
        for own in (sequences == sequence for sequence in sequences.unique()):
            slots = (x[own].flatten() for x in (places, held, times))
            if have_changed_places(*slots, code.shape[1], least):
                return True
    return False


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
    is_clear = (least > _CLEARLY * most.clamp(min=0)) & (least > 0)
    times = least / most.clamp(min=torch.finfo(sizes.dtype).tiny)
    return torch.where(is_clear, found, NONE), times


def have_changed_places(
    places: Tensor, held: Tensor, times: Tensor, count: int, least: float
) -> bool:
    """Return whether some tokens hold each other's places, in a circle.

    At least so many times more of others than of their own. Only a token that a single slot holds counts, and so a convolution, whose slots hold neighbours,
    changes no places, nor what reads one way: its first slot holds its own token alone.
    """
    is_told = (places >= 0) & (places < count) & (held >= 0)
    places, held, times = places[is_told], held[is_told], times[is_told]
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
