"""Tells of which text of the batch each element of a call is, where a model moves whole texts.

Old models of sequences sort them by length, and bring them back. What was proved of one call, also
of those that are alike, says nothing of the texts that these are given.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from gattn.models.doors.proof.layouts.batches import Batches
from gattn.models.doors.proof.layouts.marked_runs import common, first_of, run_marked
from gattn.models.doors.proof.layouts.token_inputs import TokenInputs
from gattn.models.doors.proof.layouts.told import Told
from gattn.models.doors.proof.probing.codes import decoded, words
from gattn.models.doors.proof.probing.one_run.deciding import Deciding
from gattn.models.doors.proof.probing.one_run.picking import By
from gattn.models.doors.proof.probing.one_run.sites import Site
from gattn.models.doors.proof.probing.rerunning import Reruns
from gattn.models.read.layouts import Layout

_REPEATED = (
    "the model repeats texts of the batch before it attends, and leaves others out, so that which "
    "text each element is cannot be told: run one text at a time"
)
_ACROSS = (
    "queries of one sequence attend to keys of another, or it is not known of which sequence they "
    "are, as where a model compares each text of the batch with others: run one text at a time"
)


def of_other_texts(
    told: Sequence[tuple[Site, Layout]], reruns: Reruns, batches: Batches
) -> Iterator[tuple[Site, Layout | str]]:
    """Give calls that have other texts than the first one that is alike their own, or a reason."""
    groups: dict[int, list[Told]] = {}
    for site, layout in told:
        if layout.tokens is not None and all(pick.by is not By.CHANCE for pick in site.picks):
            one = Told(site, layout)
            given = None if one.tokens.is_cross else one.tokens.num_given
            groups.setdefault(one.tokens.num_keys if given is None else given, []).append(one)
    for count, some in groups.items():
        texts = max(n for one in some for n in one.tokens.sequences) + 1
        if texts > 1 and len(_classes(some)) < len(some):
            yield from _Texts(some, (texts, count), reruns, batches).moved()


class _Texts:
    """The texts of some calls with as many tokens, told by NaN in those of some texts."""

    def __init__(
        self, some: list[Told], sizes: tuple[int, int], reruns: Reruns, batches: Batches
    ) -> None:
        self._some, self._sizes, self._reruns = some, sizes, reruns
        self._batches = batches
        self._inputs = self._of(sizes[1])
        self._classes = _classes(some)
        self._crossing = self._cross()

    def _of(self, count: int) -> TokenInputs:
        root, sizes = self._some[0].site.chain[-1], (self._sizes[0], count)
        return TokenInputs(root, self._reruns.sources(root), sizes, self._batches)

    def _cross(self) -> dict[int, list[Told]]:
        """List calls of cross-attention that are alike others, by the number of their queries."""
        found: dict[int, list[Told]] = {}
        for some in self._classes:
            if some[0].tokens.is_cross and not some[0].tokens.has_own_rows and len(some) > 1:
                found.setdefault(some[0].tokens.num_queries, []).extend(some)
        return found

    def moved(self) -> Iterator[tuple[Site, Layout | str]]:
        """List the calls that have other texts than is known, with their layouts or a reason."""
        if not self._may_move():
            return
        noted = Deciding()
        outer = common(self._some, self._inputs, self._reruns)
        self._reruns.through(
            outer, lambda site, call: None, None, self._some[-1].site, noted, is_plain=True
        )
        code = words(self._sizes[0])
        found = self._marked(self._some, self._inputs, code, noted.decided)
        askers: dict[Told, list[int]] = {}
        for queries, some in self._crossing.items():
            if (inputs := self._of(queries)).are_any:
                askers |= self._marked(some, inputs, code, noted.decided, side=0)
        for first, *others in self._classes:
            for one in others:
                before = one.tokens.sequences
                after = _renamed(found[one], found[first], first, before)
                asked = after
                if one in self._crossing.get(one.tokens.num_queries, ()):
                    nothing = [-1] * len(before)
                    told = askers.get(one, nothing), askers.get(first, nothing)
                    asked = _renamed(*told, first, before)
                if asked != after:
                    yield one.site, _ACROSS
                elif len({*after}) < len({*before}):
                    yield one.site, _REPEATED
                elif after != before:
                    tokens = replace(one.tokens, sequences=after)
                    yield one.site, replace(one.layout, tokens=tokens)

    def _may_move(self) -> bool:
        """Return whether some call is given other tokens than the first that is alike."""
        texts, count = self._sizes
        random = torch.Generator().manual_seed(0)
        row = torch.rand(texts, count, generator=random, device="cpu") < 0.5
        by_values = any(pick.by is By.VALUES for one in self._some for pick in one.site.picks)
        if by_values or len(row.unique(dim=0)) < texts:  # Of NaN, values decide otherwise.
            return True
        run_marked(self._some, self._inputs, row[None], self._reruns)
        if any(not _are_same(one, some[0]) for some in self._classes for one in some[1:]):
            return True
        for queries, some in self._crossing.items():
            if (inputs := self._of(queries)).are_any:
                row = torch.rand(texts, queries, generator=random, device="cpu") < 0.5
                run_marked(some, inputs, row[None], self._reruns)
                alike = (same for same in self._classes if same[0] in some)
                if any(_differ(one, same[0], 0) for same in alike for one in same[1:]):
                    return True
        return False

    def _marked(
        self,
        some: list[Told],
        inputs: TokenInputs,
        code: Tensor,
        decided: Sequence[object],
        side: int | None = None,
    ) -> dict[Told, list[int]]:
        """Mark tokens of some texts; return the marked text of each element of calls.

        It is negative where an element depends on none or several.
        """
        every = torch.arange(inputs.count, device="cpu")
        rows = code[:, :, None] & (every % 2 == 0)  # Scores tell, too.
        run_marked(some, inputs, rows, self._reruns, lambda: Deciding([*decided]))
        return {one: self._found(one, inputs, code, side) for one in some}

    def _found(self, one: Told, inputs: TokenInputs, code: Tensor, side: int | None) -> list[int]:
        if not inputs.are_any and one in first_of(self._some):
            return [*one.tokens.sequences]  # Its own output was marked.
        found = torch.full((len(one.tokens.sequences),), -1, device="cpu")
        sides = one.sides(inputs.count)
        if side is not None:
            sides = iter([(side, torch.stack(list(one.tokens.query_positions)))])
        for n, positions in sides:
            is_token = (positions >= 0) & (positions < inputs.count)
            seen, known = (torch.stack([run[n][m] for run in one.runs]) for m in (0, 1))
            own = decoded((seen & known & is_token).any(2), (known & is_token).any(2), code)
            found = torch.where(own >= 0, own, found)
        return found.tolist()


def _classes(some: Sequence[Told]) -> list[list[Told]]:
    """List the calls whose tokens the same inputs of the same run told, or of those alike."""
    found: dict[object, list[Told]] = {}
    for one in some:
        name = one.tokens.inputs, one.site.lead, one.site.queries, one.site.keys
        found.setdefault(name, []).append(one)
    return [*found.values()]


def _renamed(
    found: Sequence[int], known: Sequence[int], first: Told, own: Sequence[int]
) -> tuple[int, ...]:
    """Give marked texts the numbers of the first call that is alike.

    They keep their `own` where an element depends on several texts, which tells nothing of them.
    """
    names = dict(zip(known, first.tokens.sequences, strict=True))
    return tuple(
        names[text] if text >= 0 and text in names else before
        for text, before in zip(found, own, strict=True)
    )


def _are_same(one: Told, other: Told) -> bool:
    """Return whether two calls are on the same tokens as far as is known, also by the only run."""
    if not one.tokens.are_those_of(other.tokens):
        return False
    return not any(_differ(one, other, n) for n in range(len(one.runs[0])))


def _differ(one: Told, other: Told, side: int) -> bool:
    """Return whether the only run reached other slots of a side of two calls."""
    (x, known), (y, told) = one.runs[0][side], other.runs[0][side]
    return bool((known & told & (x != y)).any())
