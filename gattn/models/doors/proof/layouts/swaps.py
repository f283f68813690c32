"""Exchanges pairs of tokens, to see which slots follow them.

Means, norms and gates that pool all tokens stay as they are if two tokens change places. So a slot
that changes holds one of the two, however strongly the pooled numbers reach it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
_FEW = 6
"""How many tokens change places with all others."""
_MOST = 16
"""How many tokens change places with others, two in each run."""


def moved(
    some: Sequence[Told], inputs: TokenInputs, count: int, outer: Run, reruns: Reruns
) -> set[Site]:
    """List calls whose slots clearly follow other tokens, and those that come after them."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(0), device="cpu")
    if count < 3:
        return set()
    found = _Swaps(some, inputs, outer, reruns, count).moved(order[:_MOST])
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

    def moved(self, tokens: Tensor) -> set[Site]:
        """List calls whose slots clearly follow other tokens than their own.

        Each token changes places with several others: the slot that holds it changes each time.
        """
        order = tokens.tolist()
        pairs = list(combinations(order, 2))
        if len(order) > _FEW:
            pairs = list(zip(order, [*order[1:], order[0]], strict=True))
        runs = {pair: self._run(pair) for pair in pairs}
        return {site for site in self._known if self._is_moved(site, runs, tokens)}

    def _is_moved(self, site: Site, runs: Mapping[tuple[int, int], Found], tokens: Tensor) -> bool:
        if not all(site in run for run in runs.values()):
            return False
        known = (x[x.isfinite()].double().abs() for x in self._given[site])
        most = max((float(x.max()) for x in known if x.numel()), default=0.0)
        least = most * torch.finfo(self._given[site][0].dtype).eps ** 0.7
        sequences = torch.tensor(self._known[site].tokens.sequences, device="cpu")
        for sides in zip(*(run[site] for run in runs.values()), strict=True):
            places = sides[0][1]
            sizes = {pair: side[0] for pair, side in zip(runs, sides, strict=True)}
            some = [[x for pair, x in sizes.items() if n in pair] for n in tokens.tolist()]
            apart = torch.stack([torch.stack(x).amin(0) for x in some])
            for own in (sequences == sequence for sequence in sequences.unique()):
                if are_of_others(apart[:, own].flatten(1), tokens, places[own].flatten(), least):
                    return True
        return False

    def _run(self, pair: tuple[int, int]) -> Found:
        """Let two tokens change places; return how much slots change, and which tokens they are."""
        row = torch.zeros(self._count, dtype=torch.bool, device="cpu")
        row[list(pair)] = True
        found: Found = {}

        def see(site: Site, call: RawCall) -> None:
            with torch._C.DisableTorchFunction():
                one, before = self._known.get(site), self._outputs.get(site)
                if before is None:
                    return
                if one is not None and site not in found:
                    before_it = self._given[site]
                    found[site] = list(changes(one, difference(given(call), before_it), 0.0))
                if not self._reruns.carries(site):
                    call.output.copy_(before if one is None else _rows_swapped(one, before, pair))
                elif one is not None and site is self._first and not self._inputs.are_any:
                    call.output.copy_(_rows_swapped(one, before, pair))

        seed()
        entered = self._inputs.marking(row, _swapped)
        self._reruns.through(self._outer, see, entered, self._last, is_plain=True)
        return found


def _swapped(x: Tensor, marks: Tensor) -> Tensor:
    """Change all tokens slightly, then let the two that are marked change places."""
    x = nudged(x, _EVERY)
    dim = next(n for n, size in enumerate(marks.shape) if size > 1)
    marks = marks.to(x.device).expand(x.shape)
    pairs = x[marks].reshape(*x.shape[:dim], 2, -1)
    return x.masked_scatter(marks, pairs.flip(-2))


def _rows_swapped(one: Told, output: Tensor, pair: tuple[int, int]) -> Tensor:
    """Let two tokens' rows of what a call gives change places, where a sequence has one of each."""
    tokens, layout, lead = one.tokens, one.layout, one.site.lead
    rows = layout.fold(output, lead).movedim(1, 2)
    positions = torch.stack(list(tokens.query_positions))
    sequences = torch.tensor(tokens.sequences, device="cpu")[:, None].expand_as(positions)
    order = torch.arange(positions.numel(), device="cpu")
    for sequence in sequences.unique():
        first, second = (
            ((positions == token) & (sequences == sequence)).flatten().nonzero()[:, 0]
            for token in pair
        )
        if len(first) == len(second) == 1:
            order[first], order[second] = second, first
    swapped = rows.flatten(0, 1)[order.to(rows.device)].reshape(rows.shape)
    return layout.unfold(swapped.movedim(2, 1), lead)
