"""Runs a model with NaN in marked tokens, and reads what of it reaches calls of attention."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from gattn.models.doors.functions.calling.raw_call import RawCall
from gattn.models.doors.proof.layouts.token_inputs import TokenInputs
from gattn.models.doors.proof.layouts.told import Pair, Told
from gattn.models.doors.proof.probing.one_run.sites import Site
from gattn.models.doors.proof.probing.one_run.walking import Entered, Run
from gattn.models.doors.proof.probing.rerunning import Reruns


def run_marked(
    some: list[Told],
    inputs: TokenInputs,
    rows: Tensor,
    reruns: Reruns,
    watched: Callable[[], AbstractContextManager[Any]] | None = None,
    *,
    noted: Callable[[Site], None] | None = None,
    only: int | None = None,
    entered: Entered | None = None,
) -> None:
    """Run the model with NaN in marked tokens, and let each call note what reaches it.

    Parameters
    ----------
    some : list of Told
        The calls.
    inputs : TokenInputs
        What the model is given of tokens; if of none, the first call's output is marked.
    rows : Tensor
        The marks of each run, (runs, tokens) or (runs, texts, tokens).
    reruns : Reruns
        What runs the model again.
    watched : callable, optional
        Makes the mode that each run is in.
    noted : callable, optional
        Called at each of the calls.
    only : int, optional
        The number of what the model is given that is marked alone.
    entered : callable, optional
        What marks instead.
    """
    known, first = {one.site: one for one in some}, first_of(some)
    outer = common(some, inputs, reruns)
    for one in some:
        one.runs.clear()
    for row in rows:
        before = len(some[0].runs)

        def see(site: Site, call: RawCall, row: Tensor = row) -> None:
            one = known.get(site)
            if one is not None and noted is not None:
                noted(site)
            marks = None if one is None else one.look(call, row)
            reruns.silence(site, call)
            if one in first and one is not None and not inputs.are_any:
                marks = one.marked(row)
            if marks is not None and only is None:  # Without a residual stream, it carries them.
                call.output.masked_fill_(marks.to(call.output.device), torch.nan)

        marking = entered or inputs.marking(row, only=only)
        mode = None if watched is None else watched()
        reruns.through(outer, see, marking, some[-1].site, mode)
        if any(len(one.runs) != before + 1 for one in some):
            for one in some:  # It failed on NaN.
                one.runs = [*one.runs[:before], _unknown(one)]


def first_of(some: list[Told]) -> list[Told]:
    """List the calls of the run that attends first, as in a loop over elements or queries."""
    return [one for one in some if one.site.chain[0] is some[0].site.chain[0]]


def common(some: list[Told], inputs: TokenInputs, reruns: Reruns) -> Run:
    """Return the run to repeat: the model's, or the innermost one around calls."""
    if inputs.are_any:
        return some[0].site.chain[-1]
    return reruns.common([one.site for one in some])


def _unknown(one: Told) -> tuple[Pair, Pair, Pair]:
    elements, sizes = len(one.tokens.sequences), (one.site.queries, one.site.keys)
    queries, keys = (
        torch.zeros(elements, slots, dtype=torch.bool, device="cpu") for slots in sizes
    )
    return (queries, queries), (keys, keys), (keys, keys)
