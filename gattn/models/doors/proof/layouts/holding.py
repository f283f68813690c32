"""Tells which token a slot mostly holds, where it depends on several.

In `x.flip(1) + 0.1 * x`, each slot depends on its own token and mostly holds another.
"""

from __future__ import annotations

from collections.abc import Sequence

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

_MOSTLY = 0.5
"""A slot holds what changes it by more than this share of what changes it most."""
_RANK = 0.25
"""Half of the tokens change: so a query that does not leaves half of its scores as they are."""


def exchanged(
    some: Sequence[Told], inputs: TokenInputs, count: int, outer: Run, reruns: Reruns
) -> set[Site]:
    """List calls some of whose tokens clearly changed places, and those that come after them."""
    nudging, code = Nudging(some, inputs, outer, reruns), words(count)
    runs = [nudging.run(row, _RANK) for row in code]
    found = {one.site for one in some if _are_exchanged(one, runs, code)}
    first = next((n for n, one in enumerate(some) if one.site in found), len(some))
    return {one.site for one in some[first:]}


def _are_exchanged(one: Told, runs: Sequence[Found], code: Tensor) -> bool:
    if not all(one.site in run for run in runs):
        return True
    sequences = torch.tensor(one.tokens.sequences, device="cpu")
    for side in zip(*(run[one.site] for run in runs), strict=True):
        sizes, places = torch.stack([sizes for sizes, _ in side]), side[0][1]
        held = _held(sizes, code)
        for own in (sequences == sequence for sequence in sequences.unique()):
            if has_cycle(places[own].flatten(), held[own].flatten(), code.shape[1]):
                return True
    return False


def _held(sizes: Tensor, code: Tensor) -> Tensor:
    """Return the token that each slot clearly holds; below zero if it holds several, or none."""
    known = sizes != UNKNOWN
    most = sizes.amax(0)
    found = decoded(sizes > _MOSTLY * most, known, code)
    return found.where(most > 0, NONE)


def has_cycle(places: Tensor, held: Tensor, count: int) -> bool:
    """Return whether some tokens hold each other's places, in a circle.

    Only a token that a single slot holds counts, and so a convolution, whose slots hold neighbours,
    changes no places, nor what reads one way: its first slot holds its own token alone.
    """
    is_told = (places >= 0) & (places < count) & (held >= 0)
    places, held = places[is_told], held[is_told]
    alone = (places.bincount(minlength=count) == 1) & (held.bincount(minlength=count) == 1)
    of = torch.arange(count, device="cpu").scatter(0, places, held)
    left = alone & (of != torch.arange(count, device="cpu"))
    while bool(left.any()):
        followed = torch.zeros_like(left).index_fill(0, of[left], True)
        kept = left & left[of] & followed
        if torch.equal(kept, left):
            return True
        left = kept
    return False
