"""Proves that the calls of attention of a model number the same tokens alike.

The tokens of a call were proved by what a module around it is given. A model may move them between
these modules, as by a flip or a shift.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from gattn.models.doors.functions.calling.raw_call import RawCall
from gattn.models.doors.proof.layouts.assembling import check_apart, without_token
from gattn.models.doors.proof.layouts.batches import Batches
from gattn.models.doors.proof.layouts.token_inputs import TokenInputs
from gattn.models.doors.proof.probing import UnprovedError
from gattn.models.doors.proof.probing.codes import NONE, SEVERAL, decoded, words
from gattn.models.doors.proof.probing.moving import Moves
from gattn.models.doors.proof.probing.one_run.picking import By
from gattn.models.doors.proof.probing.one_run.sites import Site
from gattn.models.doors.proof.probing.replaying import Replays
from gattn.models.doors.proof.probing.switching import Switching
from gattn.models.doors.proof.probing.taints import (
    reached,
)
from gattn.models.read.layouts import Layout
from gattn.models.read.token_maps import TokenMap

_TAKES = frozenset(("index", "gather", "index_select", "take", "masked_select"))
_FEW = 16
"""How many tokens are told apart at once; more of them only if two halves of them moved."""
_MOVED = (
    "the model moves its tokens before it attends, after {origin}, and mixes them, so that which "
    "token a slot stands for cannot be told"
)


Place = tuple[str, int]
Pair = tuple[Tensor, Tensor]
"""Which slots (elements, slots) are NaN in a run, and where that is known."""


@dataclass(eq=False)
class Told:
    """A call whose tokens are known, and which slots of queries and keys NaN reached in `runs`."""

    site: Site
    layout: Layout
    runs: list[tuple[Pair, Pair]] = field(default_factory=list)

    @property
    def tokens(self) -> TokenMap:
        """The tokens of its slots."""
        assert self.layout.tokens is not None
        return self.layout.tokens

    def sides(self, count: int) -> Iterator[tuple[int, Tensor]]:
        """List the sides that have as many tokens, with the tokens of each element's slots.

        Queries of others may be no tokens of an input, but learned ones, or mixed in windows; keys
        of a cache are counted as they lie.
        """
        tokens = self.tokens
        if tokens.is_cross and tokens.fed is not None:
            return
        for n, of in enumerate((tokens.query_positions, tokens.key_positions)):
            if not tokens.is_cross or (n == 1 and tokens.num_keys == count):
                yield n, torch.stack(list(of))

    def look(self, call: RawCall, row: Tensor) -> Tensor:
        """Read which slots are NaN in a run; return those of queries, as its output has them.

        A query all of whose keys are marked, such as a node with no neighbour but itself, is NaN if
        its token was marked.
        """
        found, lead = reached(call, self.site.live), self.site.lead
        queries = self._pair(found.queries, found.queries_known)
        self.runs.append((queries, self._pair(found.keys, found.keys_known)))
        seen, known = (x.reshape(*lead, -1, 1) for x in (found.queries, found.queries_known))
        return seen | (~known & self.marked(row))

    def marked(self, row: Tensor) -> Tensor:
        """Mark the rows of its output that belong to marked tokens."""
        positions = torch.stack(list(self.tokens.query_positions))
        is_token = (positions >= 0) & (positions < len(row))
        marks = row[positions.clamp(0, len(row) - 1)] & is_token
        heads = self.layout.fold(torch.ones(*self.site.lead, 1, 1), self.site.lead).shape[1]
        spread = marks[:, None, :, None].expand(-1, heads, -1, -1)
        return self.layout.unfold(spread, self.site.lead)

    def _pair(self, *marks: Tensor) -> Pair:
        """Bring (lead, slots) to (elements, slots): what reaches any head, known of all."""
        lead = self.site.lead
        seen, known = (self.layout.fold(x.reshape(*lead, -1, 1), lead)[..., 0] for x in marks)
        return (seen & known).any(1), known.all(1)

    def has_moved(self, code: Tensor) -> bool:
        """Return whether some slot depends on other tokens than its own."""
        for n, positions in self.sides(code.shape[1]):
            is_token = (positions >= 0) & (positions < code.shape[1])
            own = code[:, positions.clamp(0, code.shape[1] - 1)]
            seen, known = (torch.stack([run[n][m] for run in self.runs]) for m in (0, 1))
            is_missing = own & known & ~seen & is_token
            if bool(is_missing.any()) and bool((seen & known & is_token).any()):
                return True
        return False

    def renumbered(self, code: Tensor, origin: str) -> Layout:
        """Give its slots the tokens that they depend on."""
        tokens, count = self.tokens, code.shape[1]
        found = []
        for n, positions in self.sides(count):
            seen, known = (torch.stack([run[n][m] for run in self.runs]) for m in (0, 1))
            own = decoded(seen, known, code)
            is_token = (positions >= 0) & (positions < count)
            if bool((own == SEVERAL)[is_token].any()):
                raise UnprovedError(_MOVED.format(origin=origin))
            found.append(own.where(is_token, torch.tensor(NONE)))
        sequences = torch.tensor(tokens.sequences)
        for positions in found:
            check_apart(positions, sequences)
        size = without_token(tuple(found), sequences, count)
        if tokens.is_cross:
            moved = replace(tokens, keys=found[0], num_keys=size)
        else:
            queries, keys = found
            moved = replace(
                tokens, queries=queries, keys=keys, num_queries=size, num_keys=size, grid=()
            )
        return replace(self.layout, tokens=replace(moved, cells=None, num_given=count))


class Agreement:
    """Compares the tokens of all calls with those that the model is given, or the first call's.

    Parameters
    ----------
    replays : Replays
        Runs the model again.
    moves : Moves
        Where it may move tokens.
    batches : Batches
        The model's batch.

    Attributes
    ----------
    holds_once : bool
        Whether integers and masks that the model is given may decide where tokens move.
    switched : set of Site
        The calls before which masks of values may have moved tokens.
    """

    def __init__(self, replays: Replays, moves: Moves, batches: Batches) -> None:
        self._replays, self._moves, self._batches = replays, moves, batches
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
        in_order = [(site, told[site][1]) for site in sites if site in told]
        for site, found in self._found(in_order):
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

    def _moved(self, count: int, some: list[Told]) -> Iterator[tuple[Site, Layout | str]]:
        sites = self._replays.sites
        root, order = some[0].site.chain[-1], [sites.index(one.site) for one in some]
        elements = max(n for one in some for n in one.tokens.sequences) + 1
        sizes = elements, count
        inputs = TokenInputs(root, self._replays.sources(root), sizes, self._batches)
        attending = {one.site.chain[0].name for one in some}
        begin = -1 if inputs.are_any else order[0]
        if begin == order[-1] or not self._moves.between(begin, order[-1], attending):
            return
        if not inputs.are_any and not _are_all(_first(some), count, elements):
            return
        is_few = count <= _FEW
        half = torch.rand(count, generator=torch.Generator().manual_seed(0)) < 0.5
        code = words(count) if is_few else torch.stack((half, ~half))
        self._run(some, inputs, code)
        moved = [one for one in some if one.has_moved(code) and one.site not in self.switched]
        if any(pick.kernel in _TAKES for one in some for pick in one.site.picks):
            self.holds_once = True
        if moved and not is_few:
            code = words(count)
            self._run(some, inputs, code)
        origin = "the model is given them" if inputs.are_any else f"{some[0].site.name} attends"
        for one in moved:
            try:
                yield one.site, one.renumbered(code, origin)
            except UnprovedError as error:
                yield one.site, str(error)

    def _run(self, some: list[Told], inputs: TokenInputs, code: Tensor) -> None:
        """Run the model with NaN in marked tokens, by a code, and read what reaches each call."""
        known, first = {one.site: one for one in some}, _first(some)
        all_sites = [one.site for one in some]
        outer = all_sites[0].chain[-1] if inputs.are_any else self._replays.common(all_sites)
        switching = Switching()
        for one in some:
            one.runs.clear()
        for row in code:
            before = len(some[0].runs)

            def see(site: Site, call: RawCall, row: Tensor = row) -> None:
                one = known.get(site)
                if one is not None and switching.moves:
                    self.switched.add(site)
                rows = None if one is None else one.look(call, row)
                call.output.zero_()
                if one in first and one is not None and not inputs.are_any:
                    rows = one.marked(row)
                if rows is not None:  # What has no residual stream carries positions, too.
                    call.output.masked_fill_(rows.to(call.output.device), torch.nan)

            self._replays.through(outer, see, inputs.marking(row), some[-1].site, switching)
            if any(len(one.runs) != before + 1 for one in some):
                for one in some:  # It failed on NaN.
                    one.runs = [*one.runs[:before], _unknown(one)]


def _first(some: list[Told]) -> list[Told]:
    """List the calls of the run that attends first, as in a loop over elements or queries."""
    return [one for one in some if one.site.chain[0] is some[0].site.chain[0]]


def _are_all(first: list[Told], count: int, elements: int) -> bool:
    """Return whether the queries of some calls are all tokens of all elements."""
    found = torch.zeros(elements, count, dtype=torch.bool)
    for one in first:
        if one.tokens.is_cross:
            return False
        for n, positions in zip(one.tokens.sequences, one.tokens.query_positions, strict=True):
            if n >= 0:
                found[n, positions[(positions >= 0) & (positions < count)]] = True
    return bool(found.all())


def _unknown(one: Told) -> tuple[Pair, Pair]:
    elements, sizes = len(one.tokens.sequences), (one.site.queries, one.site.keys)
    queries, keys = (torch.zeros(elements, slots, dtype=torch.bool) for slots in sizes)
    return (queries, queries), (keys, keys)
