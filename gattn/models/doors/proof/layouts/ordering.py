"""Proves that tokens are in place again where values picked or ordered some of them before.

A mixture of experts picks tokens and puts them back; a sort by a learned score does not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gattn.models.doors.functions.calling.raw_call import RawCall
from gattn.models.doors.proof.layouts.agreeing import Inputs, Told
from gattn.models.doors.proof.layouts.batches import Batches
from gattn.models.doors.proof.probing.codes import SEVERAL, decoded, words
from gattn.models.doors.proof.probing.one_run.deciding import Deciding
from gattn.models.doors.proof.probing.one_run.picking import By
from gattn.models.doors.proof.probing.one_run.walking import Given, Run
from gattn.models.doors.proof.probing.replaying import Replays, Site
from gattn.models.doors.proof.probing.taints import may_be_mask, replaced, sources
from gattn.models.read.layouts import Layout

Place = tuple[str, int]
_FEWEST = 4
"""Fewer tokens may be in order by chance."""
_READS = "_local_scalar_dense"
_RUNS = 2
"""With how many other values all tokens must be in place."""


def unordered(
    open_sites: Sequence[Site],
    sites: Sequence[Site],
    layouts: Mapping[Place, list[Any]],
    replays: Replays,
    batches: Batches,
) -> tuple[set[Place], list[str]]:
    """Say which calls have tokens in an order that is not known, and which modules made it."""
    picked = {site.place for site in sites if any(pick.by is not By.INPUTS for pick in site.picks)}
    if not picked:
        return picked, []
    picked -= _all_in_place(open_sites, layouts, replays, batches)
    shown = [site for site in open_sites if site.place in picked & set(layouts)]
    picks = [pick for site in shown for pick in site.picks if pick.by is not By.INPUTS]
    return picked, sorted({pick.running[-1].name for pick in picks if pick.running})


def _all_in_place(
    sites: Sequence[Site],
    layouts: Mapping[Place, list[Any]],
    replays: Replays,
    batches: Batches,
) -> set[Place]:
    """Prove which calls have tokens in the order of the input, whatever values picked before.

    The model runs on other values, which decide otherwise, and again with NaN in coded tokens where
    they decide as in that run.
    """
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
    return {
        place
        for count, some in groups.items()
        if count >= _FEWEST
        for place in _in_place(count, some, replays, batches)
    }


def _is_by_values(site: Site) -> bool:
    by = {pick.by for pick in site.picks}
    return By.VALUES in by and By.CHANCE not in by


def _in_place(count: int, some: list[Told], replays: Replays, batches: Batches) -> Iterator[Place]:
    root = some[0].site.chain[-1]
    elements = max(n for one in some for n in one.tokens.sequences) + 1
    inputs = Inputs(root, replays.sources(root), (elements, count), batches)
    if not inputs.are_any:
        return
    code = words(count)
    left = list(some)
    for seed in range(_RUNS):
        noted = Deciding()
        _run(replays, inputs, left, None, noted, seed)
        for one in left:
            one.runs.clear()
        for row in code:
            _run(replays, inputs, left, row, Deciding(noted.decided), seed)
        left = [one for one in left if len(one.runs) == len(code) and _is_in_place(one, code)]
        if not left:
            return
    yield from (one.site.place for one in left)


def _run(
    replays: Replays,
    inputs: Inputs,
    some: list[Told],
    row: Tensor | None,
    mode: Deciding,
    seed: int,
) -> None:
    """Run the model on other values, with NaN in marked tokens."""
    known, root = {one.site: one for one in some}, some[0].site.chain[-1]
    generator = torch.Generator().manual_seed(seed)
    mark = None if row is None else inputs.marking(row)

    def entered(run: Run, module: nn.Module, given: Given) -> Given | None:
        known_run = inputs.given_to(run)
        if known_run is None:
            return None
        for n, x in enumerate(sources(given)):
            if not may_be_mask(x) and inputs.dim(known_run, x.shape, n) is not None:
                other = torch.randn(x.shape, generator=generator).to(x)
                given = replaced(given, x, other)
        return given if mark is None else (mark(run, module, given) or given)

    def see(site: Site, call: RawCall) -> None:
        with torch._C.DisableTorchFunction():
            if row is not None:
                if site in known:
                    known[site].look(call, row)
                call.output.zero_()

    replays.through(root, see, entered, some[-1].site, mode)


def _is_in_place(one: Told, code: Tensor) -> bool:
    """Return whether each slot depends on its own token alone.

    If values only decided on numbers that code reads, it may depend on others, too: they are mixed.
    """
    moves = any(pick.by is By.VALUES and pick.kernel != _READS for pick in one.site.picks)
    for n, positions in one.sides(code.shape[1]):
        seen, known = (torch.stack([run[n][m] for run in one.runs]) for m in (0, 1))
        is_token = (positions >= 0) & (positions < code.shape[1])
        found = decoded(seen, known, code)
        is_own = found == positions
        if not moves:
            own = code[:, positions.clamp(0, code.shape[1] - 1)]
            is_own |= (found == SEVERAL) & ~(own & known & ~seen).any(0)
        if not bool(is_own[is_token].all()):
            return False
    return True
