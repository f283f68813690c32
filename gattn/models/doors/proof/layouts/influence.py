"""Compares how much each token changes the slots of calls, where NaN reaches all of them.

A gate that pools all tokens makes all of them NaN if one is. Small changes tell then whether a slot
still depends on the token whose name it has.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gattn.models.doors.functions.calling.raw_call import RawCall
from gattn.models.doors.proof.copying.random_numbers import seed
from gattn.models.doors.proof.layouts.differences import (
    LEAST,
    UNKNOWN,
    are_of_others,
    changes,
    given,
    nudged,
)
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
    runs = _Runs(some, inputs, outer, reruns)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(0), device="cpu")
    tokens = order[:_MOST]
    for token in tokens.tolist():
        runs.change(token, count)
    runs.compare_tokens()
    found = runs.moved | Swaps(some, inputs, outer, reruns, count).moved(tokens)
    first = next((n for n, one in enumerate(some) if one.site in found), len(some))
    return {one.site for one in some[first:]}


class _Runs:
    """A run of a model as it is, and others in which a token is slightly different.

    What attention gives stays the same, so that only the stream brings the difference to slots.
    """

    def __init__(
        self, some: Sequence[Told], inputs: TokenInputs, outer: Run, reruns: Reruns
    ) -> None:
        self._known = {one.site: one for one in some}
        self._inputs, self._outer, self._reruns = inputs, outer, reruns
        self._last = some[-1].site
        self._outputs: dict[Site, Tensor] = {}
        self._given: dict[Site, list[Tensor]] = {}
        self.moved: set[Site] = set()
        self._values: dict[Site, list[tuple[int, Tensor, Tensor]]] = {}

        def note(site: Site, call: RawCall) -> None:
            self._outputs[site] = call.output.clone()
            self._given[site] = [x.clone() for x in given(call)]

        seed()
        reruns.through(outer, note, None, self._last, is_plain=True)

    def change(self, token: int, count: int) -> None:
        """Change a token in all elements of the batch; a call that is no longer as it was moved."""
        row = torch.arange(count, device="cpu") == token
        missing = self._known.keys() & self._outputs.keys()
        first = next(iter(self._known.values()))

        def see(site: Site, call: RawCall) -> None:
            with torch._C.DisableTorchFunction():
                one, plain = self._known.get(site), self._outputs.get(site)
                if one is not None and plain is not None:
                    missing.discard(site)
                    self._compare(one, given(call), token)
                if plain is not None and not self._reruns.carries(site):
                    call.output.copy_(plain)
                if one is first and not self._inputs.are_any:
                    marks = one.marked(row).to(call.output.device)
                    call.output.copy_(nudged(call.output, marks))

        seed()
        entered = self._inputs.marking(row, nudged)
        self._reruns.through(self._outer, see, entered, self._last, is_plain=True)
        self.moved |= missing

    def _compare(self, one: Told, now: Sequence[Tensor], token: int) -> None:
        sequences = torch.tensor(one.tokens.sequences, device="cpu")
        for n, (apart, positions) in enumerate(changes(one, now, self._given[one.site])):
            if not n:
                self._values.setdefault(one.site, []).append((token, apart, positions))
            for sequence in sequences.unique():
                slots, own = apart[sequences == sequence], positions[sequences == sequence] == token
                own &= slots != UNKNOWN
                if bool(own.any()) and bool(slots[own].max() < LEAST * slots.max()):
                    self.moved.add(one.site)

    def compare_tokens(self) -> None:
        """Find calls whose values clearly are, one by one, those of other tokens.

        Tokens that move, and are then mixed with a mean of all, come with a share of it in each.
        """
        for site, known in self._values.items():
            tokens = torch.tensor([token for token, _, _ in known], device="cpu")
            apart, places = torch.stack([sizes for _, sizes, _ in known]), known[0][2]
            sequences = torch.tensor(self._known[site].tokens.sequences, device="cpu")
            for sequence in sequences.unique():
                own = sequences == sequence
                if are_of_others(apart[:, own].flatten(1), tokens, places[own].flatten(), 0.0):
                    self.moved.add(site)
