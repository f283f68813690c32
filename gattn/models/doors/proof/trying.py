"""Tries which dimension of a model's inputs is its batch, by what is proved of calls with each."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from torch import Tensor

from gattn.models.doors.proof.gates import Gates
from gattn.models.doors.proof.layouts.alone import are_along_others, attends_to_itself, is_of_one
from gattn.models.doors.proof.layouts.batches import Batches
from gattn.models.doors.proof.layouts.joining import joined
from gattn.models.doors.proof.layouts.plan import Place
from gattn.models.doors.proof.layouts.sameness import refuse_numbers
from gattn.models.doors.proof.layouts.slots import ACROSS, AcrossBatchError
from gattn.models.doors.proof.other_values import ValuesError
from gattn.models.doors.proof.probing import (
    LearnedError,
    NoTokensError,
    UnprovedError,
    UntoldError,
)
from gattn.models.doors.proof.probing.one_run.inputs import leaves
from gattn.models.doors.proof.probing.one_run.sites import Site
from gattn.models.doors.proof.probing.one_run.walking import Given
from gattn.models.doors.proof.solving import Solver
from gattn.models.read.layouts import Layout

_MERGED = (
    "what it makes of the sum by which its softmax divides, such as a logarithm, weighs what "
    "attention gives (or becomes a Python number, whose use is unknown), as where softmaxes over "
    "chunks of keys are merged, so the softmax alone is not what a head attends to"
)
_LEARNED_ONCE = (
    "it attends to tokens in one run, and in another to keys and values that are the same whatever "
    "the model is given"
)
_RANKED = (
    "it keeps some scores alone, as the largest or those of the nearest, and some key is among "
    "those of no query, so that it cannot be told from padding"
)
_NO_TENSORS = (
    "gattn finds no tensor in what the model is given, which would tell which token is of which "
    "text; run one text, or open the context on a module that takes tensors (where a model takes "
    "lists or arrays, one whose forward is given a tensor and makes them of it)"
)


@dataclass(eq=False)
class Trial:
    """What was proved of calls with one dimension as the batch.

    Parameters
    ----------
    batches : Batches
        That dimension.
    layouts : dict
        The layouts of each call.
    reasons : dict
        Why the layout of a call could not be proved.
    others : dict
        Why calls are proved to attend over something else than tokens.
    learned : set
        The calls that are proved to attend to keys and values that are the same for all inputs.
    gates : set
        Sums that are proved to weigh what is made of the same tokens, such as experts.
    of_one : dict
        The layouts of gates that weigh a single number: attention of single tokens looks the same.
    untold : dict
        Why other sums could not be proved: they may weigh tokens, or not.
    unsettled : set
        The calls whose tokens or batch another input might tell otherwise.
    alone : set
        Those whose reasons say nothing of other calls.
    windows_of_one : set
        The calls in which each token attends to itself alone: these tokens may be texts of one.
    is_across : bool
        Whether tokens of several elements of the supposed batch attend to each other.
    """

    batches: Batches
    layouts: dict[Place, list[tuple[tuple[int, ...], Layout]]] = field(default_factory=dict)
    reasons: dict[Place, str] = field(default_factory=dict)
    others: dict[Place, str] = field(default_factory=dict)
    learned: set[Place] = field(default_factory=set)
    gates: set[Place] = field(default_factory=set)
    of_one: dict[Place, list[tuple[tuple[int, ...], Layout]]] = field(default_factory=dict)
    untold: dict[Place, str] = field(default_factory=dict)
    unsettled: set[Place] = field(default_factory=set)
    alone: set[Place] = field(default_factory=set)
    windows_of_one: set[Place] = field(default_factory=set)
    is_across: bool = False

    @property
    def lacks_proofs(self) -> bool:
        """Whether a call was not proved, other than sums beside what was."""
        return bool(self.reasons) or (bool(self.untold) and not self.layouts)

    @property
    def is_good(self) -> bool:
        """Whether nothing is left to be proved with another dimension."""
        return not (self.reasons or self.untold or self.unsettled or self.windows_of_one)

    def leave_changed(self, sites: Collection[Site]) -> None:
        """Show nothing of modules that change some of their attention before it meets values.

        What they show may be a part of what they change.
        """
        own = [site for site in sites if site.altered and site.place in self.reasons]
        reasons = {site.place[0]: self.reasons[site.place] for site in own}
        for place in [place for place in self.layouts if place[0] in reasons]:
            del self.layouts[place]
            self.reasons[place] = reasons[place[0]]
            self.alone.add(place)

    @property
    def rank(self) -> tuple[int, int]:
        """Rank what was proved: the more calls the better."""
        return _rank(self.layouts, self.reasons)


class Trying:
    """Proves calls with one dimension after another as the batch.

    Parameters
    ----------
    solver : Solver
        What proves them.
    gates : Gates
        What proves that they weigh no tokens.
    merged : collection of (str, int)
        The calls whose softmaxes are merged by the sums that they divide by.
    ranked : collection of (str, int)
        The calls whose modules rank as many numbers as there are scores.
    spreading : collection of str
        The modules whose sums are products of attention and values.
    given : tuple
        What the model is given.
    """

    def __init__(
        self,
        solver: Solver,
        gates: Gates,
        merged: Collection[Place],
        ranked: Collection[Place],
        spreading: Collection[str],
        given: Given,
    ) -> None:
        self._solver, self._gates = solver, gates
        self._merged, self._spreading = merged, spreading
        self._ranked = ranked
        self._has_tensors = any(isinstance(x, Tensor) and x.dim() for x in leaves(given))
        self._tried: list[Trial] = []
        self._without_batch: Trial | None = None
        self.unmatched: set[Place] = set()
        """The calls whose tokens, or values, belong to others by what was proved in some trial."""

    @property
    def is_done(self) -> bool:
        """Whether the last trial proved everything."""
        return bool(self._tried) and self._tried[-1].is_good

    @property
    def may_have_no_batch(self) -> bool:
        """Whether no dimension was proved to be the batch."""
        return all(one.lacks_proofs for one in self._tried)

    @property
    def best(self) -> Trial:
        """The first of the trials that proved most."""
        best = max(self._tried, key=lambda one: (one.is_good, *one.rank))
        return self._without_batch if best.is_across and self._without_batch else best

    def __call__(
        self,
        sites: list[Site],
        batches: Batches,
        *,
        or_nothing: bool,
        sizes: Collection[int] = (),
    ) -> None:
        """Prove calls with some dimension as the batch, all of them `or_nothing`.

        If `sizes` are given, each call attends over one sequence of about such a size.
        """
        trial = Trial(batches)
        for number, site in enumerate(sites):
            try:
                self._prove(site, batches, trial, sizes)
            except AcrossBatchError as error:
                trial.reasons |= dict.fromkeys((one.place for one in sites), str(error))
                trial.is_across = True
                break
            except UnprovedError as error:
                self._note(site, error, trial)
            left = {one.place for one in sites[number + 1 :]} | set(trial.layouts)
            is_worse = self._tried and _rank(left, trial.reasons) <= self._tried[0].rank
            if is_worse and not trial.is_good:
                break
        trial.leave_changed(sites)
        for place in trial.untold.keys() & trial.layouts.keys():  # It differs from run to run.
            trial.reasons[place] = trial.untold.pop(place)
            del trial.layouts[place]
        for place in trial.learned & (trial.layouts.keys() | trial.reasons.keys()):
            trial.learned.discard(place)
            trial.reasons.setdefault(place, _LEARNED_ONCE)
            trial.layouts.pop(place, None)
        self.unmatched |= refuse_numbers(
            trial.layouts, trial.unsettled & trial.layouts.keys(), trial.reasons
        )
        if batches.is_of_one:
            trial.unsettled -= {
                site.place
                for site in sites
                for _, layout in trial.layouts.get(site.place, ())
                if are_along_others(site, layout)
            }
        for site in sites:
            unproved = [
                some for some in (trial.reasons, trial.others, trial.untold) if site.place in some
            ]
            if unproved and self._gates.weighs_parts(site, batches.size):
                trial.gates.add(site.place)
                trial.layouts.pop(site.place, None)
                for some in unproved:
                    del some[site.place]
        shown = set(trial.of_one)
        if trial.layouts and shown:  # Without others, these are its attention.
            shown &= joined([one.place for one in sites], trial.layouts | trial.of_one).keys()
        for place in shown:
            trial.layouts[place] = trial.of_one[place]
            trial.gates.discard(place)
        trial.windows_of_one = {
            site.place
            for site in sites
            for _, layout in trial.layouts.get(site.place, ())
            if attends_to_itself(site, layout)
        }
        if not (or_nothing and trial.lacks_proofs):
            self._tried.append(trial)
        elif trial.reasons:
            self._without_batch = _nothing(trial)

    def _prove(self, site: Site, batches: Batches, trial: Trial, sizes: Collection[int]) -> None:
        if site.place in self._merged:
            raise UnprovedError(_MERGED)
        if site.place in self._ranked and site.live is not None and not site.live.any(1).all():
            raise UnprovedError(_RANKED)
        if self._may_gate(site) and self._gates.keeps_tokens(site):
            trial.gates.add(site.place)
            return
        layout, is_settled = self._solver.layout(site, batches)
        if _is_of_some(site, layout) and self._gates.weighs_parts(site, batches.size):
            trial.gates.add(site.place)
            if site.keys == 1:
                trial.of_one.setdefault(site.place, []).append((site.lead, layout))
            return
        sequences = () if layout.tokens is None else layout.tokens.sequences
        if len(sequences) > 1 and not self._has_tensors:
            raise UnprovedError(_NO_TENSORS)
        if sizes and not is_of_one(layout, sizes):
            raise UnprovedError(ACROSS)
        trial.layouts.setdefault(site.place, []).append((site.lead, layout))
        if not is_settled:
            trial.unsettled.add(site.place)

    def _note(self, site: Site, error: UnprovedError, trial: Trial) -> None:
        """Note why a call was not proved; some sums are no attention, and others may be none."""
        if isinstance(error, ValuesError):
            self.unmatched.add(site.place)
        if isinstance(error, LearnedError):
            trial.learned.add(site.place)
        elif not self._may_gate(site):
            is_proved = isinstance(error, NoTokensError)
            (trial.others if is_proved else trial.reasons)[site.place] = str(error)
            if isinstance(error, UntoldError):
                trial.alone.add(site.place)
        elif self._gates.weighs_own(site):
            trial.gates.add(site.place)
        else:
            (trial.reasons if site.altered else trial.untold)[site.place] = str(error)

    def _may_gate(self, site: Site) -> bool:
        """Return whether a call may only weigh what a token has several of, such as experts."""
        return site.kind == "sum" and site.chain[0].name not in self._spreading


def _is_of_some(site: Site, layout: Layout) -> bool:
    """Return whether a sequence has more tokens than one query may read, as with windows."""
    return layout.tokens is not None and site.keys < layout.tokens.num_keys


def _nothing(trial: Trial) -> Trial:
    """Give up what was proved beside what was not, but keep the reasons."""
    (name, _), why = next(iter(trial.reasons.items()))
    reason = f"that of {name or 'the model itself'} cannot: {why}"
    return Trial(trial.batches, reasons=dict.fromkeys(trial.layouts, reason) | trial.reasons)


def _rank(proved: Collection[Place], reasons: Collection[Place]) -> tuple[int, int]:
    return len(proved), -len(reasons)
