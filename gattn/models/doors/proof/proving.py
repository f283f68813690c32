"""Proves what the attention calls of a model mean, once for each kind of inputs."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from threading import RLock
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from gattn.errors import CaptureError
from gattn.models.doors.attaching import attached
from gattn.models.doors.functions.calling.raw_call import RawCall
from gattn.models.doors.functions.mode import FunctionMode, paused
from gattn.models.doors.proof.candidates import wanted
from gattn.models.doors.proof.copying.copies import copied
from gattn.models.doors.proof.copying.random_numbers import random_numbers_kept, seed
from gattn.models.doors.proof.kernels import without_fast_path
from gattn.models.doors.proof.layouts.agreeing import Agreement
from gattn.models.doors.proof.layouts.batches import Batches
from gattn.models.doors.proof.layouts.joining import join
from gattn.models.doors.proof.layouts.naming import beside_ids
from gattn.models.doors.proof.layouts.ordering import unordered
from gattn.models.doors.proof.layouts.patches import place_patches
from gattn.models.doors.proof.layouts.plan import Place, Plan
from gattn.models.doors.proof.layouts.sameness import are_same
from gattn.models.doors.proof.nodes.numbering import Numbering, integers_of
from gattn.models.doors.proof.probing.alike import Alike, shapes, state_of
from gattn.models.doors.proof.probing.one_run.constants import are_as_before
from gattn.models.doors.proof.probing.one_run.hooks import keep_acting
from gattn.models.doors.proof.probing.one_run.inputs import digests_of, leaves
from gattn.models.doors.proof.probing.one_run.picking import By
from gattn.models.doors.proof.probing.one_run.sites import Site
from gattn.models.doors.proof.probing.one_run.walking import Given, Run, Walk
from gattn.models.doors.proof.probing.replaying import Replays, kept
from gattn.models.doors.proof.probing.taints import sources
from gattn.models.doors.proof.solving import Solver, reading_own
from gattn.models.doors.proof.trying import Trial, Trying
from gattn.models.doors.proof.watching import Watching
from gattn.models.read.on_graphs.numbers import UNKNOWN
from gattn.models.read.track.runs import runs
from gattn.models.watch.contexts import Context, without_contexts
from gattn.models.watch.inside import inside, outside

_MOST_PLANS = 64
_TRANSFORMED = (
    "it runs inside torch.func (grad, jvp, vmap ...), which hides the numbers of its tensors; take "
    "gradients by torch.autograd, and run the model on a batch instead of torch.vmap"
)
_MIXES_TEXTS = (
    "it adds up attention across a dimension that holds no heads, but texts, or what else it "
    "attends to side by side"
)
_MAKES_CLASS = "Creating a new Tensor subclass"
_MADE_AS_IT_RUNS = (
    "it makes tensors of a class of their own as it runs, such as torch's CausalBias, which torch "
    "cannot do while its kernels are watched: make them once before, as in the module's __init__"
)
_is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor
_lock = RLock()
_plans: WeakKeyDictionary[nn.Module, list[tuple[object, Plan]]] = WeakKeyDictionary()


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
        sizes = "nested" if is_nested else shapes(given)
        kind = name, state_of(model), sizes, torch.is_grad_enabled()  # Code may ask for it.
        known = _plans.setdefault(model, [])
        # They are compared, the last one first: hashing all that a kind says takes longer.
        number = next((n for n, (one, _) in enumerate(known) if one == kind), None)
        plan = None if number is None else known.pop(number)[1]
        if plan is None or not _holds(plan, model, given):
            plan = _proved(model, name, given)
        known.insert(0, (kind, plan))
        del known[_MOST_PLANS:]
        return plan


def _holds(plan: Plan, model: nn.Module, given: Given) -> bool:
    """Return whether what was proved of such inputs holds of these."""
    if plan.is_stale or not are_as_before(model, plan.read):
        return False
    if plan.inputs and digests_of(given, plan.inputs) != plan.inputs:
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
        apart = saved_tensors_hooks(Tensor.detach, lambda x: x)  # Checkpoints count what is saved.
        with without_contexts(), outside(), random_numbers_kept(model), paused(), apart:
            twin = copied(model, with_hooks=True)
            idle = keep_acting(twin, name, lambda: _called(twin.get_submodule(name), given))
            with attached(twin, Context(), is_any=True), paused(), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # The user's call gives them.
                return replace(_Proof(twin, name, given, original=model).plan(), idle_hooks=idle)
    except CaptureError as error:
        return Plan(refused=str(error).rstrip("."))
    except Exception as error:
        said = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        refused = f"a copy of it, run to prove what its attention means, failed ({said})"
        if _MAKES_CLASS in said:
            refused = _MADE_AS_IT_RUNS
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
        originals = {} if original is None else dict(map(reversed, original.named_modules()))
        self._model, self._called, self._given = model, model.get_submodule(name), kept(given)
        self._walk = Walk(model)
        self._alike = Alike()
        self._is_users = original is not None
        self._plan = Plan()
        self._watching = Watching(model, self._walk, self._given, self._plan, is_open, originals)

    @property
    def open(self) -> list[Site]:
        """The calls that are to be proved."""
        return self._watching.open

    def plan(self) -> Plan:
        try:
            return self._planned()
        finally:
            runs.clear(map(id, self._model.modules()))

    def _planned(self) -> Plan:
        plan = self._plan
        watching = self._watching
        sites, watched = watching(self._run)
        if plan.refused:
            return plan
        needed = wanted([*self.open, *watching.crossing], self._model, self._alike)
        places, plain = self._plain(needed)
        if not are_same(watched, plain):
            plan.refused = "its output changes while its attention is watched"
            return plan
        plan.sites = [site.place for site in sites]
        if sites:
            places.setdefault(sites[0].chain[-1].place, self._given)
        replays = Replays(self._model, self._walk, places, sites, watching.reads)
        solver = Solver(self._model, replays, self._alike, watching.noticed)
        best = self._solve(solver, places)
        plan.reading_own = reading_own(watching.crossing, solver, best.batches)
        agreement = Agreement(replays, watching.kernels.moves, best.batches)
        agreement.settle(self.open, plan.layouts, plan.reasons)
        join(self._model, self.open, plan, replays, self._alike)
        place_patches(self.open, plan.layouts, replays)
        watching.numbers.refuse(plan.layouts, plan.reasons)
        mixed = plan.leave_untold(best.alone)
        plan.are_tokens_first = best.batches.dim == 1
        plan.unordered, plan.picked, plan.in_place = unordered(
            self.open, sites, plan.layouts, replays, best.batches
        )
        switched = {site.place: site.chain[-1].name for site in agreement.switched}
        plan.unordered |= mixed | plan.of_rows() | set(switched)
        plan.picked = sorted({*plan.picked, *switched.values()})
        if self._is_users:
            self._compare_ids(replays)
        self._number()
        plan.read = watching.kernels.picks.own.read()
        plan.inputs = digests_of(self._given, watching.reads.inputs)
        plan.is_stale = (
            solver.holds_once
            or bool(watching.ranked)
            or agreement.holds_once
            or watching.numbers.is_passing
            or watching.reads.are_by_values
            or any(pick.by is By.VALUES for site in self.open for pick in site.picks)
            or plan.is_stale
        )
        return plan

    def _compare_ids(self, replays: Replays) -> None:
        """Find the calls that attend to other tokens than the ids, or to these in another order."""
        plan, watching = self._plan, self._watching
        integers = watching.kernels.integers
        plan.beside, moved = beside_ids(
            self.open,
            plan.layouts,
            replays,
            self._called,
            self._given,
            watching.ids if integers.are_looked_up else (),
            are_first=plan.are_tokens_first,
            may_move=watching.kernels.moves.are_any or integers.are_moved,
        )
        makers = {site.chain[-1].name for site in self.open if site.place in moved}
        plan.picked = sorted({*plan.picked, *makers})
        plan.unordered |= moved

    def _number(self) -> None:
        """Prove which nodes of the data graph layers are given."""
        watching, plan = self._watching, self._plan
        rows = watching.kernels.nodes
        plan.values_of_others = rows.along.not_proved
        plan.graphs = rows.graphs()
        if not rows.unknown:
            return
        name = self._walk.name(self._called)
        found = Numbering(self._model, self._walk, watching.reads, self._run, name).found(
            self._given, rows, watching.kernels.picks.found
        )
        of_any = {place: UNKNOWN for place in rows.places if place not in plan.graphs}
        plan.numbers = found.numbers | (of_any if plan.graphs else {})
        plan.orders = found.orders if found.by_values else ()
        plan.integers, plan.is_stale = integers_of(self._given), plan.is_stale or found.by_values

    def _run(self) -> Any:
        return _called(self._called, self._given)

    def _plain(self, needed: Mapping[Place, Run]) -> tuple[dict[Place, Given], Any]:
        """Run the model as it is, and keep what some of its modules are given."""
        places: dict[Place, Given] = {}

        def entered(run: Run, module: nn.Module, given: Given) -> None:
            if run.place in needed:
                places[run.place] = kept(given)

        running = self._walk.following(entered)
        with without_contexts(), FunctionMode(), without_fast_path(), running, inside():
            return places, self._run()

    def _solve(self, solver: Solver, places: dict[Place, Given]) -> Trial:
        watching, sites = self._watching, self.open
        sets = watching.merged, watching.ranked, watching.spreading
        trying = Trying(solver, *sets, self._given)
        is_one = _may_be_one_sequence(self._given, watching)
        for dim, by_ids in ((0, False), (0, True), (1, False), (None, False)):
            if by_ids and not any(x.dim() > 1 for x in watching.ids):
                continue
            if trying.is_done or (dim is None and not (is_one and trying.may_have_no_batch)):
                break
            given, reads = (self._given, watching.ids), watching.reads
            batches = Batches(self._called, self._walk, *given, places, dim, reads, by_ids=by_ids)
            trying(sites, batches, or_nothing=dim is None)
        best = trying.best
        self._plan.layouts, self._plan.reasons = best.layouts, best.reasons
        for site in sites:
            if site.place not in trying.unmatched & set(best.reasons):
                self._plan.trust(site.module, site.place, site.lead)
        for mixed in watching.mixed.values():
            self._plan.share_layout(mixed)
        for place in watching.across & self._plan.layouts.keys():
            if not all(layout.heads for _, layout in self._plan.layouts[place]):
                del self._plan.layouts[place]
                self._plan.reasons[place] = _MIXES_TEXTS
        self._plan.leave_out(best.others, best.untold, best.gates, best.learned)
        return best


def _may_be_one_sequence(given: Given, watching: Watching) -> bool:
    """Return whether inputs may be one sequence: (tokens, channels), or ids of as many tokens.

    Integers beside them that no embedding looks up may be pairs of tokens, as an adjacency matrix.
    """
    known = sources(given)
    ids = watching.ids if watching.kernels.integers.are_looked_up or not known else ()
    return all(x.dim() < 3 for x in known) and all(x.dim() < 2 for x in ids)
