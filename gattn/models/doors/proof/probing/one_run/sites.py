"""Collects the calls of attention of one run of a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gattn.models.doors.functions.calling.raw_call import RawCall
from gattn.models.doors.interface import is_routed
from gattn.models.doors.proof.probing.one_run.picking import Pick, Picks
from gattn.models.doors.proof.probing.one_run.walking import Run, Walk
from gattn.models.read.seen_call import LEAST


@dataclass(frozen=True, eq=False)
class Site:
    """A call of attention in the plain run of a model.

    Parameters
    ----------
    module : nn.Module
        The module that attends.
    ordinal : int
        How many calls of attention came before it in this run of the module.
    chain : list of Run
        The run of the module and those around it, the innermost first.
    counts : list of int
        For each of these runs, how many calls of the module's attention came before it.
    lead, queries, keys : tuple of int, int, int
        The sizes of its tensors.
    kind : str
        The door that saw it.
    live : Tensor (lead, queries, keys), optional
        Which scores no mask takes away, if only these are known, and the call is to be proved.
    altered : str
        The function that changes the attention between softmax and values, if one does.
    inside : sequence of Run
        The runs within the run of the module that came before.
    picks : sequence of Pick
        Where numbers were moved before it, in these runs, by indices that are not always the same.
    name : str
        The name of the module. Its run is that of the one around it if another method of it than
        its forward was called.
    """

    module: nn.Module
    ordinal: int
    chain: list[Run]
    counts: list[int]
    lead: tuple[int, ...]
    queries: int
    keys: int
    kind: str
    live: Tensor | None
    altered: str = ""
    inside: Sequence[Run] = ()
    picks: Sequence[Pick] = ()
    name: str = ""

    @property
    def place(self) -> tuple[str, int]:
        """The name of its module, and its number within a run of it."""
        return self.name, self.ordinal


class Sites:
    """Collects the calls of attention of one run."""

    def __init__(self, walk: Walk, picks: Picks) -> None:
        self._walk, self._picks = walk, picks
        self.found: list[Site] = []
        self._counts: dict[tuple[nn.Module, Run], int] = {}

    def __call__(self, call: RawCall) -> None:
        """Note a call."""
        chain = self._walk.chain(call.module)
        counts = [self._counts.get((call.module, run), 0) for run in chain]
        for run, count in zip(chain, counts, strict=True):
            self._counts[call.module, run] = count + 1
        self.found.append(
            Site(
                call.module,
                call.ordinal,
                chain,
                counts,
                call.lead,
                call.output.shape[-2],
                call.value.shape[-2],
                call.kind,
                None if is_routed() else live_scores(call),
                call.altered if call.number is None else "",
                tuple(chain[0].inner),
                [one for one in self._picks.found if chain[-1] in one.running],
                self._walk.name(call.module),
            )
        )


def live_scores(call: RawCall) -> Tensor | None:
    """Return which scores of a plain run no mask takes away."""
    return None if call.scores is None else (scores_of(call) > LEAST).cpu()


def scores_of(call: RawCall) -> Tensor:
    """Return the scores as (lead, queries, keys)."""
    assert call.scores is not None
    shape = torch.broadcast_shapes(call.scores.shape[:-2], call.lead)
    sizes = call.scores.shape[-2:]
    return call.scores.detach().expand(*shape, *sizes).reshape(-1, *sizes)
