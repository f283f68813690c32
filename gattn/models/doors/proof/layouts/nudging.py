"""Runs a model in which some tokens are slightly different, to see how much each slot differs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from gattn.models.doors.functions.calling.raw_call import RawCall
from gattn.models.doors.proof.copying.random_numbers import seed
from gattn.models.doors.proof.layouts.differences import (
    HALF,
    Found,
    changes,
    difference,
    given,
    nudged,
    nudged_alike,
)
from gattn.models.doors.proof.layouts.token_inputs import TokenInputs
from gattn.models.doors.proof.layouts.told import Told
from gattn.models.doors.proof.probing.one_run.sites import Site
from gattn.models.doors.proof.probing.one_run.walking import Run
from gattn.models.doors.proof.probing.rerunning import Reruns


class Nudging:
    """A run of a model as it is, and others in which some tokens are slightly different.

    What attention gives stays the same, so that only the stream brings the difference to slots;
    where the inputs have no tokens, what the `first` calls give has those that are changed.
    """

    def __init__(
        self,
        some: Sequence[Told],
        first: Sequence[Told],
        inputs: TokenInputs,
        outer: Run,
        reruns: Reruns,
    ) -> None:
        self._known = {one.site: one for one in some}
        self._first = {} if inputs.are_any else {one.site: one for one in first}
        self._inputs, self._outer, self._reruns = inputs, outer, reruns
        self._last = some[-1].site
        self._outputs: dict[Site, Tensor] = {}
        self._given: dict[Site, list[Tensor]] = {}

        def note(site: Site, call: RawCall) -> None:
            self._outputs[site] = call.output.clone()
            self._given[site] = [x.clone() for x in given(call)]

        seed()
        reruns.through(outer, note, None, self._last, is_plain=True)

    def run(self, row: Tensor, draws: Sequence[int]) -> Found:
        """Change marked tokens in all elements of the batch, by several draws of numbers.

        Returns how much slots differ on average.
        """
        sums: dict[Site, list[Tensor]] = {}
        for draw in draws:
            for site, apart in self._run(row, draw).items():
                known = sums.get(site, [torch.zeros_like(x) for x in apart])
                sums[site] = [x + y.square() for x, y in zip(known, apart, strict=True)]
        return {
            site: list(changes(self._known[site], [x.sqrt() for x in some], HALF))
            for site, some in sums.items()
        }

    def _run(self, row: Tensor, draw: int) -> dict[Site, list[Tensor]]:
        found: dict[Site, list[Tensor]] = {}

        def see(site: Site, call: RawCall) -> None:
            with torch._C.DisableTorchFunction():
                one, plain = self._known.get(site), self._outputs.get(site)
                if one is not None and plain is not None:
                    found[site] = difference(given(call), self._given[site])
                if plain is not None and not self._reruns.carries(site):
                    call.output.copy_(plain)
                if plain is not None and (first := self._first.get(site)) is not None:
                    marks = first.marked(row).to(call.output.device)
                    call.output.copy_(nudged(call.output, marks, draw))

        seed()
        entered = self._inputs.marking(row, partial(nudged_alike, draw=draw))
        self._reruns.through(self._outer, see, entered, self._last, is_plain=True)
        return found
