"""Compares how much each token changes the slots of calls, where NaN reaches all of them.

A gate that pools all tokens makes all of them NaN if one is. Small changes tell then whether a slot
still depends on the token whose name it has.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gattn.models.doors.proof.layouts.differences import (
    LEAST,
    MEDIAN,
    UNKNOWN,
    Found,
    are_of_others,
)
from gattn.models.doors.proof.layouts.nudging import Nudging
from gattn.models.doors.proof.layouts.swaps import Swaps
from gattn.models.doors.proof.layouts.token_inputs import TokenInputs
from gattn.models.doors.proof.layouts.told import Told
from gattn.models.doors.proof.probing.one_run.sites import Site
from gattn.models.doors.proof.probing.one_run.walking import Run
from gattn.models.doors.proof.probing.rerunning import Reruns

_MOST = 16
"""How many tokens are changed, each in a run of its own."""


def moved(
    some: Sequence[Told], inputs: TokenInputs, count: int, outer: Run, reruns: Reruns
) -> set[Site]:
    """List calls that depend on other tokens than their own, and those that come after them."""
    nudging = Nudging(some, inputs, outer, reruns)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(0), device="cpu")
    tokens = order[:_MOST]
    runs = [nudging.run(torch.arange(count, device="cpu") == n, MEDIAN) for n in tokens]
    found = {one.site for one in some if any(nudging.lacks(one.site, run) for run in runs)}
    for one in some:
        if one.site not in found and _is_moved(one, runs, tokens):
            found.add(one.site)
    found |= Swaps(some, inputs, outer, reruns, count).moved(tokens)
    first = next((n for n, one in enumerate(some) if one.site in found), len(some))
    return {one.site for one in some[first:]}


def _is_moved(one: Told, runs: Sequence[Found], tokens: Tensor) -> bool:
    """Return whether slots hardly depend on their own tokens, or values clearly are others'.

    Tokens that move, and are then mixed with a mean of all, come with a share of it in each.
    """
    sequences = torch.tensor(one.tokens.sequences, device="cpu")
    sides = list(zip(*(run[one.site] for run in runs if one.site in run), strict=True))
    for n, side in enumerate(sides):
        apart, places = torch.stack([sizes for sizes, _ in side]), side[0][1]
        for own in (sequences == sequence for sequence in sequences.unique()):
            slots, at = apart[:, own].flatten(1), places[own].flatten()
            if _are_forgotten(slots, tokens, at):
                return True
            if not n and are_of_others(slots, tokens, at, 0.0):
                return True
    return False


def _are_forgotten(apart: Tensor, tokens: Tensor, places: Tensor) -> bool:
    """Return whether a token changes its own slot by far less than it changes another."""
    own = (places == tokens[:, None]) & (apart != UNKNOWN)
    most = apart.where(own, UNKNOWN).amax(1)
    return bool((own.any(1) & (most < LEAST * apart.amax(1))).any())
