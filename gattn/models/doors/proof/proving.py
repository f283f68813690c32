"""Proves what the attention calls of a model mean, for one kind of inputs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

from torch import nn

from gattn.models.doors.functions.calling.raw_call import RawCall
from gattn.models.doors.functions.mode import FunctionMode, paused
from gattn.models.doors.proof.candidates import Firsts, wanted
from gattn.models.doors.proof.copying.random_numbers import seed
from gattn.models.doors.proof.gates import Gates
from gattn.models.doors.proof.given_out import are_only_kept
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
from gattn.models.doors.proof.probing.alike import Alike
from gattn.models.doors.proof.probing.one_run.inputs import digests_of, leaves
from gattn.models.doors.proof.probing.one_run.picking import By
from gattn.models.doors.proof.probing.one_run.sites import Site
from gattn.models.doors.proof.probing.one_run.walking import Given, Run, Walk
from gattn.models.doors.proof.probing.rerunning import Reruns, kept
from gattn.models.doors.proof.probing.taints import sources
from gattn.models.doors.proof.solving import Solver, picked
from gattn.models.doors.proof.trying import Trial, Trying
from gattn.models.doors.proof.watching import Watching
from gattn.models.read.on_graphs.numbers import UNKNOWN
from gattn.models.read.track.runs import runs
from gattn.models.watch.contexts import without_contexts
from gattn.models.watch.inside import inside

_MIXES_TEXTS = (
    "it adds up attention across a dimension that holds no heads, but texts, or what else it "
    "attends to side by side"
)


def proof_of_copy(
    copy: nn.Module, name: str, given: Given, is_open: Callable[[RawCall], bool]
) -> tuple[Plan, list[tuple[nn.Module, Place]]]:
    """Prove the open calls of a copy of a model, which doors see; also say which these are."""
    with paused():
        proof = Proof(copy, name, given, is_open)
        plan = proof.plan()
    return plan, [(site.module, site.place) for site in proof.open]


def called(module: nn.Module, given: Given) -> Any:
    """Run a module on copies of its inputs, with the same random numbers each time."""
    seed()
    args, kwargs = kept(given)
    return module(*args, **kwargs)


class Proof:
    """The proof of one call of a copy of a model."""

    def __init__(
        self,
        model: nn.Module,
        name: str,
        given: Given,
        is_open: Callable[[RawCall], bool] = lambda call: True,
        *,
        original: nn.Module | None = None,
        around: Sequence[Any] = (),
    ) -> None:
        originals = {} if original is None else dict(map(reversed, original.named_modules()))
        self._model, self._called, self._given = model, model.get_submodule(name), kept(given)
        self._walk = Walk(model, around)
        self._alike = Alike()
        self._is_users = original is not None
        self._plan = Plan()
        self._watched = partial(
            Watching, model, self._walk, self._given, self._plan, is_open, originals
        )
        self._watching = self._watched()

    @property
    def open(self) -> list[Site]:
        """The calls that are to be proved."""
        return self._watching.open

    def plan(self) -> Plan:
        """Prove what its calls of attention mean."""
        try:
            return self._planned()
        finally:
            runs.clear(map(id, self._model.modules()))

    def _planned(self) -> Plan:
        plan = self._plan
        sites, watched = self._watching(self._run)
        names = self._watching.reads.given_out
        has_edges = bool(self._watching.kernels.nodes.places)  # They are not compared.
        may_keep = bool(names) and not (has_edges or plan.refused)
        if may_keep and are_only_kept(self._walk, self._run, names):
            self._watching = self._watched(names)
            sites, watched = self._watching(self._run)
        watching = self._watching
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
        is_decided = bool(sites) and watching.reads.is_decided
        solved = self._solved(places, sites, is_decided=is_decided)
        is_told = watching.kernels.picks.are_told or bool(watching.reads.numbers)
        if solved[1].has_picked and not is_told:  # Code decides nothing by what was picked.
            again = self._solved(places, sites, is_decided=True, picks=True)
            solved = again if again[2].best.rank > solved[2].best.rank else solved
        reruns, solver, trying = solved
        best = self._adopt(trying)
        watching.name_silent()
        numbers = self._puts_numbers
        looks_up = watching.kernels.picks.looks_up and watching.kernels.moves.are_any
        agreement = Agreement(
            reruns, watching.kernels.moves, best.batches, numbers, looks_up=looks_up
        )
        agreement.settle(self.open, plan.layouts, plan.reasons)
        later = join(self._model, self.open, plan, reruns, self._alike)
        place_patches(self.open, plan.layouts, reruns)
        watching.numbers.refuse(plan.layouts, plan.reasons)
        mixed = plan.leave_untold(best.alone)
        plan.are_tokens_first = best.batches.dim == 1
        plan.unordered, plan.picked, plan.in_place = unordered(
            self.open,
            [site for site in sites if site not in later],
            *(plan.layouts, reruns, best.batches, solver.by_values),
        )
        switched = {site.place: site.chain[-1].name for site in agreement.switched}
        self._keep_in_place(solver.by_values)
        plan.unordered |= mixed | plan.of_rows() | set(switched)
        plan.picked = sorted({*plan.picked, *switched.values()})
        if self._is_users:
            self._compare_ids(reruns)
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

    def _solved(
        self,
        places: dict[Place, Given],
        sites: list[Site],
        *,
        is_decided: bool,
        picks: bool = False,
    ) -> tuple[Reruns, Solver, Trying]:
        """Solve all calls; where values decide as in the first run, they may pick tokens."""
        noticed = self._watching.noticed
        reruns = Reruns(self._model, self._walk, places, sites, self._watching.reads)
        if is_decided or (sites and self._watching.reads.may_branch):
            seed()
            steps = reruns.decide(repeats=is_decided)
            self._plan.steps = self._plan.steps if picks else steps
        firsts = Firsts(self._model, self._alike, reruns)
        solver = Solver(firsts, reruns, noticed, is_decided=picks)
        return reruns, solver, self._tried(solver, Gates(firsts, reruns, noticed.images), places)

    def _puts_numbers(self) -> bool:
        """Return whether code may make tokens of numbers that it reads, one by one."""
        names = self._watching.reads.numbers
        return bool(names) and not are_only_kept(self._walk, self._run, names)

    def _keep_in_place(self, by_values: Collection[Place]) -> None:
        """Refuse calls whose tokens values picked if the whole model does not bring them there."""
        plan = self._plan
        for site in self.open:
            place = site.place
            if place not in by_values or place not in plan.layouts:
                continue
            if place in plan.in_place.counts:
                plan.by_values.add(place)
                continue
            del plan.layouts[place]
            plan.reasons[place] = picked(next(one for one in site.picks if one.by is By.VALUES))

    def _compare_ids(self, reruns: Reruns) -> None:
        """Find the calls that attend to other tokens than the ids, or to these in another order."""
        plan, watching = self._plan, self._watching
        integers = watching.kernels.integers
        plan.beside, moved = beside_ids(
            self.open,
            plan.layouts,
            reruns,
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
        return called(self._called, self._given)

    def _plain(self, needed: Mapping[Place, Run]) -> tuple[dict[Place, Given], Any]:
        """Run the model as it is, and keep what some of its modules are given."""
        places: dict[Place, Given] = {}

        def entered(run: Run, module: nn.Module, given: Given) -> None:
            if run.place in needed:
                places[run.place] = kept(given)

        running = self._walk.following(entered)
        with without_contexts(), FunctionMode(), without_fast_path(), running, inside():
            return places, self._run()

    def _tried(self, solver: Solver, gates: Gates, places: dict[Place, Given]) -> Trying:
        watching, sites = self._watching, self.open
        sets = watching.merged, watching.ranked, watching.spreading
        trying = Trying(solver, gates, *sets, self._given)
        is_one, sizes = _may_be_one_sequence(self._given, watching)
        for dim, by_ids in ((0, False), (0, True), (1, False), (None, False)):
            if by_ids and not any(x.dim() > 1 for x in watching.ids):
                continue
            has_batch = dim is not None
            may_have_none = (is_one or sizes) and trying.may_have_no_batch
            if trying.is_done or not (has_batch or may_have_none):
                break
            given, reads = (self._given, watching.ids), watching.reads
            batches = Batches(self._called, self._walk, *given, places, dim, reads, by_ids=by_ids)
            of_one = () if has_batch or is_one else sizes
            trying(sites, batches, or_nothing=not has_batch, sizes=of_one)
        return trying

    def _adopt(self, trying: Trying) -> Trial:
        """Take what was proved with the best dimension as the batch."""
        watching, sites, best = self._watching, self.open, trying.best
        self._plan.layouts, self._plan.reasons = best.layouts, best.reasons
        for site in sites:
            if site.place not in trying.unmatched & set(best.reasons):
                self._plan.trust(site.module, site.place, site.lead, best.batches.size)
        for mixed in watching.mixed.values():
            self._plan.share_layout(mixed)
        for place in watching.across & self._plan.layouts.keys():
            if not all(layout.heads for _, layout in self._plan.layouts[place]):
                del self._plan.layouts[place]
                self._plan.reasons[place] = _MIXES_TEXTS
        self._plan.leave_out(best.others, best.untold, best.gates, best.learned)
        return best


def _may_be_one_sequence(given: Given, watching: Watching) -> tuple[bool, Collection[int]]:
    """Return whether inputs may be one sequence: (tokens, channels), or ids of as many tokens.

    So may be pairs of its tokens, (tokens, tokens, channels). Integers beside these that no
    embedding looks up may be pairs, too, as an adjacency matrix. Where others are numbers or ids
    of all pairs, as a bias (heads, tokens, tokens), a batch of texts may look the same; also
    return the sizes of the sequences, then.
    """
    known, integers = sources(given), watching.kernels.integers
    ids = watching.ids if integers.are_looked_up or not known else ()
    are_tokens = all(x.dim() < 3 or (x.dim() == 3 and x.shape[0] == x.shape[1]) for x in known)
    every = leaves(given)
    looked_up = [every[number] for number in integers.looked_up]
    sizes = {len(x) for x in known if x.dim() == 2} | {len(x) for x in looked_up if x.dim() == 1}
    others = [x for x in known if x.dim() > 2] + [x for x in looked_up if x.dim() > 1]
    are_pairs = all(any(sizes.issuperset(two) for two in pairwise(x.shape)) for x in others)
    return are_tokens and all(x.dim() < 2 for x in ids), sizes if are_pairs else ()
