"""Tells which calls of attention have other tokens than the ids that a model is given.

A model may be given two texts of the same length, or move its ids before it looks them up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from gattn.models.doors.functions.calling.raw_call import RawCall
from gattn.models.doors.proof.copying.random_numbers import seed
from gattn.models.doors.proof.layouts import differences
from gattn.models.doors.proof.layouts.told import Told
from gattn.models.doors.proof.probing.one_run.inputs import leaves
from gattn.models.doors.proof.probing.one_run.sites import Site
from gattn.models.doors.proof.probing.one_run.walking import Given, Run
from gattn.models.doors.proof.probing.rerunning import Reruns
from gattn.models.hugging_face.given import arguments
from gattn.models.read.layouts import Layout
from gattn.models.read.track.any_library.token_ids import ids_of

_MOST = 6
"""How many tokens are exchanged, each in a run of its own."""
_ALL = slice(None)
Place = tuple[str, int]


def beside_ids(
    sites: Sequence[Site],
    layouts: Mapping[Place, list[Any]],
    reruns: Reruns,
    module: nn.Module,
    given: Given,
    known: Sequence[Tensor],
    *,
    are_first: bool,
    may_move: bool,
) -> tuple[set[Place], set[Place]]:
    """List the calls with as many tokens as there are ids: those that have others, or moved ones.

    Parameters
    ----------
    sites, layouts
        The calls of attention, and what was proved of them.
    reruns : Reruns
        Runs the model again.
    module, given
        The module that is called, and what it is given.
    known : sequence of Tensor
        The integers among these that an embedding looks up.
    are_first : bool
        Whether ids are (tokens, elements).
    may_move : bool
        Whether the model may move tokens before it attends to them.
    """
    ids = ids_of(arguments(module, *given))
    tensors = [x for x in leaves(given) if isinstance(x, Tensor)]
    if ids is None or not ids.numel() or not any(x.data_ptr() == ids.data_ptr() for x in known):
        return set(), set()
    if len(tensors) < 2 and not may_move:
        return set(), set()
    some = list(_with_as_many(sites, layouts, ids.T if are_first else ids))
    if not some:
        return set(), set()
    exchange = _Exchange(some, reruns, module, are_first=are_first)
    count = ids.shape[0 if are_first else 1]
    order = torch.randperm(count, generator=torch.Generator().manual_seed(0), device="cpu").tolist()
    chosen = list(dict.fromkeys((0, count - 1, *order)))[:_MOST]
    # Where nothing is moved, and no other input has numbers, NaN told in which order tokens are
    # looked up: that they are looked up by these ids is left to prove.
    are_alone = not any(x.is_floating_point() or x.is_complex() for x in tensors)
    for token in [_ALL] if are_alone and not may_move else chosen:
        exchange.run(token)
    return exchange.beside, exchange.moved


def _with_as_many(
    sites: Sequence[Site], layouts: Mapping[Place, list[Any]], ids: Tensor
) -> list[Told]:
    """List the calls whose tokens may be the ids, (elements, tokens)."""
    counts: dict[Place, int] = {}
    found = []
    for site in sites:
        told = layouts.get(site.place, [])
        n = counts[site.place] = counts.get(site.place, -1) + 1
        if n >= len(told):
            continue
        layout: Layout = told[n][1]
        tokens = layout.tokens
        if tokens is None or tokens.fed is not None:
            continue
        count = tokens.num_keys if tokens.num_given is None else tokens.num_given
        if (max(tokens.sequences) + 1, count) == tuple(ids.shape):
            found.append(Told(site, layout))
    return found


class _Exchange:
    """Runs a model with another id in the place of one, and compares what calls are given.

    What attention gives stays the same, so that only the stream brings the difference to slots.
    """

    def __init__(
        self, some: Sequence[Told], reruns: Reruns, module: nn.Module, *, are_first: bool
    ) -> None:
        self._known = {one.site: one for one in some}
        self._reruns, self._module, self._are_first = reruns, module, are_first
        self._root, self._last = some[0].site.chain[-1], some[-1].site
        self._outputs: dict[Site, Tensor] = {}
        self._given: dict[Site, list[Tensor]] = {}
        self._changed: dict[Site, bool] = {}
        self.moved: set[Place] = set()

        def note(site: Site, call: RawCall) -> None:
            self._outputs[site] = call.output.clone()
            self._given[site] = [x.clone() for x in differences.given(call)]

        seed()
        reruns.through(self._root, note, None, self._last, is_plain=True)

    def run(self, token: int | slice) -> None:
        """Exchange a token of each element of the batch, or all."""

        def entered(run: Run, module: nn.Module, given: Given) -> Given | None:
            return self._exchanged(given, token) if run.place == self._root.place else None

        def see(site: Site, call: RawCall) -> None:
            with torch._C.DisableTorchFunction():
                plain = self._outputs.get(site)
                if plain is None or plain.shape != call.output.shape:
                    return
                if site in self._known:
                    self._compare(self._known[site], call, token)
                call.output.copy_(plain)

        seed()
        self._reruns.through(self._root, see, entered, self._last, is_plain=True)

    @property
    def beside(self) -> set[Place]:
        """The calls of which no slot changed with its id, nor with another.

        Keys of another side are not named by ids that are given beside them.
        """
        others = {
            site.place
            for site, is_own in self._changed.items()
            if not is_own and not self._known[site].tokens.is_cross
        }
        return others - self.moved

    def _exchanged(self, given: Given, token: int | slice) -> Given:
        ids = ids_of(arguments(self._module, *given))
        assert ids is not None
        row = (token,) if self._are_first else (slice(None), token)
        ids[row] = _others(ids, ids[row])  # They are copies of what the user gives.
        return given

    def _compare(self, one: Told, call: RawCall, token: int | slice) -> None:
        site, sequences = one.site, torch.tensor(one.tokens.sequences, device="cpu")
        numbers = differences.difference(differences.given(call), self._given[site])
        found = differences.changes(one, numbers, differences.HALF)
        # Scores of cross-attention also change with queries, which may be ids, too.
        for apart, positions in islice(found, 1) if one.tokens.is_cross else found:
            for sequence in sequences.unique():
                slots, at = apart[sequences == sequence], positions[sequences == sequence]
                own = at >= 0 if isinstance(token, slice) else at == token
                own &= slots != differences.UNKNOWN
                if not bool(own.any()):
                    continue
                most = float(slots[own].max())
                self._changed[site] = self._changed.get(site, False) or most > 0
                if token is not _ALL and most < differences.LEAST * float(slots.max()):
                    self.moved.add(site.place)


def _others(ids: Tensor, own: Tensor) -> Tensor:
    """Return other ids than some, of those that a model is given if these differ."""
    known = ids.unique()
    if len(known) > 1:
        number = torch.searchsorted(known, own.contiguous())
        found: Tensor = known[(number + 1) % len(known)]
        return found
    return own - 1 if int(known) > 0 else own + 1
