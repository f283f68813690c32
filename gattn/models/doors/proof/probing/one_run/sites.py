"""Collects the calls of attention of one run of a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gattn.models.doors.functions.calling.raw_call import RawCall
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
        Where numbers that reach it were moved before, in these runs, by indices that are not always
        the same.
    is_ranked : bool
        Whether only the largest scores are kept, so that those before tell which tokens they are.
    has_mask_of_values : bool
        Whether a mask takes scores away that was made of values, a number for each query and key.
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
    is_ranked: bool = False
    has_mask_of_values: bool = False
    name: str = ""

    @property
    def place(self) -> tuple[str, int]:
        """The name of its module, and its number within a run of it."""
        return self.name, self.ordinal

    def has_sizes_of(self, call: RawCall) -> bool:
        """Return whether a call has as many elements, queries and keys: values may choose fewer."""
        return (self.lead, self.queries, self.keys) == sizes_of(call)


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
        if call.ranking is not None:
            self._picks.forgive(call.ranking.memory)
        some = (call.output, call.value, call.query, call.key, call.scores, call.weights)
        picks = self._picks.reaching(x for x in some if x is not None)
        self.found.append(
            Site(
                call.module,
                call.ordinal,
                chain,
                counts,
                *sizes_of(call),
                call.kind,
                live_scores(call),
                call.altered if call.number is None else "",
                tuple(chain[0].inner),
                [one for one in picks if chain[-1] in one.running],
                call.is_ranked,
                self._has_mask_of_values(call),
                self._walk.name(call.module),
            )
        )

    def _has_mask_of_values(self, call: RawCall) -> bool:
        _, queries, keys = sizes_of(call)
        made_of = max(map(self._picks.masked_by, (call.mask, call.scores)))
        return made_of > 0 and made_of % (queries * keys) == 0


def sizes_of(call: RawCall) -> tuple[tuple[int, ...], int, int]:
    """Return the leading dimensions of a call, and how many queries and keys it has."""
    return call.lead, call.output.shape[-2], call.value.shape[-2]


def live_scores(call: RawCall) -> Tensor | None:
    """Return which scores of a plain run no mask takes away."""
    if call.scores is None:
        return None
    return (scores_of(call, is_ranked=call.is_ranked) > LEAST).cpu()


def scores_of(call: RawCall, *, is_ranked: bool = False) -> Tensor:
    """Return the scores as (lead, queries, keys), where they are ranked those before."""
    scores = call.scores
    assert scores is not None
    before = call.ranking.before if call.ranking is not None and is_ranked else None
    if before is not None and before.shape == scores.shape:
        scores = before
    shape = torch.broadcast_shapes(scores.shape[:-2], call.lead)
    return scores.detach().expand(*shape, *scores.shape[-2:]).reshape(-1, *scores.shape[-2:])
