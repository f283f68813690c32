"""Proves that the calls of attention of a model number the same tokens alike.

The tokens of a call were proved by what a module around it is given. A model may move them between
these modules, as by a flip or a shift.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gattn.models.doors.proof.layouts import holding, swaps
from gattn.models.doors.proof.layouts.batches import Batches
from gattn.models.doors.proof.layouts.marked_runs import common, first_of, run_marked
from gattn.models.doors.proof.layouts.texts import of_other_texts
from gattn.models.doors.proof.layouts.token_inputs import TokenInputs
from gattn.models.doors.proof.layouts.told import Told
from gattn.models.doors.proof.probing import UnprovedError
from gattn.models.doors.proof.probing.codes import words
from gattn.models.doors.proof.probing.moving import Moves
from gattn.models.doors.proof.probing.one_run.picking import By
from gattn.models.doors.proof.probing.one_run.sites import Site
from gattn.models.doors.proof.probing.one_run.walking import Entered
from gattn.models.doors.proof.probing.rerunning import Reruns
from gattn.models.doors.proof.probing.switching import Switching
from gattn.models.read.layouts import Layout

_TAKES = frozenset(("index", "gather", "index_select", "take", "masked_select"))
_FEW = 16
"""How many tokens are told apart at once; more of them only if two halves of them moved."""
Place = tuple[str, int]


class Agreement:
    """Compares the tokens of all calls with those that the model is given, or the first call's.

    Parameters
    ----------
    reruns : Reruns
        Runs the model again.
    moves : Moves
        Where it may move tokens.
    batches : Batches
        The model's batch.
    puts_numbers : callable
        Whether its code may make tokens of numbers that it reads, one by one.
    looks_up : bool
        Whether it may make them of integers that values made and it may have moved, by a table.

    Attributes
    ----------
    holds_once : bool
        Whether integers and masks that the model is given may decide where tokens move.
    switched : set of Site
        The calls before which masks of values may have moved tokens.
    """

    def __init__(
        self,
        reruns: Reruns,
        moves: Moves,
        batches: Batches,
        puts_numbers: Callable[[], bool],
        *,
        looks_up: bool = False,
    ) -> None:
        self._reruns, self._moves, self._batches = reruns, moves, batches
        self._puts_numbers, self._looks_up = puts_numbers, looks_up
        self.holds_once = False
        self.switched: set[Site] = set()

    def settle(
        self, sites: Sequence[Site], layouts: dict[Place, list[Any]], reasons: dict[Place, str]
    ) -> None:
        """Let all calls number tokens alike, or refuse those that cannot."""
        places: dict[Place, list[Site]] = {}
        for site in sites:
            places.setdefault(site.place, []).append(site)
        told = {
            site: (n, layout)
            for place, some in layouts.items()
            if len(some) == len(places.get(place, ()))
            for n, (site, (_, layout)) in enumerate(zip(places[place], some, strict=True))
        }
        texts = partial(of_other_texts, reruns=self._reruns, batches=self._batches)
        for find in (self._found, self._found_joined, texts):
            in_order = [
                (site, layouts[site.place][told[site][0]][1])
                for site in sites
                if site in told and site.place in layouts
            ]
            for site, found in find(in_order):
                if isinstance(found, str):
                    layouts.pop(site.place, None)
                    reasons[site.place] = found
                elif site.place in layouts:
                    layouts[site.place][told[site][0]] = site.lead, found

    def _found(self, told: Sequence[tuple[Site, Layout]]) -> Iterator[tuple[Site, Layout | str]]:
        """Give calls whose tokens were moved the model's numbers, or a reason to refuse them."""
        groups: dict[int, list[Told]] = {}
        for site, layout in told:
            if layout.tokens is not None and all(pick.by is By.INPUTS for pick in site.picks):
                one = Told(site, layout)
                given = None if one.tokens.is_cross else one.tokens.num_given
                count = one.tokens.num_keys if given is None else given
                groups.setdefault(count, []).append(one)
        for count, some in groups.items():
            yield from self._moved(count, some)

    def _found_joined(
        self, told: Sequence[tuple[Site, Layout]]
    ) -> Iterator[tuple[Site, Layout | str]]:
        """Give calls on tokens of several inputs the numbers of the first call on all of these.

        Modules that are given these inputs apart, joined, or in another order, number them so.
        """
        groups: dict[int, list[Told]] = {}
        for site, layout in told:
            if layout.tokens is not None and all(pick.by is By.INPUTS for pick in site.picks):
                one = Told(site, layout)
                if not one.tokens.is_cross and not one.tokens.is_by_rows:
                    groups.setdefault(one.tokens.num_keys, []).append(one)
        for count, some in groups.items():
            if any(one.tokens.num_given not in (None, count) for one in some):
                yield from self._moved(count, some, are_joined=True)

    def _moved(
        self, count: int, some: list[Told], *, are_joined: bool = False
    ) -> Iterator[tuple[Site, Layout | str]]:
        sites = self._reruns.sites
        root, order = some[0].site.chain[-1], [sites.index(one.site) for one in some]
        elements = max(n for one in some for n in one.tokens.sequences) + 1
        sizes = elements, count
        given = () if are_joined else self._reruns.sources(root)
        half = torch.rand(count, generator=torch.Generator().manual_seed(0), device="cpu") < 0.5
        inputs = TokenInputs(root, given, sizes, self._batches)
        inputs = self._without_masks(some, inputs, half)
        attending = {one.site.chain[0].name for one in some}
        begin = -1 if inputs.are_any else order[0]
        if begin == order[-1]:
            return
        if not inputs.are_any and not _are_all(first_of(some), count, elements):
            return
        may_move = self._moves.between(begin, order[-1], attending)
        is_few = count <= _FEW or may_move
        code = words(count) if is_few else torch.stack((half, ~half))
        self._run(some, inputs, code)
        if inputs.may_be_last and _are_blind(some, code):
            first, inputs = inputs, inputs.last()
            self._run(some, inputs, code)
            if _are_blind(some, code):  # What comes last are channels, then.
                inputs = first
                self._run(some, inputs, code)
        elif inputs.are_pixels and _are_blind(some, code):
            if self._tell_pixels(some, inputs, count):
                inputs, begin = inputs.nothing, order[0]
                if begin == order[-1] or not _are_all(first_of(some), count, elements):
                    return
            self._run(some, inputs, code)
        unreached = {one.site for one in some if one.is_out_of_reach(count)}
        if unreached and ((inputs.are_any and self._looks_up) or self._puts_numbers()):
            self.switched |= unreached
        moved = [
            one
            for one in some
            if one.has_moved(code, are_joined=are_joined) and one.site not in self.switched
        ]
        blind = {one.site for one in some if one.is_blind(code)}
        asked = [one for one in some if one.site in blind or (one.mixes(code) and one not in moved)]
        if asked:
            where = inputs, count, common(some, inputs, self._reruns), self._reruns
            self.switched |= holding.exchanged(asked, first_of(some), *where, blind)
        if blind:
            asked = [one for one in some if one not in moved or one.site in blind]
            where = inputs, count, common(some, inputs, self._reruns), self._reruns
            self.switched |= blind & swaps.moved(asked, *where)
        if may_move:
            picks = [pick for one in some for pick in one.site.picks]
            self.holds_once |= any(pick.kernel in _TAKES for pick in picks)
        if moved and not is_few:
            code = words(count)
            self._run(some, inputs, code)
        origin = "the model is given them" if inputs.are_any else f"{some[0].site.name} attends"
        failed = {}
        for one in moved:
            try:
                yield one.site, one.renumbered(code, origin, are_joined=are_joined)
            except UnprovedError as error:
                if not one.has_moved(code, are_joined=are_joined, without_padding=True):
                    self.holds_once = True
                    continue
                self.switched |= {one.site} if are_joined else set()
                failed[one] = str(error), one.lost(code)
        if failed and not are_joined:
            rows = torch.cat([lost for _, lost in failed.values()]).unique(dim=0)
            self._run(some, inputs, rows)
            for one, (reason, lost) in failed.items():
                if not one.has_lost(lost, rows):
                    yield one.site, reason

    def _without_masks(self, some: list[Told], inputs: TokenInputs, half: Tensor) -> TokenInputs:
        """Leave out what reaches no more than scores, as masks do: no token moves with it."""
        masks = []
        for n in inputs.flat:
            for one in some:
                one.is_told = False
            self._run(some, inputs, half[None], only=n)
            if any(one.is_known for one in some) and not any(one.is_told for one in some):
                masks.append(n)
        return inputs.without(masks) if masks else inputs

    def _tell_pixels(self, some: list[Told], inputs: TokenInputs, count: int) -> bool:
        """Return whether pixels tell tokens apart, so that channels are no tokens."""
        none = torch.zeros(1, count, dtype=torch.bool, device="cpu")
        self._run(some, inputs, none, entered=inputs.half())
        return any(one.is_told_in_part for one in some)

    def _run(
        self,
        some: list[Told],
        inputs: TokenInputs,
        code: Tensor,
        only: int | None = None,
        entered: Entered | None = None,
    ) -> None:
        """Run the model with NaN in marked tokens, by a code, and read what reaches each call."""
        switching = Switching()

        def note(site: Site) -> None:
            if switching.moves:
                self.switched.add(site)

        how = some, inputs, code, self._reruns, lambda: switching
        run_marked(*how, noted=note, only=only, entered=entered)


def _are_blind(some: list[Told], code: Tensor) -> bool:
    return all(one.is_blind(code, everywhere=True) for one in some)


def _are_all(first: list[Told], count: int, elements: int) -> bool:
    """Return whether the queries of some calls are all tokens of all elements."""
    found = torch.zeros(elements, count, dtype=torch.bool, device="cpu")
    for one in first:
        if one.tokens.is_cross:
            return False
        for n, positions in zip(one.tokens.sequences, one.tokens.query_positions, strict=True):
            if n >= 0:
                found[n, positions[(positions >= 0) & (positions < count)]] = True
    return bool(found.all())
