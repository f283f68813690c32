"""Proves what the attention calls of a model mean, once for each kind of inputs."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from math import prod
from threading import RLock
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

from gattn.errors import CaptureError
from gattn.models.doors.attaching import attached
from gattn.models.doors.functions.calling.raw_call import RawCall, innermost, observed
from gattn.models.doors.functions.mode import FunctionMode, paused
from gattn.models.doors.graphs.observing import observed_edges
from gattn.models.doors.interface import is_routed
from gattn.models.doors.proof.candidates import wanted
from gattn.models.doors.proof.copying.copies import copied
from gattn.models.doors.proof.copying.keeping_nothing import keeps_nothing
from gattn.models.doors.proof.copying.random_numbers import random_numbers_kept, seed
from gattn.models.doors.proof.kernels import Kernels, unseen, without_fast_path
from gattn.models.doors.proof.layouts.agreeing import Agreement
from gattn.models.doors.proof.layouts.batches import Batches, may_be_one_sequence
from gattn.models.doors.proof.layouts.joining import join
from gattn.models.doors.proof.layouts.ordering import unordered
from gattn.models.doors.proof.layouts.patches import place_patches
from gattn.models.doors.proof.layouts.plan import Place, Plan
from gattn.models.doors.proof.layouts.sameness import are_same
from gattn.models.doors.proof.nodes.numbering import Numbering, integers_of
from gattn.models.doors.proof.probing.alike import Alike, shapes, state_of
from gattn.models.doors.proof.probing.numbers import Numbers
from gattn.models.doors.proof.probing.one_run.constants import are_as_before
from gattn.models.doors.proof.probing.one_run.hooks import keep_acting
from gattn.models.doors.proof.probing.one_run.inputs import leaves
from gattn.models.doors.proof.probing.one_run.picking import By
from gattn.models.doors.proof.probing.one_run.reading import Reads
from gattn.models.doors.proof.probing.one_run.walking import Given, Run, Walk
from gattn.models.doors.proof.probing.replaying import Replays, Site, Sites, kept
from gattn.models.doors.proof.silent import silent
from gattn.models.doors.proof.solving import Solver
from gattn.models.doors.proof.taking import not_in
from gattn.models.doors.proof.trying import Trial, Trying
from gattn.models.read.layouts import Layout, usual
from gattn.models.read.track.runs import runs
from gattn.models.watch.contexts import Context, present, without_contexts
from gattn.models.watch.inside import inside, outside

_MOST_PLANS = 64
_TRANSFORMED = (
    "it runs inside torch.func (grad, jvp, vmap ...), which hides the numbers of its tensors; take "
    "gradients by torch.autograd, and run the model on a batch instead of torch.vmap"
)
_CALLS_ORIGINAL = (
    "a copy of it calls {} of the model itself, as a function does that was made with a module in "
    "it (a lambda in a list, a hook): hold the module, and call what it has"
)
_MIXES_TEXTS = (
    "it adds up attention across a dimension that holds no heads, but texts, or what else it "
    "attends to side by side"
)
_is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor
_lock = RLock()
_plans: WeakKeyDictionary[nn.Module, dict[tuple[object, ...], Plan]] = WeakKeyDictionary()


def plan_of(
    model: nn.Module, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Plan:
    """Prove what the attention calls of a model mean, once for each kind of inputs.

    Parameters
    ----------
    model : nn.Module
        The model.
    module : nn.Module
        The model, or the part of it that is called.
    args, kwargs
        What it is called with.

    Notes
    -----
    A copy of the model, which shares its parameters, runs twice on these inputs, and parts of it
    run again, with NaN in chosen tokens, up to their first attention.
    """
    given: Given = args, dict(kwargs)
    with _lock:
        name = next(name for name, part in model.named_modules() if part is module)
        is_nested = any(isinstance(x, Tensor) and x.is_nested for x in leaves(given))
        kind = name, state_of(model), "nested" if is_nested else shapes(given)
        known = _plans.setdefault(model, {})
        plan = known.get(kind)
        if plan is None or not _holds(plan, model, given):
            plan = known[kind] = _proved(model, name, given)
        while len(known) > _MOST_PLANS:
            del known[next(iter(known))]
        return plan


def _holds(plan: Plan, model: nn.Module, given: Given) -> bool:
    """Return whether what was proved of such inputs holds of these."""
    if plan.is_stale or not are_as_before(model, plan.read):
        return False
    return not plan.integers or plan.integers == integers_of(given)


def _proved(model: nn.Module, name: str, given: Given) -> Plan:
    tensors = [x for x in leaves(given) if isinstance(x, Tensor)]
    if any(map(_is_wrapped, (*tensors, *model.parameters(), *model.buffers()))):
        return Plan(refused=_TRANSFORMED, is_stale=True)
    if any(x.is_meta for x in tensors):
        return Plan(refused="it runs without numbers, on the meta device")
    if any(x.is_nested for x in tensors):
        return Plan(is_nested=True)
    try:
        with without_contexts(), outside(), random_numbers_kept(model), torch.no_grad(), paused():
            twin = copied(model, with_hooks=True)
            idle = keep_acting(twin, name, lambda: _called(twin.get_submodule(name), given))
            with attached(twin, Context()), paused(), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # The user's call gives them.
                return replace(_Proof(twin, name, given, original=model).plan(), idle_hooks=idle)
    except CaptureError as error:
        return Plan(refused=str(error).rstrip("."))
    except Exception as error:
        said = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        refused = f"a copy of it, run to prove what its attention means, failed ({said})"
        return Plan(refused=refused, has_failed=True, is_stale=True)


def proof_of_copy(
    copy: nn.Module, name: str, given: Given, is_open: Callable[[RawCall], bool]
) -> tuple[Plan, list[tuple[nn.Module, Place]]]:
    """Prove the open calls of a copy of a model, which doors see; also say which these are."""
    with paused():
        proof = _Proof(copy, name, given, is_open)
        plan = proof.plan()
    return plan, [(site.module, site.place) for site in proof.open]


def _called(module: nn.Module, given: Given) -> Any:
    """Run a module on copies of its inputs, with the same random numbers each time."""
    seed()
    args, kwargs = kept(given)
    return module(*args, **kwargs)


class _Proof:
    def __init__(
        self,
        model: nn.Module,
        name: str,
        given: Given,
        is_open: Callable[[RawCall], bool] = lambda call: True,
        *,
        original: nn.Module | None = None,
    ) -> None:
        self._originals = {} if original is None else dict(map(reversed, original.named_modules()))
        self._is_open = is_open
        self.open: list[Site] = []
        self._model, self._called, self._given = model, model.get_submodule(name), kept(given)
        self._walk = Walk(model)
        self._alike = Alike()
        self._plan = Plan()
        self._merged: set[Place] = set()
        self._ranked: set[Place] = set()
        self._mixed: dict[int, list[Place]] = {}
        self._across: set[Place] = set()
        self._numbers = Numbers(self._given)

    def plan(self) -> Plan:
        try:
            return self._planned()
        finally:
            runs.clear(map(id, self._model.modules()))

    def _planned(self) -> Plan:
        plan = self._plan
        sites, watched = self._watched()
        if plan.refused:
            return plan
        needed = wanted(self.open, self._model, self._alike)
        places, plain = self._plain(needed)
        if not are_same(watched, plain):
            plan.refused = "its output changes while its attention is watched"
            return plan
        plan.sites = [site.place for site in sites]
        if sites:
            places.setdefault(sites[0].chain[-1].place, self._given)
        replays = Replays(self._model, self._walk, places, sites, self._reads)
        solver = Solver(self._model, replays, self._alike, self._images, *self._linear)
        best = self._solve(self.open, solver, places)
        agreement = Agreement(replays, self._kernels.moves, best.batches)
        agreement.settle(self.open, plan.layouts, plan.reasons)
        join(self._model, self.open, plan, replays, self._alike)
        place_patches(self.open, plan.layouts, replays)
        self._numbers.refuse(plan.layouts, plan.reasons)
        mixed = plan.leave_untold(best.alone)
        plan.are_tokens_first = best.batches.dim == 1
        plan.unordered, plan.picked, plan.in_place = unordered(
            self.open, sites, plan.layouts, replays, best.batches
        )
        switched = {site.place: site.chain[-1].name for site in agreement.switched}
        plan.unordered |= mixed | plan.of_rows() | set(switched)
        plan.picked = sorted({*plan.picked, *switched.values()})
        self._number()
        plan.read = self._kernels.picks.own.read()
        plan.is_stale = (
            solver.holds_once
            or bool(self._ranked)
            or agreement.holds_once
            or self._numbers.is_passing
            or self._reads.are_by_values
            or any(pick.by is By.VALUES for site in self.open for pick in site.picks)
            or plan.is_stale
        )
        return plan

    def _number(self) -> None:
        """Prove which nodes of the data graph layers are given."""
        rows, plan = self._kernels.nodes, self._plan
        if rows is None or not rows.unknown:
            return
        name = self._walk.name(self._called)
        found = Numbering(self._model, self._walk, self._reads, self._run, name).found(
            self._given, rows, self._kernels.picks.found
        )
        plan.numbers, plan.orders = found.numbers, found.orders if found.by_values else ()
        plan.integers, plan.is_stale = integers_of(self._given), plan.is_stale or found.by_values

    def _watched(self) -> tuple[list[Site], Any]:
        """Run the model once with its attention seen, and compare that with its kernels."""
        kernels = self._kernels = Kernels(self._model, self._walk)
        sites = Sites(self._walk, kernels.picks)

        ran: set[str] = set()

        def entered(run: Run, module: nn.Module, given: Given) -> None:
            if run.around is None:
                kernels.begin(given)
                passed.append(given)
                self._reads.begin()
            self._reads.look()
            run.shapes = shapes(given, with_integers=True)
            ran.add(run.name)

        passed: list[Given] = []
        values: list[Tensor] = []  # Kept, so that their numbers stay theirs.

        def see(call: RawCall) -> None:
            if call.is_written:
                kernels.products.claim()
            elif call.kind != "sum":  # No kernel was counted for it.
                kernels.claim()
            if not call.is_written:
                kernels.takings.claim()
            self._reads.look(always=True)
            with _disable_current_modes():  # What follows is no part of the model.
                note(call)

        def note(call: RawCall) -> None:
            own = self._originals.get(innermost())
            if own not in (None, self._walk.name(call.module)):  # A forward may be replaced.
                self._plan.refused = _CALLS_ORIGINAL.format(own)
            sites(call)
            kernels.moves.attended(sites.found[-1].chain[0])
            if is_routed():
                return
            if self._is_open(call):
                self.open.append(sites.found[-1])
                self._numbers.take(call, sites.found[-1].place)
            if call.number is not None:
                place = sites.found[-1].place
                how = "scaled" if call.is_scaled else "mixed"
                self._plan.altered[place[0], call.number] = how
                self._mixed.setdefault(id(call.value), []).append(place)
                if call.is_across:
                    self._across.add(place)
                values.append(call.value)

        self._reads = Reads(self._walk, kernels.picks)
        running = self._walk.following(entered)
        seen = observed(see)
        nodes = ExitStack()
        if kernels.nodes is not None:
            nodes.enter_context(observed_edges(kernels.nodes))
            nodes.enter_context(kernels.nodes.hooked())
        noting = self._reads.noting()
        with FunctionMode(), without_fast_path(), running, seen, nodes, noting, kernels:
            output = self._run()
            is_changed = self._walk.state.is_changed
        self._plan.keeps_nothing = not is_changed and keeps_nothing(self._given, passed, output)
        for site in sites.found:
            if (site.chain[0].name, (site.queries, site.keys)) in kernels.products.normalizing:
                self._merged.add(site.place)
            if (site.chain[0].name, (site.queries, site.keys)) in kernels.ranking:
                self._ranked.add(site.place)
        if kernels.missed:
            self._plan.refused = unseen(self._model, kernels.missed)
        others = next(calls.last for calls, _ in present() if calls.model is self._model)
        mixing = {name for name, _ in self._plan.altered}  # Of heads, which is shown.
        across = kernels.across - mixing
        self._plan.silent = silent(
            self._model, ran, sites.found, others.layers.shown, kernels.products, across
        )
        takings = kernels.takings
        self._plan.unmet = not_in(takings.missed, others.layers.shown)
        self._plan.again = not_in(takings.again, others.layers.shown)
        given = leaves(self._given)
        self._ids = [given[number] for number in kernels.integers.exchangeable]
        self._plan.looking_up = sorted(kernels.products.looking_up | takings.looking_up)
        self._spreading, self._images = kernels.products.spreading, kernels.images
        self._linear = kernels.products.linear, kernels.products.factored
        return sites.found, output

    def _run(self) -> Any:
        return _called(self._called, self._given)

    def _plain(self, needed: Mapping[Place, Run]) -> tuple[dict[Place, Given], Any]:
        """Run the model as it is, and keep what some of its modules are given."""
        places: dict[Place, Given] = {}

        def entered(run: Run, module: nn.Module, given: Given) -> None:
            if run.place in needed:
                places[run.place] = kept(given)

        with FunctionMode(), without_fast_path(), self._walk.following(entered), inside():
            return places, self._run()

    def _solve(self, sites: list[Site], solver: Solver, places: dict[Place, Given]) -> Trial:
        sets = self._merged, self._ranked, self._spreading
        trying = Trying(solver, *sets, self._given)
        is_one = may_be_one_sequence(self._given, self._ids)
        for dim, by_ids in ((0, False), (0, True), (1, False), (None, False)):
            if by_ids and not any(x.dim() > 1 for x in self._ids):
                continue
            if trying.is_done or (dim is None and not (is_one and trying.may_have_no_batch)):
                break
            given, reads = (self._given, self._ids), self._reads
            batches = Batches(self._called, self._walk, *given, places, dim, reads, by_ids=by_ids)
            trying(sites, batches, or_nothing=dim is None)
        best = trying.best
        self._plan.layouts, self._plan.reasons = best.layouts, best.reasons
        for site in sites:
            if site.place not in trying.unmatched & set(best.reasons):
                self._trust(site)
        for mixed in self._mixed.values():
            self._share_layout(mixed)
        for place in self._across & self._plan.layouts.keys():
            if not all(layout.heads for _, layout in self._plan.layouts[place]):
                del self._plan.layouts[place]
                self._plan.reasons[place] = _MIXES_TEXTS
        self._leave_out(best)
        return best

    def _leave_out(self, found: Trial) -> None:
        """Leave out calls over something else than tokens, if there are others to show."""
        plan = self._plan
        others = {**found.others, **found.untold}
        others = {place: reason for place, reason in others.items() if place not in plan.layouts}
        plan.gates = found.gates - set(plan.layouts)
        if all(place in others or place in plan.gates for place in plan.sites):
            plan.reasons |= others
        else:
            plan.left_out = (set(others) - set(found.untold)) - set(plan.reasons)
            plan.untold = {one: others[one] for one in found.untold if one in others}

    def _trust(self, site: Site) -> None:
        """Take the word of torch's own module on its batch and heads, if nothing was proved.

        Keys that it adds to those of tokens cannot be told from them by what scores depend on.
        """
        module = site.module
        if not isinstance(module, nn.MultiheadAttention):
            return
        for lead, layout in self._plan.layouts.get(site.place, ()):
            if prod(_heads(lead, layout)) != module.num_heads:
                del self._plan.layouts[site.place]
                self._plan.reasons[site.place] = (
                    "it attends from the same tokens several times at once, as in a batch that the "
                    "model makes itself"
                )
                return
        if (
            site.place not in self._plan.layouts
            or module.bias_k is not None
            or module.add_zero_attn
        ):
            told = usual(site.lead, module.num_heads)
            self._plan.layouts[site.place] = [(site.lead, told)]
            self._plan.reasons.pop(site.place, None)

    def _share_layout(self, places: list[Place]) -> None:
        """Give softmaxes that are added up the layout that was proved of one of them."""
        known = next((self._plan.layouts[one] for one in places if one in self._plan.layouts), None)
        for place in places:
            if known is not None and place in self._plan.reasons:
                self._plan.layouts[place] = known
                del self._plan.reasons[place]


def _heads(lead: tuple[int, ...], layout: Layout) -> list[int]:
    return [(layout.split or lead)[n] for n in layout.heads]
