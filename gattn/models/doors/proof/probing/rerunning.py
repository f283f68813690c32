"""Runs parts of a model again, with NaN at chosen places of what a module is given."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from gattn.models.doors.functions.calling.raw_call import RawCall, observed
from gattn.models.doors.functions.mode import FunctionMode
from gattn.models.doors.proof.probing import UnprovedError
from gattn.models.doors.proof.probing.failing import Stop, failing
from gattn.models.doors.proof.probing.integers import Lookups
from gattn.models.doors.proof.probing.one_run.inputs import detached, leaves, mapped
from gattn.models.doors.proof.probing.one_run.reading import Reads
from gattn.models.doors.proof.probing.one_run.sites import Site
from gattn.models.doors.proof.probing.one_run.walking import Entered, Given, Run, Walk
from gattn.models.doors.proof.probing.taints import (
    Pointwise,
    Reached,
    has_value_per_key,
    reached,
    replaced,
    sources,
    with_nan,
)
from gattn.models.doors.proof.probing.zeros import Zeros
from gattn.models.doors.steps import Passed, Steps


@contextmanager
def _quietly(*, is_plain: bool = False) -> Iterator[None]:
    """Run without gradients and, unless plainly, without what spreads NaN but moves nothing.

    The functions are watched from outside: what a hook begins would not end where a run stops.
    """
    with FunctionMode(), ExitStack() as stack:
        for mode in () if is_plain else (Pointwise(), Zeros(), Lookups()):
            stack.enter_context(mode)
        yield


class Reruns:
    """Runs modules again on what they were given in the plain run.

    Parameters
    ----------
    model : nn.Module
        A copy of the user's model, attached to the doors.
    walk : Walk
        Its runs.
    given : dict
        What modules were given, by the place of their run.
    sites : list of Site
        All calls of attention of the plain run.
    reads : Reads
        What its code read of numbers.
    """

    def __init__(
        self,
        model: nn.Module,
        walk: Walk,
        given: dict[tuple[str, int], Given],
        sites: Sequence[Site],
        reads: Reads,
    ) -> None:
        self._model, self._walk, self._given, self.sites = model, walk, given, sites
        self._known: dict[object, dict[Site, Reached | None]] = {}
        self._asking: dict[Run, list[Site]] = {}
        self._order = {site: n for n, site in enumerate(sites)}
        self.count = 0
        self._reads = reads
        self._carrying: set[Site] = set()
        self._plain: dict[Site, RawCall] = {}

    def decide(self, *, repeats: bool) -> dict[tuple[str, int], Passed]:
        """Run the model as it is; if it `repeats`, values decide as in this run in all that follow.

        Returns what its code had called before each of its calls of attention. Some are shown
        earlier or later where they are read, in what it had called by then.
        """
        found: dict[tuple[str, int], Passed] = {}
        steps, how = Steps(), self._reads.deciding() if repeats else None

        def see(site: Site, call: RawCall) -> None:
            is_elsewhere = (call.number, call.early) != (None, None)
            before, met = found.get(site.place, (set(), set()))
            before = steps.trail if is_elsewhere else before
            before.add(steps.so_far)
            found[site.place] = Passed(before, {*met, steps.so_far})

        def entered(run: Run, module: nn.Module, given: Given) -> None:
            if run.around is None:
                steps.begin()

        try:
            self.through(self.sites[0].chain[-1], see, entered, mode=how, is_plain=True)
        finally:
            steps.end()
        return found

    def ask(self, outer: Run, site: Site) -> None:
        """Note that a call will be asked about in runs of a module around it."""
        self._asking.setdefault(outer, []).append(site)

    def carry(self, site: Site) -> None:
        """Note that a call only weighs what one token has, so that it carries that token on."""
        if site not in self._carrying:
            self._carrying.add(site)
            self._known.clear()

    def silence(self, site: Site | None, call: RawCall) -> None:
        """Let attention give zero, so that only residual streams bring tokens on."""
        if not self.carries(site):
            call.output.zero_()

    def carries(self, site: Site | None) -> bool:
        """Return whether what a call gives is part of the residual stream."""
        return site in self._carrying

    def sources(self, run: Run) -> list[Tensor]:
        """Return the floating-point tensors that a run was given."""
        return sources(self._given[run.place])

    def tensors(self, run: Run) -> list[Tensor]:
        """Return the tensors that a run was given: numbers, or if there are none, integers."""
        every = [x for x in leaves(self._given[run.place]) if isinstance(x, Tensor)]
        return self.sources(run) or every

    def reached(self, site: Site, level: int, inject: Run, source: int, marks: Tensor) -> Reached:
        """Run the module at a level of a site's chain, with NaN in a source of an inner run.

        Each attention gives zero, so that what comes from other tokens does not hide what a token
        brings itself. The call ends the run; if calls after it are asked about, too, the last of
        them ends the next one.
        """
        outer = site.chain[level]
        name = outer, inject, source, marks.shape, marks.numpy().tobytes()
        known = self._known.get(name)
        if known is None:
            before = self._order[site]
            asking = [one for one in self._asking[outer] if self._order[one] <= before]
            known = self._known[name] = self._run(outer, inject, source, marks, asking)
        elif site not in known:
            known = self._run(outer, inject, source, marks, self._asking[outer])
            self._known[name] = known
        found = known[site]
        if found is None:
            raise UnprovedError("it does not attend in the same way with NaN in its input")
        return found

    def common(self, sites: Sequence[Site]) -> Run:
        """Return the innermost run around some calls of which it is known what it was given."""
        return next(
            run
            for run in sites[0].chain
            if run.place in self._given
            and not run.is_prepared
            and all(run in one.chain for one in sites)
        )

    def through(
        self,
        outer: Run,
        see: Callable[[Site, RawCall], None],
        entered: Entered | None,
        last: Site | None = None,
        mode: AbstractContextManager[Any] | None = None,
        *,
        is_plain: bool = False,
    ) -> list[Tensor]:
        """Run a module again, and show each call of attention in it to a function, until the last.

        `see` says what the model continues with, in the call's output; a `mode` may change what
        functions give. A plain run is as the user's. Returns the numbers that the module gives, if
        it runs to its end.
        """
        inner = [one for one in self.sites if outer in one.chain]
        waiting = {(one.module, one.counts[one.chain.index(outer)]): one for one in inner}
        counts: Counter[nn.Module] = Counter()

        def observe(call: RawCall) -> None:
            site = waiting.get((call.module, counts[call.module]))
            counts[call.module] += 1
            if site is not None and site.has_sizes_of(call):
                see(site, call)
            if site is last:
                raise Stop

        args, kwargs = kept(self._given[outer.place])
        running, again = self._walk.following(entered), self._reads.repeated(_numbers(outer))
        seen, quietly = observed(observe), _quietly(is_plain=is_plain)
        with failing(), quietly, running, again, seen, mode or nullcontext():
            answer = self._model.get_submodule(outer.name)(*args, **kwargs)
            return sources(((answer,), {}))
        return []

    def is_as_alone(self, site: Site, outer: Run) -> bool:
        """Return whether a call is the same where a module around it runs alone.

        So it is if nothing that the model has set before matters, such as what it only keeps.
        """
        if outer.place not in self._given:
            return False
        if site not in self._plain:
            self.through(site.chain[-1], self._plain.__setitem__, None, site, is_plain=True)
        alone: dict[Site, RawCall] = {}
        self.through(outer, alone.__setitem__, None, site, is_plain=True)
        one, other = self._plain.get(site), alone.get(site)
        return one is not None and other is not None and _has_numbers_of(one, other)

    def _run(
        self, outer: Run, inject: Run, source: int, marks: Tensor, asking: Sequence[Site]
    ) -> dict[Site, Reached | None]:
        waiting = {(one.module, one.counts[one.chain.index(outer)]): one for one in asking}
        carrying = {
            (one.module, one.counts[one.chain.index(outer)])
            for one in self._carrying
            if outer in one.chain
        }
        found: dict[Site, Reached | None] = dict.fromkeys(asking)
        counts: Counter[nn.Module] = Counter()
        begins = _numbers(outer)
        shared: list[tuple[Tensor, Tensor]] = []

        def see(call: RawCall) -> None:
            place = call.module, counts[call.module]
            site = waiting.pop(place, None)
            counts[call.module] += 1
            is_read = call.scores is None or (site is not None and site.live is not None)
            if site and is_read and site.has_sizes_of(call) and has_value_per_key(call):
                found[site] = reached(call, site.live, is_ranked=site.is_ranked)
            if not waiting:
                raise Stop
            if place not in carrying:
                call.output.zero_()

        def entered(run: Run, module: nn.Module, given: Given) -> Given | None:
            if (run.name, run.number + begins.get(run.name, 0)) == inject.place:
                some = sources(given)
                shared.append((some[source], with_nan(some[source], marks)))
                return replaced(given, *shared[0])
            return replaced(given, *shared[0]) if shared and inject.around is outer else None

        args, kwargs = kept(self._given[outer.place])
        self.count += 1
        # Calls that were not reached are not proved.
        running, again = self._walk.following(entered), self._reads.repeated(begins)
        with failing(), _quietly(), running, again, observed(see):
            self._model.get_submodule(outer.name)(*args, **kwargs)
        return found

    def feed_on_each_other(self, run: Run) -> bool:
        """Return whether attention within a run depends on what attention before it gave.

        That is NaN in another run; if the inputs were not kept, it is not known, and may be.
        """
        if run.place not in self._given:
            return True
        found: list[bool] = []
        has_failed = True

        def see(call: RawCall) -> None:
            own = (call.query, call.key, call.value, call.scores)
            found.append(any(x is not None and bool(x.isnan().any()) for x in own))
            call.output = torch.full_like(call.output, torch.nan)

        args, kwargs = kept(self._given[run.place])
        running, again = self._walk.following(), self._reads.repeated(_numbers(run))
        with failing(), _quietly(), running, again, observed(see):
            self._model.get_submodule(run.name)(*args, **kwargs)
            has_failed = False
        return has_failed or any(found)


def _numbers(outer: Run) -> dict[str, int]:
    """Return the number of each module's first run within a run."""
    found = {outer.name: outer.number}
    waiting = [outer]
    while waiting:
        for run in waiting.pop().inner:
            found[run.name] = min(run.number, found.get(run.name, run.number))
            waiting.append(run)
    return found


def _has_numbers_of(one: RawCall, other: RawCall) -> bool:
    known = ((x.query, x.key, x.scores, x.value, x.output) for x in (one, other))
    return all(
        x is y or (x is not None and y is not None and torch.equal(x, y))
        for x, y in zip(*known, strict=True)
    )


def kept(given: Given) -> Given:
    """Copy what a run is given, so that it stays as it is."""

    def copied(x: Any) -> Any:
        return detached(x) if isinstance(x, Tensor) else _copied(x)

    same: dict[int, Any] = {}
    args, kwargs = mapped(lambda x: same.setdefault(id(x), copied(x)), given)
    return args, kwargs


def _copied(x: Any) -> Any:
    """Copy anything that a run may change, but for tensors; what cannot be copied stays."""
    if isinstance(x, (Tensor, nn.Module, int, float, str, bool, type(None))):
        return x
    if isinstance(x, torch.Generator):
        twin = torch.Generator(x.device)
        twin.set_state(x.get_state())
        return twin
    try:
        return copy.deepcopy(x)
    except Exception:
        return x
