"""Finds the inputs of runs that the queries and keys of a call depend on."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from math import prod

from gattn.models.doors.proof.candidates import Candidate, Firsts, Inputs, Reader, near, recurrent
from gattn.models.doors.proof.no_tokens import MOST_SOURCES, has_no_tokens
from gattn.models.doors.proof.probing import UnprovedError
from gattn.models.doors.proof.probing.dependence import Dependence, Probe, Side
from gattn.models.doors.proof.probing.one_run.sites import Site
from gattn.models.doors.proof.probing.one_run.walking import Run
from gattn.models.doors.proof.probing.outlining import outlined, plainly, refine
from gattn.models.doors.proof.probing.rerunning import Reruns
from gattn.models.doors.proof.probing.taints import may_be_mask
from gattn.models.doors.proof.written import with_written


class InputsFound:
    """The inputs by which the tokens of calls may be told, found once for calls that are alike.

    Parameters
    ----------
    firsts : Firsts
        The first of the calls that are alike.
    reruns : Reruns
        What runs modules again.
    """

    def __init__(self, firsts: Firsts, reruns: Reruns) -> None:
        self._firsts, self._reruns = firsts, reruns
        self._known: dict[object, list[Candidate]] = {}

    def candidates(self, site: Site, batch: int) -> Iterator[Candidate]:
        """List the inputs of the attending module, and then of the runs before and around it."""
        for level, run in enumerate(site.chain):
            name = self._firsts.kind(site, level), batch
            if name not in self._known:
                first = self._firsts(site, level)
                if run.is_prepared and not self._reruns.is_as_alone(first, first.chain[level]):
                    self._known[name] = []
                    continue
                around = first.chain[level]
                runs = [*near(first, level, self._firsts.model), around] if level else [around]
                # It embeds ids itself, mixes tokens before, or its query is made of all tokens.
                embeds = any(one.looks_up for one in first.inside)
                is_alone = site.queries == 1 or not self._reruns.sources(around)
                if not level and (embeds or is_alone or recurrent(first)):
                    runs += near(first, level, self._firsts.model)
                self._known[name] = [Candidate(first, level, run, run is around) for run in runs]
            yield from self._known[name]

    def of(self, one: Candidate, batch: int) -> Inputs:
        """Return the inputs of a run that a call depends on."""
        if one.inputs is None:
            try:
                one.inputs = outlined_inputs(one.site, one.level, one.run, batch, self._reruns)
                if one.is_around:
                    one.inputs = with_written(one.inputs, one.site, self._reruns)
            except UnprovedError as error:
                one.inputs = Inputs(one.run, None, None, failure=str(error))
        return one.inputs

    def are_rows(self, site: Site, batch: int) -> bool:
        """Return whether keys are told by the rows of a recurrent network in the attending module.

        It may mix all tokens, so that what the module is given does not tell them.
        """
        return any(
            one.run.recurs and self.of(one, batch).keys is not None
            for one in self.candidates(site, batch)
            if not one.level
        )


def outlined_inputs(site: Site, level: int, run: Run, batch: int, reruns: Reruns) -> Inputs:
    """Find the inputs of a run that the queries and keys of a call depend on."""
    queries: Reader | None = None
    keys: Reader | None = None
    step: Reader | None = None
    is_reached = [False, False]
    some = list(enumerate(reruns.sources(run)[:MOST_SOURCES]))
    probes = [(x, partial(reruns.reached, site, level, run, n)) for n, x in some]
    for number, x in sorted(some, key=lambda one: may_be_mask(one[1])):
        probe = probes[number][1]
        found = _dependence(site, tuple(x.shape), probe, batch, reruns)
        is_state = run.recurs and number > 0  # After the rows, one for each layer and direction.
        for side in found.sides if is_state and batch == 1 else ():
            side.is_one = True
        for n, side in enumerate(found.sides):
            is_reached[n] |= bool(side.depends.any())
        if queries is None and found.queries.tells_tokens:
            queries = Reader(number, found, probe, True)
        if keys is None and found.keys.tells_tokens and _has_read(site, found.keys):
            keys = Reader(number, found, probe, False)
        is_around = run is site.chain[level] or site.kind != "sum"  # Branches are no step.
        if is_around and queries and queries.dependence is found and _is_step(site, found):
            step = Reader(number, found, probe, False)
        if queries is not None and keys is not None:
            break
    keys = keys or step
    is_mixed = (is_reached[0] and queries is None) or (is_reached[1] and keys is None)
    is_open = is_mixed and keys is None and not level
    proved = is_open and has_no_tokens(site, run, reruns)
    return Inputs(run, queries, keys, is_mixed, proved, step=step, probes=probes)


def _dependence(
    site: Site, shape: tuple[int, ...], probe: Probe, batch: int, reruns: Reruns
) -> Dependence:
    found: Dependence | None = None
    is_usual = len(site.lead) == 2 and len(shape) == 3 and site.queries == site.keys
    if is_usual and shape[:2] == (site.lead[0], site.queries) and shape[0] == batch:
        found = plainly(shape, site.lead, probe)
    found = found or outlined(shape, probe)
    if _is_one_of_several(site, reruns):
        refine(found, probe)
    for side in found.sides if batch == 1 else ():
        is_pooled = side.depends.shape[1] == 1 and side.is_seen and not side.apart
        side.is_one = is_pooled or prod(shape) == max(shape, default=1)
    return found


def _is_one_of_several(site: Site, reruns: Reruns) -> bool:
    """Return whether a module attends several times, as in a loop."""
    return any(one.module is site.module for one in reruns.sites if one is not site)


def _has_read(site: Site, keys: Side) -> bool:
    """Return whether a key that some query reads depends on an input, if any is read at all.

    Of others only the values are known, which may be of another input than what scores are made of.
    """
    if site.live is None or not bool(site.live.any()):
        return True
    return bool((keys.depends & site.live.any(1)).any())


def _is_step(site: Site, found: Dependence) -> bool:
    """Return whether the only query and one key are made of an input, but no other key is."""
    return site.queries == 1 and found.keys.is_single and bool(found.queries.depends.all())
