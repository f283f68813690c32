"""Runs a model once with its attention seen, and compares that with the kernels that ran."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

from gattn.models.doors.functions.calling.owners import innermost
from gattn.models.doors.functions.calling.raw_call import RawCall, observed
from gattn.models.doors.functions.mode import FunctionMode
from gattn.models.doors.functions.softmaxes.beside import Uses
from gattn.models.doors.graphs.observing import observed_edges
from gattn.models.doors.proof.by_inputs import Noticed
from gattn.models.doors.proof.copying.keeping_nothing import keeps_nothing
from gattn.models.doors.proof.kernels import Kernels, unseen, without_fast_path
from gattn.models.doors.proof.layouts.plan import Place, Plan
from gattn.models.doors.proof.probing.alike import shapes
from gattn.models.doors.proof.probing.numbers import Numbers
from gattn.models.doors.proof.probing.one_run.inputs import leaves
from gattn.models.doors.proof.probing.one_run.picking import tensors_in
from gattn.models.doors.proof.probing.one_run.reading import Reads
from gattn.models.doors.proof.probing.one_run.reading_modes import Name
from gattn.models.doors.proof.probing.one_run.sites import Site, Sites
from gattn.models.doors.proof.probing.one_run.walking import Given, Run, Walk
from gattn.models.doors.proof.silent import silent
from gattn.models.doors.proof.taking import not_in
from gattn.models.read.track.early_calls import EarlyCall
from gattn.models.watch.contexts import present

_READS_HIDDEN = (
    "code that torch.jit scripted, or that runs without Python, reads numbers of tensors before "
    "attention, or counts some, and may do something else by other numbers: run it as it was "
    "written"
)
_CALLS_ORIGINAL = (
    "gattn runs a copy of it for the proof, and the copy still calls {} of the original, since the "
    "code does not reach that module through self but, for example, through a global variable, a "
    "lambda or a hook that holds it. Call it through self: make it an attribute of the module that "
    "calls it"
)
_SUMS = "sums of exponentials"


class Watching:
    """Watches one run of a model.

    Parameters
    ----------
    model : nn.Module
        A copy of the user's model.
    walk : Walk
        Its runs.
    given : tuple
        What it is given.
    plan : Plan
        Where it is noted what was left unseen, and why nothing can be trusted.
    is_open : function
        Whether a call is to be proved.
    originals : dict
        The names of the user's own modules.
    kept : collection
        Where code makes arrays or lists of numbers that it only keeps.

    Attributes
    ----------
    open : list of Site
        The calls of attention that are to be proved.
    mixed : dict
        The calls whose softmaxes are mixed into the same tensor, by its identity.
    merged, ranked, across : set of (str, int)
        The calls whose softmaxes are merged by the sums that they divide by; whose modules rank as
        many numbers as there are scores; that are mixed over another dimension than heads.
    ids : list of Tensor
        The integers among the inputs that look like ids of tokens.
    """

    def __init__(
        self,
        model: nn.Module,
        walk: Walk,
        given: Given,
        plan: Plan,
        is_open: Callable[[RawCall], bool],
        originals: Mapping[nn.Module | None, str],
        kept: Collection[Name] = (),
    ) -> None:
        self._model, self._walk, self._given, self._plan = model, walk, given, plan
        self._is_open, self._originals = is_open, originals
        self.kernels = Kernels(model, walk)
        give_out = self.kernels.products.totals.give_out
        self.reads = Reads(walk, self.kernels.picks, self.kernels.origins, give_out, kept)
        self.numbers = Numbers(given)
        self.open: list[Site] = []
        self.mixed: dict[int, list[Place]] = {}
        self.merged: set[Place] = set()
        self.ranked: set[Place] = set()
        self.across: set[Place] = set()
        self._sites = Sites(walk, self.kernels.picks)
        self._ran: set[str] = set()
        self._passed: list[Given] = []
        self._values: list[Tensor] = []  # Kept, so that their identities stay theirs.

    def __call__(self, run: Callable[[], Any]) -> tuple[list[Site], Any]:
        """Run the model; return its calls of attention, and its output."""
        kernels = self.kernels
        running, seen = self._walk.following(self._entered), observed(self._see)
        nodes, hooked = observed_edges(kernels.nodes), kernels.nodes.hooked()
        noting, self._uses = self.reads.noting(), Uses()
        uses = self._uses
        with (
            FunctionMode(),
            without_fast_path(),
            running,
            seen,
            nodes,
            hooked,
            noting,
            kernels,
            uses,
        ):
            output = run()
            is_changed = self._walk.state.is_changed
            self._note_uses()
        is_kept = is_changed or not keeps_nothing(self._given, self._passed, output)
        self._plan.keeps_nothing = not is_kept
        self._conclude()
        return self._sites.found, output

    def _entered(self, run: Run, module: nn.Module, given: Given) -> None:
        if run.around is None:
            self.kernels.begin(given)
            self._uses.begin(tensors_in(given))
            self._passed.append(given)
            self.reads.begin()
        self.reads.look()
        run.shapes = shapes(given, with_integers=True)
        run.is_prepared = self._walk.state.is_prepared(module)
        self._ran.add(run.name)

    def _see(self, call: RawCall) -> None:
        kernels = self.kernels
        if call.is_written:
            kernels.products.claim()
        elif call.kind == "sum":
            kernels.claim_sum()
        else:
            kernels.claim()
        if not call.is_written:
            kernels.takings.claim()
        self.reads.look(always=True)
        with _disable_current_modes():  # What follows is no part of the model.
            self._note(call)

    def _note(self, call: RawCall) -> None:
        own = self._originals.get(innermost())
        if own not in (None, self._walk.name(call.module)):  # A forward may be replaced.
            self._plan.refused = _CALLS_ORIGINAL.format(own)
        self.reads.attend(is_read=call.is_read)
        if self.reads.are_hidden:
            self._plan.refused = _READS_HIDDEN
        self._uses.attend(call)
        self._sites(call)
        site = self._sites.found[-1]
        self.kernels.moves.attended(site.chain[0])
        if self._is_open(call):
            self.open.append(site)
            self.numbers.take(call, site.place)
        if call.early is not None:
            number, form = call.early
            self._plan.early[site.name, number] = EarlyCall(site.ordinal, form, call.is_read)
        if call.number is not None:
            how = "scaled" if call.is_scaled else "mixed"
            self._plan.altered[site.place[0], call.number] = how
            self.mixed.setdefault(id(call.value), []).append(site.place)
            if call.is_across:
                self.across.add(site.place)
            self._values.append(call.value)

    def _note_uses(self) -> None:
        """Note what the model made of scores beside its attention, and may keep."""
        plan = self._plan
        plan.uses.clear()
        plan.twice.clear()
        for what, module, ordinal, again in self._uses.beside():
            name, (own, met) = self._walk.name(module), again or (-1, -1)
            if (name, met) in plan.early:
                plan.early[name, met] = plan.early[name, met]._replace(is_read=True)
                plan.twice[name, met] = plan.twice[name, own] = met, ordinal
            else:
                plan.uses.setdefault((name, ordinal), []).append(what)

    def name_silent(self) -> None:
        """Name the modules that attend and show nothing, by what is known of the others by now."""
        kernels, plan = self.kernels, self._plan
        mixing = {name for name, _ in plan.altered}  # Of heads, which is shown.
        across = (kernels.across | set(map(self._walk.name, self._uses.unread()))) - mixing
        found = self._sites.found, self._shown, kernels.products, across, plan.gates
        plan.silent = silent(self._model, self._ran, *found)

    def _conclude(self) -> None:
        """Note what the run showed of the whole model."""
        kernels, plan, sites = self.kernels, self._plan, self._sites.found
        for site in sites:
            where = site.chain[0].name, (site.queries, site.keys)
            if where in kernels.products.totals.merging:
                self.merged.add(site.place)
            elif where in kernels.products.totals.aside:
                plan.uses.setdefault(site.place, [_SUMS])
            if where in kernels.ranking and not site.is_ranked:
                self.ranked.add(site.place)
        if kernels.missed:
            plan.refused = unseen(self._model, kernels.missed)
        others = next(calls.last for calls, _ in present() if calls.model is self._model)
        self._shown = shown = set(others.layers.shown)
        kernels.products.by_node -= kernels.nodes.choosing
        self.name_silent()
        takings = kernels.takings
        plan.unmet = not_in(takings.missed, shown)
        plan.again = not_in(takings.again, shown)
        given = leaves(self._given)
        self.ids = [given[number] for number in kernels.integers.exchangeable]
        plan.looking_up = sorted(kernels.products.looking_up | takings.looking_up)
        self.spreading = kernels.products.spreading
        self.noticed = Noticed(kernels.images, kernels.products.linear, kernels.products.factored)
