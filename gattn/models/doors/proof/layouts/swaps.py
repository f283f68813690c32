"""Lets some tokens change places, to see which slots follow them.

Means, norms and gates that pool all tokens stay as they are if tokens change places. So a slot that
changes holds one of these, however strongly the pooled numbers reach it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import torch
from torch import Tensor

from gattn.models.doors.functions.calling.raw_call import RawCall
from gattn.models.doors.proof.copying.random_numbers import seed
from gattn.models.doors.proof.layouts.differences import (
    Found,
    are_of_others,
    changes,
    difference,
    given,
    nudged,
)
from gattn.models.doors.proof.layouts.token_inputs import TokenInputs
from gattn.models.doors.proof.layouts.told import Told
from gattn.models.doors.proof.probing.one_run.sites import Site
from gattn.models.doors.proof.probing.one_run.walking import Run
from gattn.models.doors.proof.probing.rerunning import Reruns

_EVERY = torch.ones((), dtype=torch.bool, device="cpu")
"""Marks all numbers of a tensor."""
_FEW, _RUNS = 6, 16
"""How many tokens change places in pairs, each with all others; and in how many runs more do so."""
_MOST = _RUNS * ((_RUNS - 1) // 2)
"""How many tokens change places at most: those that so many runs tell apart."""


def moved(
    some: Sequence[Told], inputs: TokenInputs, count: int, outer: Run, reruns: Reruns
) -> set[Site]:
    """List calls whose slots clearly follow other tokens, and those that come after them."""
    if count < 3:
        return set()
    found = _Swaps(some, inputs, outer, reruns, count).moved()
    first = next((n for n, one in enumerate(some) if one.site in found), len(some))
    return {one.site for one in some[first:]}


class _Swaps:
    """Runs of a model in which tokens change places, in what it is given and what attention gives.

    All tokens are slightly changed before, so that no two are equal.
    """

    def __init__(
        self, some: Sequence[Told], inputs: TokenInputs, outer: Run, reruns: Reruns, count: int
    ) -> None:
        self._known = {one.site: one for one in some}
        self._inputs, self._outer, self._reruns, self._count = inputs, outer, reruns, count
        self._first, self._last = some[0].site, some[-1].site
        self._outputs: dict[Site, Tensor] = {}
        self._given: dict[Site, list[Tensor]] = {}

        def note(site: Site, call: RawCall) -> None:
            if site is some[0].site and not inputs.are_any:
                with torch._C.DisableTorchFunction():
                    call.output.copy_(nudged(call.output, _EVERY))
            self._outputs[site] = call.output.clone()
            self._given[site] = [x.clone() for x in given(call)]

        seed()
        entered = inputs.marking(_EVERY.expand(count), nudged)
        reruns.through(outer, note, entered, self._last, is_plain=True)

    def moved(self) -> set[Site]:
        """List calls whose slots clearly follow other tokens than their own.

        Each token changes places with several others: the slot that holds it changes each time, and
        that of any other token stays at least once.
        """
        code = _code(self._count)
        runs = [self._run(row) for row in code]
        return {site for site in self._known if self._is_moved(site, runs, code)}

    def _is_moved(self, site: Site, runs: Sequence[Found], code: Tensor) -> bool:
        if not all(site in run for run in runs):
            return False
        known = (x[x.isfinite()].double().abs() for x in self._given[site])
        most = max((float(x.max()) for x in known if x.numel()), default=0.0)
        least = most * torch.finfo(self._given[site][0].dtype).eps ** 0.7
        sequences = torch.tensor(self._known[site].tokens.sequences, device="cpu")
        tokens = code.any(0).nonzero()[:, 0]
        for sides in zip(*(run[site] for run in runs), strict=True):
            places, sizes = sides[0][1], torch.stack([size for size, _ in sides])
            apart = torch.stack([sizes[code[:, n]].amin(0) for n in tokens])
            for own in (sequences == sequence for sequence in sequences.unique()):
                if are_of_others(apart[:, own].flatten(1), tokens, places[own].flatten(), least):
                    return True
        return False

    def _run(self, row: Tensor) -> Found:
        """Let tokens change places; return how much slots change, and which tokens they are."""
        found: Found = {}

        def see(site: Site, call: RawCall) -> None:
            with torch._C.DisableTorchFunction():
                one, before = self._known.get(site), self._outputs.get(site)
                if before is None:
                    return
                if one is not None and site not in found:
                    before_it = self._given[site]
                    apart = difference(given(call), before_it, is_exchange=True)
                    found[site] = list(changes(one, apart, 0.0))
                if not self._reruns.carries(site):
                    call.output.copy_(before if one is None else _rows_rolled(one, before, row))
                elif one is not None and site is self._first and not self._inputs.are_any:
                    call.output.copy_(_rows_rolled(one, before, row))

        seed()
        entered = self._inputs.marking(row, _rolled)
        self._reruns.through(self._outer, see, entered, self._last, is_plain=True)
        return found


def _code(count: int) -> Tensor:
    """Return which tokens change places in each run, booleans (runs, count).

    Each does so in two runs or more, with few others: what attends to moved tokens alone changes.
    """
    if count <= _FEW:
        rows = torch.tensor(list(combinations(range(count), 2)), device="cpu")
        return torch.zeros(len(rows), count, dtype=torch.bool, device="cpu").scatter(1, rows, True)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(0), device="cpu")
    runs, own = min(count, _RUNS), torch.arange(min(count, _MOST), device="cpu")
    both = torch.stack((own % runs, (own + 1 + own // runs) % runs))
    found = torch.zeros(runs, count, dtype=torch.bool, device="cpu")
    found[both, order[: len(own)].expand(2, -1)] = True
    return found


def _rolled(x: Tensor, marks: Tensor) -> Tensor:
    """Change all tokens slightly, then put those that are marked in each other's places."""
    x = nudged(x, _EVERY)
    dim = next(n for n, size in enumerate(marks.shape) if size > 1)
    count = int(marks.sum())
    marks = marks.to(x.device).expand(x.shape)
    moving = x[marks].reshape(*x.shape[:dim], count, -1)
    return x.masked_scatter(marks, moving.roll(1, -2))


def _rows_rolled(one: Told, output: Tensor, row: Tensor) -> Tensor:
    """Put rows of what a call gives in each other's places, where a sequence has one of each."""
    tokens, layout, lead = one.tokens, one.layout, one.site.lead
    rows = layout.fold(output, lead).movedim(1, 2)
    positions = torch.stack(list(tokens.query_positions))
    sequences = torch.tensor(tokens.sequences, device="cpu")[:, None].expand_as(positions)
    order = torch.arange(positions.numel(), device="cpu")
    moving = row.nonzero()[:, 0].tolist()
    for sequence in sequences.unique():
        own = (sequences == sequence).flatten()
        slots = [(own & (positions == token).flatten()).nonzero()[:, 0] for token in moving]
        if all(len(slot) == 1 for slot in slots):
            some = torch.cat(slots)
            order[some] = some.roll(1)
    swapped = rows.flatten(0, 1)[order.to(rows.device)].reshape(rows.shape)
    return layout.unfold(swapped.movedim(2, 1), lead)
