"""Says how much each slot of a call differs between two runs of a model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from gattn.models.doors.functions.calling.raw_call import RawCall
from gattn.models.doors.proof.layouts.told import Told
from gattn.models.doors.proof.probing.one_run.sites import Site, scores_of
from gattn.models.doors.proof.probing.taints import flat
from gattn.models.read.seen_call import LEAST as LEAST_SCORE

Found: TypeAlias = dict[Site, list[tuple[Tensor, Tensor]]]
"""For each side of a call, how much its slots differ, and which tokens they are."""

LEAST = 0.1
"""A slot changes at least by this share of what its token changes most."""
CLEARLY = 1.2
"""A slot shows whose it is where one token changes it by so many times what any other does."""
UNKNOWN = -1.0
"""Where it is not known how much a slot changes."""
HALF = 0.5
"""Half of the scores of a slot."""
_FEWEST = 3
"""Of fewer scores it cannot be told which one changes otherwise than the others."""


def changes(one: Told, apart: Sequence[Tensor], share: float) -> Iterator[tuple[Tensor, Tensor]]:
    """Say how much each slot (elements, slots) of a side differs, and which token it is.

    The values come first. Where a slot is known by its scores, those that change least say how much
    it differs, by the root of the mean of their squares.

    Parameters
    ----------
    one : Told
        The call.
    apart : sequence of Tensor
        How much the numbers that it is given differ.
    share : float
        Which share of its scores these are, one of them at least.
    """
    lead, layout, tokens = one.site.lead, one.layout, one.tokens
    places = tokens.query_positions, tokens.key_positions
    for n, sizes in _changes(one.site, apart, share):
        positions = torch.stack(list(places[n]))
        is_told_otherwise = n == 0 and (tokens.is_cross or tokens.is_by_rows)
        if is_told_otherwise or sizes.shape[-1] != positions.shape[-1]:
            continue
        yield layout.fold(sizes.reshape(*lead, -1, 1), lead)[..., 0].amax(1), positions


def given(call: RawCall) -> list[Tensor]:
    """List what a call is given: its values, and queries and keys, or the scores of these."""
    if call.scores is not None:
        return [call.value, scores_of(call)]
    assert call.query is not None
    assert call.key is not None
    return [call.value, call.query, call.key]


def difference(
    now: Sequence[Tensor], before: Sequence[Tensor], *, is_exchange: bool = False
) -> list[Tensor]:
    """Say how much the numbers that a call is given differ between two runs.

    Where code subtracts the largest score of each row, another key may change all scores of a row
    alike: that is left out. If tokens only change places (`is_exchange`), the largest one stays.
    """
    apart = [x - y for x, y in zip(now, before, strict=True)]
    if len(apart) == 2 and not is_exchange:
        apart[1] = apart[1] - _common(now[1], before[1])
    return [x.abs().double().cpu() for x in apart]


def _common(now: Tensor, before: Tensor) -> Tensor:
    """Return what all scores of a row change by, NaN if there are too few to tell.

    It is zero unless the largest of each row is.
    """
    is_real = (now > LEAST_SCORE) & (before > LEAST_SCORE)
    counts = is_real.sum(-1, keepdim=True)
    largest = [torch.where(is_real, x, -torch.inf).amax(-1, keepdim=True) for x in (now, before)]
    if not all(bool((x[counts > 0] == 0).all()) for x in largest):
        return now.new_zeros(())
    found = torch.where(is_real, now - before, torch.nan).nanmedian(-1, keepdim=True).values
    return torch.where(counts >= _FEWEST, found, torch.nan)


def _changes(site: Site, apart: Sequence[Tensor], share: float) -> Iterator[tuple[int, Tensor]]:
    """Say how much each slot (lead, slots) of queries, 0, and of keys, 1, differs.

    Another query changes its whole row of scores, and one number in those of others: so most of a
    row say how much a query differs, and most of a column how much a key does. If two tokens change
    places, some score of every other token stays as it is.
    """
    if site.live is None:
        for n, numbers in zip((1, 0, 1), apart, strict=True):
            yield n, flat(numbers.norm(dim=-1), site.lead)
        return
    yield 1, flat(apart[0].norm(dim=-1), site.lead)
    is_known = site.live & apart[1].isfinite()
    scores = torch.where(is_known, apart[1], torch.inf)
    for n, dim in enumerate((2, 1)):
        counts = is_known.sum(dim, keepdim=True)
        least = (counts * share).ceil().long().clamp(min=1)
        sums = scores.sort(dim).values.square().cumsum(dim).gather(dim, least - 1)
        yield n, torch.where(counts > 1, (sums / least).sqrt(), UNKNOWN).squeeze(dim)


def nudged(x: Tensor, marks: Tensor, draw: int = 0) -> Tensor:
    """Change marked numbers slightly, more than they are rounded, by a draw of random numbers."""
    random = torch.Generator().manual_seed(draw)
    noise = torch.randn(x.shape, generator=random, dtype=torch.double, device="cpu")
    size = x.detach().double().square().mean().sqrt() * torch.finfo(x.dtype).eps ** 0.4
    return torch.where(marks.to(x.device), x + (noise.to(x.device) * size).to(x.dtype), x.detach())


def nudged_alike(x: Tensor, marks: Tensor, draw: int = 0) -> Tensor:
    """Change marked tokens slightly, all by the same numbers, of either sign.

    So a slot changes as many times more by one token than by another as it holds more of it.
    """
    random = torch.Generator().manual_seed(draw)
    shape = [1 if size > 1 else x.shape[n] for n, size in enumerate(marks.shape)]
    numbers = torch.randn(shape, generator=random, dtype=torch.double, device="cpu")
    signs = torch.randint(2, marks.shape, generator=random, device="cpu") * 2 - 1
    noise = (numbers * signs).to(x.device)
    size = x.detach().double().square().mean().sqrt() * torch.finfo(x.dtype).eps ** 0.4
    return torch.where(marks.to(x.device), x + (noise * size).to(x.dtype), x.detach())


def are_of_others(apart: Tensor, tokens: Tensor, places: Tensor, least: float) -> bool:
    """Return whether slots clearly are, one by one, those of other tokens than `places` say.

    `apart` says how much each of some tokens changes each slot (tokens, slots). Changes below
    `least` may be rounding. As many tokens as there are slots of which nothing is known may be in
    these. A token that is elsewhere hardly changes its own slot.
    """
    most, which = apart.topk(2, dim=0)
    is_clear = (most[0] > CLEARLY * most[1]) & (most[0] > least)
    of = which[0] == torch.arange(len(tokens), device="cpu")[:, None]
    found, slots = torch.where(of & is_clear, apart, UNKNOWN).max(1)
    is_found, untold = found > UNKNOWN, (apart == UNKNOWN).any(0)
    if int((~is_found).sum()) > int(untold.sum()):
        return False
    own = apart.where(places == tokens[:, None], UNKNOWN).amax(1)
    return bool((is_found & (places[slots] != tokens) & (own < LEAST * found)).any())
