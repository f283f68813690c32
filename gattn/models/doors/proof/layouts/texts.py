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
        root = some[0].site.chain[-1]
        self._inputs = TokenInputs(root, reruns.sources(root), sizes, batches)
        self._classes = _classes(some)

    def moved(self) -> Iterator[tuple[Site, Layout | str]]:
        """List the calls that have other texts than is known, with their layouts or a reason."""
        if not self._may_move():
            return
        noted, (texts, count) = Deciding(), self._sizes
        outer = common(self._some, self._inputs, self._reruns)
        self._reruns.through(
            outer, lambda site, call: None, None, self._some[-1].site, noted, is_plain=True
        )
        code = words(texts)
        rows = code[:, :, None] & (torch.arange(count, device="cpu") % 2 == 0)  # Scores tell, too.
        self._run(rows, noted.decided)
        for some in self._classes:
            first, *others = ((one, self._found(one, code)) for one in some)
            known = dict(zip(first[1], first[0].tokens.sequences, strict=True))
            for one, found in others:
                before = one.tokens.sequences
                after = tuple(
                    known[text] if text >= 0 and text in known else own
                    for text, own in zip(found, before, strict=True)
                )
                if len({*after}) < len({*before}):
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
        self._run(row[None])
        return any(not _are_same(one, some[0]) for some in self._classes for one in some[1:])

    def _run(self, rows: Tensor, decided: Sequence[object] | None = None) -> None:
        how = None if decided is None else (lambda: Deciding([*decided]))
        run_marked(self._some, self._inputs, rows, self._reruns, how)

    def _found(self, one: Told, code: Tensor) -> list[int]:
        """Return the marked text of each element; negative where it depends on none or several."""
        if not self._inputs.are_any and one in first_of(self._some):
            return [*one.tokens.sequences]  # Its own output was marked.
        found = torch.full((len(one.tokens.sequences),), -1, device="cpu")
        for n, positions in one.sides(self._sizes[1]):
            is_token = (positions >= 0) & (positions < self._sizes[1])
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


def _are_same(one: Told, other: Told) -> bool:
    """Return whether two calls are on the same tokens as far as is known, also by the only run."""
    if not one.tokens.are_those_of(other.tokens):
        return False
    pairs = zip(one.runs[0], other.runs[0], strict=True)
    return not any(bool((known & told & (x != y)).any()) for (x, known), (y, told) in pairs)
