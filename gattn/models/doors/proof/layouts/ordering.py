"""Proves that tokens are in place again where values picked or ordered some of them before.

A mixture of experts picks tokens and puts them back; a sort by a learned score does not.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from gattn.models.doors.functions.calling.raw_call import RawCall
from gattn.models.doors.orders import Orders
from gattn.models.doors.proof.copying.random_numbers import seed
from gattn.models.doors.proof.layouts.batches import Batches
from gattn.models.doors.proof.layouts.token_inputs import TokenInputs
from gattn.models.doors.proof.layouts.told import Told
from gattn.models.doors.proof.probing.codes import SEVERAL, decoded, words
from gattn.models.doors.proof.probing.one_run.deciding import Deciding
from gattn.models.doors.proof.probing.one_run.picking import By
from gattn.models.doors.proof.probing.one_run.sites import Site
from gattn.models.doors.proof.probing.rerunning import Reruns
from gattn.models.read.layouts import Layout

Place = tuple[str, int]
_FEWEST = 4
"""Fewer tokens may be in order by chance."""
_READS = "_local_scalar_dense"


@dataclass(eq=False)
class InPlace:
    """The calls of which it was proved that their tokens are in place again.

    Parameters
    ----------
    counts : dict
        How many times values had decided before each of them.
    decided : sequence of bytes
        What they decided; it holds only as long as they decide the same.
    makers : dict
        The modules that picked or ordered tokens before each of them.
    """

    counts: dict[Place, int] = field(default_factory=dict)
    decided: Sequence[bytes] = ()
    makers: dict[Place, list[str]] = field(default_factory=dict)


def unordered(
    open_sites: Sequence[Site],
    sites: Sequence[Site],
    layouts: Mapping[Place, list[Any]],
    reruns: Reruns,
    batches: Batches,
    by_values: Collection[Place] = (),
) -> tuple[set[Place], list[str], InPlace]:
    """Say which calls have tokens in an order that is not known, and which modules made it.

    In those `by_values`, the attending module picked keys itself.
    """
    picked = {site.place for site in sites if any(pick.by is not By.INPUTS for pick in site.picks)}
    if not picked:
        return picked, [], InPlace()
    found = _all_in_place(open_sites, layouts, reruns, batches, by_values)
    picked -= set(found.counts)
    some = {place: _makers(one) for one in open_sites if (place := one.place) in layouts}
    found.makers = {place: some[place] for place in found.counts}
    return picked, sorted({name for one in picked & set(some) for name in some[one]}), found


def _makers(site: Site) -> list[str]:
    """Name the modules that picked or ordered tokens before a call."""
    picks = [pick for pick in site.picks if pick.by is not By.INPUTS]
    return sorted({pick.running[-1].name for pick in picks if pick.running})


def _all_in_place(
    sites: Sequence[Site],
    layouts: Mapping[Place, list[Any]],
    reruns: Reruns,
    batches: Batches,
    by_values: Collection[Place],
) -> InPlace:
    """Prove which calls have tokens in the order of the input, as values decide on this one."""
    groups: dict[int, list[Told]] = {}
    for site in sites:
        told = layouts.get(site.place, [])
        layout: Layout | None = told[0][1] if len(told) == 1 else None
        tokens = None if layout is None else layout.tokens
        if layout is None or tokens is None or tokens.is_cross:
            continue
        if _is_by_values(site):
            count = tokens.num_keys if tokens.num_given is None else tokens.num_given
            groups.setdefault(count, []).append(Told(site, layout))
    found = InPlace()
    for count, some in groups.items():
        if count < _FEWEST:
            continue
        for place, decided in _in_place(count, some, reruns, batches, by_values):
            found.counts[place] = len(decided)
            found.decided = max(found.decided, decided, key=len)
    return found


def _is_by_values(site: Site) -> bool:
    by = {pick.by for pick in site.picks}
    return By.VALUES in by and By.CHANCE not in by


def _in_place(
    count: int,
    some: list[Told],
    reruns: Reruns,
    batches: Batches,
    by_values: Collection[Place],
) -> Iterator[tuple[Place, list[bytes]]]:
    """Prove which calls have all tokens in place, and say what values had decided before each.

    The model runs as it is, and again with NaN in coded tokens, where values decide as before.
    """
    root = some[0].site.chain[-1]
    elements = max(n for one in some for n in one.tokens.sequences) + 1
    inputs = TokenInputs(root, reruns.sources(root), (elements, count), batches)
    if not inputs.are_any:
        return
    code, noted, orders = words(count), Deciding(), Orders()
    known, last = {one.site: one for one in some}, some[-1].site
    before: dict[Site, list[bytes]] = {}

    def note(site: Site, call: RawCall) -> None:
        before[site] = list(orders.decided or ())

    seed()
    try:
        reruns.through(root, note, None, last, noted, is_plain=True)
    finally:
        orders.end()
    for row in code:

        def see(site: Site, call: RawCall, row: Tensor = row) -> None:
            with torch._C.DisableTorchFunction():
                if site in known:
                    known[site].look(call, row)
                reruns.silence(site, call)

        reruns.through(root, see, inputs.marking(row), last, Deciding(noted.decided))
    for one in some:
        decided = before.get(one.site)
        if (
            decided
            and len(one.runs) == len(code)
            and _is_in_place(one, code, picks=one.site.place in by_values)
        ):
            yield one.site.place, decided


def _is_in_place(one: Told, code: Tensor, *, picks: bool) -> bool:
    """Return whether each slot depends on its own token alone.

    If values only decided on numbers that code reads, it may depend on others, too: they are mixed.
    So may keys that the attending module `picks` for each query from the tokens that are queries:
    those of a neighbour, less the query's own place. Its values must be those of the keys, then.
    """
    moves = any(pick.by is By.VALUES and pick.kernel != _READS for pick in one.site.picks)
    for n, positions in one.sides(code.shape[1]):
        seen, known = (torch.stack([run[n][m] for run in one.runs]) for m in (0, 1))
        is_token = (positions >= 0) & (positions < code.shape[1])
        found = decoded(seen, known, code)
        is_own = found == positions
        if not moves or (picks and n == 1 and one.site.queries == 1):
            own = code[:, positions.clamp(0, code.shape[1] - 1)]
            is_own |= (found == SEVERAL) & ~(own & known & ~seen).any(0)
        if not bool(is_own[is_token].all()):
            return False
        if picks and n == 1 and not _has_values_of_keys(one, is_token):
            return False
        if picks and n == 0 and len(positions[is_token].unique()) < code.shape[1]:
            return False
    return True


def _has_values_of_keys(one: Told, is_token: Tensor) -> bool:
    """Return whether values depend on no other tokens than their keys, which may be neighbours."""
    keys, known, values = (
        torch.stack([run[n][m] for run in one.runs]) for n, m in ((1, 0), (1, 1), (2, 0))
    )
    return not bool((values & known & ~keys & is_token).any())
