"""Compares how much each token changes the slots of calls, where NaN reaches all of them.

A gate that pools all tokens makes all of them NaN if one is. Small changes tell then whether a slot
still depends on the token whose name it has.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from gattn.models.doors.functions.calling.raw_call import RawCall
from gattn.models.doors.proof.copying.random_numbers import seed
from gattn.models.doors.proof.layouts.token_inputs import TokenInputs
from gattn.models.doors.proof.layouts.told import Told
from gattn.models.doors.proof.probing.one_run.sites import Site, scores_of
from gattn.models.doors.proof.probing.one_run.walking import Run
from gattn.models.doors.proof.probing.rerunning import Reruns
from gattn.models.doors.proof.probing.taints import flat

_MOST = 16
"""How many tokens are changed, each in a run of its own."""
LEAST = 0.1
"""A slot changes at least by this share of what its token changes most."""
_CLEARLY = 1.2
"""A slot shows whose it is where one token changes it by so many times what any other does."""
UNKNOWN = -1.0
"""Where it is not known how much a slot changes."""


def moved(
    some: Sequence[Told], inputs: TokenInputs, count: int, outer: Run, reruns: Reruns
) -> set[Site]:
    """List calls that depend on other tokens than their own, and those that come after them."""
    runs = _Runs(some, inputs, outer, reruns)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(0), device="cpu")
    for token in order[:_MOST].tolist():
        runs.change(token, count)
    if count <= _MOST:
        runs.compare_tokens()
    first = next((n for n, one in enumerate(some) if one.site in runs.moved), len(some))
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
            if len(tokens) < 2 or apart.shape[-1] != len(tokens):
                continue
            most, which = apart.topk(2, dim=0)
            found = tokens[which[0]]
            is_each = (found.sort(-1).values == tokens.sort().values).all(-1)
            is_clear = (most[0] > _CLEARLY * most[1]).all(-1)
            if bool((is_each & is_clear & (found != places).any(-1)).any()):
                self.moved.add(site)


def changes(
    one: Told, now: Sequence[Tensor], before: Sequence[Tensor]
) -> Iterator[tuple[Tensor, Tensor]]:
    """Say how much each slot (elements, slots) of a side differs, and which token it is."""
    lead, layout, tokens = one.site.lead, one.layout, one.tokens
    places = tokens.query_positions, tokens.key_positions
    for n, sizes in _changes(one.site, now, before):
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


def _changes(
    site: Site, given: Sequence[Tensor], before: Sequence[Tensor]
) -> Iterator[tuple[int, Tensor]]:
    """Say how much each slot (lead, slots) of queries, 0, and of keys, 1, differs.

    Another query changes its whole row of scores, and one number in those of others: so the median
    says how much a query differs, and that of a column how much a key does.
    """
    if site.live is None:
        for n, now, plain in zip((1, 0, 1), given, before, strict=True):
            yield n, flat((now - plain).double().norm(dim=-1).cpu(), site.lead)
        return
    yield 1, flat((given[0] - before[0]).double().norm(dim=-1).cpu(), site.lead)
    apart = (given[1] - before[1]).abs().cpu()
    is_known = site.live & apart.isfinite()
    apart = torch.where(is_known, apart, torch.nan)
    for n, dim in enumerate((2, 1)):
        is_told = is_known.sum(dim) > 1
        yield n, torch.where(is_told, apart.nanmedian(dim).values, UNKNOWN).double()


def nudged(x: Tensor, marks: Tensor) -> Tensor:
    """Change marked numbers slightly, more than they are rounded."""
    noise = torch.randn(
        x.shape, generator=torch.Generator().manual_seed(0), dtype=torch.double, device="cpu"
    )
    size = x.detach().double().square().mean().sqrt() * torch.finfo(x.dtype).eps ** 0.4
    return torch.where(marks.to(x.device), x + (noise.to(x.device) * size).to(x.dtype), x.detach())
