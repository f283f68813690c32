"""Proves the layout of each attention call, from the innermost module's input outwards."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from torch import nn

from gattn.models.doors.functions.calling.altered import changed
from gattn.models.doors.proof.by_inputs import (
    FACTORED,
    NO_KEYS,
    LinearError,
    Noticed,
    layout_by,
)
from gattn.models.doors.proof.candidates import (
    Candidate,
    Firsts,
    Inputs,
    has_as_heads,
    has_elements_as_heads,
)
from gattn.models.doors.proof.inputs_found import InputsFound
from gattn.models.doors.proof.layouts.alone import attends_to_itself, num_keys
from gattn.models.doors.proof.layouts.assembling import SEVERAL_GROUPS
from gattn.models.doors.proof.layouts.batches import Batches
from gattn.models.doors.proof.layouts.slots import AcrossBatchError
from gattn.models.doors.proof.no_tokens import (
    MOST_SOURCES,
    are_channels,
    are_features,
    are_states,
)
from gattn.models.doors.proof.other_values import ValuesError
from gattn.models.doors.proof.probing import (
    LearnedError,
    NoTokensError,
    UnprovedError,
    UntoldError,
)
from gattn.models.doors.proof.probing.one_run.picking import By, Pick
from gattn.models.doors.proof.probing.one_run.sites import Site
from gattn.models.doors.proof.probing.one_run.walking import Run
from gattn.models.doors.proof.probing.rerunning import Reruns
from gattn.models.doors.proof.written import tells_keys_alone
from gattn.models.read.layouts import Layout

_CHANNELS = (
    "every slot depends on all tokens of its input, so it attends over channels, or to tokens that "
    "were mixed before, as by a norm, a gate or pooling over all of them"
)
_MAPS = "each slot is a channel of images that the model convolves, so it attends over channels"
_FEATURES = "each slot is a feature of all rows that an embedding or a recurrent network gives"
_STATES = "each slot is the last state of a layer or a direction of a recurrent network"
_MIXED = (
    "its scores do not tell its slots apart by the tokens of its input: these are mixed or pooled "
    "before it attends, or scores are made of queries alone, or of several scores; it is read if "
    "values are made of single tokens, and the module around it adds its rows to these very tokens"
)
_RECURRENT = (
    "; it also runs a recurrent network, which mixes tokens: attention in a module of its own, "
    "which is given what that network gave, can be read"
)
_ELEMENTS = (
    "it is given several elements for each sequence of the batch, as the pixels of a video are for "
    "attention over its frames, and no input of the modules around it tells these apart, perhaps "
    "since a norm mixed them; open the context on a module after that"
)
_ALONE = frozenset((_MIXED, NO_KEYS, FACTORED, SEVERAL_GROUPS))
"""Reasons that say nothing of other calls, whichever dimension is the batch."""
_AT_ONCE = "; if it reads a cache, run the whole text at once, without one"


class Solver:
    """Proves layouts, once for calls that are alike.

    Parameters
    ----------
    firsts : Firsts
        The first of the calls that are alike, in a copy of the user's model.
    reruns : Reruns
        What runs its modules again.
    noticed : Noticed
        What a run of the model showed.

    Attributes
    ----------
    by_values : set of (str, int)
        The calls whose tokens values pick: what was proved holds as long as values decide the same.
    has_picked : bool
        Whether a call could not be proved since values pick its tokens.
    holds_once : bool
        Whether masks and integers that the model is given decide which token a slot stands for, so
        that what was proved holds for these inputs only.
    """

    def __init__(
        self, firsts: Firsts, reruns: Reruns, noticed: Noticed, *, is_decided: bool = False
    ) -> None:
        self._inputs, self._reruns, self._noticed = InputsFound(firsts, reruns), reruns, noticed
        self._is_decided = is_decided
        self.by_values: set[tuple[str, int]] = set()
        self.holds_once = self.has_picked = False

    def layout(self, site: Site, batches: Batches) -> tuple[Layout, bool]:
        """Prove the layout of a call; also say whether its tokens and batch are settled."""
        if not site.altered:
            return self._layout(site, batches)
        raise UntoldError(f"it is {changed(site.altered)}")

    def _layout(self, site: Site, batches: Batches) -> tuple[Layout, bool]:
        others: list[Candidate] = []
        reason, of_keys, of_itself, may_be_written = "", None, None, False
        for one in self._inputs.candidates(site, batches.size):
            if one.level and reason == _MIXED and not others:
                if not may_be_written:
                    break
                if not one.is_around:
                    continue
            if others and one.inputs is None and not self._may_settle(one, batches):
                others.append(one)  # Tried if nothing settles.
                continue
            inputs = self._inputs.of(one, batches.size)
            is_mixed = not one.level and inputs.is_mixed
            is_behind = is_mixed and self._inputs.are_rows(site, batches.size)
            if inputs.has_no_tokens and not others and not is_behind:
                raise NoTokensError(_CHANNELS)
            if any(are_channels(one, self._noticed.images) for one in inputs.readers):
                raise NoTokensError(_MAPS)
            has_rows = one.run.recurs or one.run.looks_up
            if has_rows and inputs.keys is not None and are_features(inputs.keys):
                raise NoTokensError(_FEATURES)
            if inputs.keys is not None and are_states(one.run, inputs.keys):
                raise NoTokensError(_STATES)
            if inputs.is_mixed:
                reason = reason if others else _MIXED
            if inputs.is_mixed or (inputs.is_lost and any(map(self._may_depend, others))):
                may_be_written = tells_keys_alone(inputs, site)
                is_last = one.is_around and (one.level or site.queries > 1)
                if is_last and not may_be_written and not is_behind:
                    break
                continue  # What runs before may make one side from the other.
            others.append(one)
            if inputs.folded(batches.size):
                continue
            try:
                layout, is_good = self._assembled(site, one, batches)
            except LearnedError:
                self._reruns.carry(site)
                raise
            except (AcrossBatchError, LinearError, ValuesError):
                raise
            except UnprovedError as error:
                reason = reason or str(error)
            else:
                if is_good and attends_to_itself(site, layout):
                    # Heads of a single token look the same, but not further out.
                    if of_itself is None or num_keys(layout) < num_keys(of_itself):
                        of_itself = layout
                elif is_good and has_elements_as_heads(layout, site, one, others, batches.size):
                    reason = reason or _ELEMENTS
                    others.remove(one)
                elif is_good and not _leaves_out_queries(one, others):
                    return layout, True
                elif is_good:
                    of_keys = of_keys or layout
        if of_keys is not None:
            return self._of_tokens(of_keys, site, others, batches), True
        if of_itself is not None:
            return of_itself, True
        return self._unsettled(site, others, batches, reason), False

    def _of_tokens(
        self, of_keys: Layout, site: Site, others: Sequence[Candidate], batches: Batches
    ) -> Layout:
        """Say that queries are no learned rows where they are tokens of another input, in order."""
        for one in others:
            inputs = one.inputs
            if inputs is None or inputs.queries is None or not one.level:
                continue
            if not batches.varies(inputs.run, inputs.queries.source):
                continue
            with suppress(UnprovedError):
                tokens, known = self._assembled(site, one, batches)[0].tokens, of_keys.tokens
                if tokens is not None and known is not None and tokens.queries is None:
                    return replace(of_keys, tokens=replace(known, has_own_rows=tokens.has_own_rows))
        return of_keys

    def _unsettled(
        self, site: Site, others: list[Candidate], batches: Batches, reason: str
    ) -> Layout:
        """Prove a layout by the input of the most dimensions, the outermost of these."""
        waiting = set(range(len(others)))
        while waiting:
            n = max(waiting, key=lambda n: (self._rank(others[n]), n))
            one = others[n]
            if one.inputs is None:
                inputs = self._inputs.of(one, batches.size)
                if inputs.is_mixed or inputs.is_lost:
                    waiting.remove(n)
                continue
            waiting.remove(n)
            try:
                layout = self._assembled(site, one, batches, is_last=True)[0]
                layout = self._with_heads(layout, site, others[n:], batches)
                if has_elements_as_heads(layout, site, one, others, batches.size):
                    reason = reason or _ELEMENTS
                    continue
                return layout
            except (LinearError, ValuesError):
                raise
            except UnprovedError as error:
                reason = str(error) if n == 0 else reason
        is_alone = reason in _ALONE
        has_step = any(one.inputs is not None and one.inputs.step is not None for one in others)
        may_step = site.queries == 1 < site.keys and reason == _MIXED
        if has_step or may_step or (reason == SEVERAL_GROUPS and _are_keys_given(others)):
            reason, is_alone = reason + _AT_ONCE, False
        if any(isinstance(one, (nn.RNNBase, nn.RNNCellBase)) for one in site.module.modules()):
            reason += _RECURRENT
        kind_of = UntoldError if is_alone else UnprovedError
        raise kind_of(reason or "no input of a module around it tells its tokens apart")

    def _with_heads(
        self, layout: Layout, site: Site, others: Sequence[Candidate], batches: Batches
    ) -> Layout:
        """Say that parts of a token are its heads where an input further out has them as one.

        A module that is given heads apart, beside elements that a model makes itself, would else
        seem to read as many more tokens.
        """
        own, *further = others
        assert own.inputs is not None
        if all(len(one.side.batch) < 2 for one in own.inputs.readers):
            return layout
        for one in further:
            inputs = self._inputs.of(one, batches.size)
            if not one.is_around or inputs.is_mixed or inputs.is_lost:
                continue
            with suppress(UnprovedError):
                found = self._assembled(site, one, batches, is_last=True)[0]
                if has_as_heads(found, layout, site):
                    return found
        return layout

    def _check_picks(self, site: Site, outer: Run) -> None:
        """Refuse to number slots by an input whose tokens come into others each time."""
        inner = [pick for pick in site.picks if outer in pick.running]
        if any(pick.by is By.INPUTS for pick in inner):
            self.holds_once = True
        for pick in inner:
            if pick.by is By.VALUES and self._is_decided:
                self.by_values.add(site.place)
            elif pick.by is not By.INPUTS:
                self.has_picked |= pick.by is By.VALUES
                raise UnprovedError(picked(pick))

    def _may_settle(self, one: Candidate, batches: Batches) -> bool:
        """Return whether inputs may settle which tokens and elements of the batch slots are.

        Of a run that comes before, that is not so if none has the batch as one dimension.
        """
        sources = range(len(self._reruns.sources(one.run)[:MOST_SOURCES]))
        return one.is_around or any(batches.is_whole(one.run, n) for n in sources)

    def _may_depend(self, one: Candidate) -> bool:
        """Return whether a call depends on some input of a run, or may if it was not tried yet."""
        if one.inputs is not None:
            return bool(one.inputs.readers)
        return bool(self._reruns.sources(one.run))

    def _rank(self, one: Candidate) -> int:
        """Return how many dimensions inputs have, or may have if they were not tried yet."""
        if one.inputs is not None:
            return one.inputs.rank
        return max((x.dim() for x in self._reruns.sources(one.run)[:MOST_SOURCES]), default=0)

    def _assembled(
        self, site: Site, one: Candidate, batches: Batches, *, is_last: bool = False
    ) -> tuple[Layout, bool]:
        inputs = one.inputs
        assert inputs is not None
        self._check_picks(site, site.chain[one.level])
        is_last = is_last and one.is_around  # What made keys alone does not tell of queries.
        layout, is_good = self._by(site, one, inputs, batches, is_last=is_last)
        assert layout.tokens is not None
        if inputs.keys is not None and inputs.keys.side.has_untold:
            self.holds_once = True  # Another mask lets keys be read that had no place here.
        tokens = replace(
            layout.tokens,
            inputs=inputs.names,
            is_by_rows=inputs.is_by_rows,
            has_mask_of_values=site.has_mask_of_values,
        )
        return replace(layout, tokens=tokens), is_good

    def _by(
        self, site: Site, one: Candidate, inputs: Inputs, batches: Batches, *, is_last: bool
    ) -> tuple[Layout, bool]:
        if inputs.step is None or inputs.step is inputs.keys:
            is_whole = one.is_around and one.level == len(site.chain) - 1
            how = {"is_last": is_last, "is_whole": is_whole}
            return layout_by(site, inputs, batches, self._noticed, **how)
        try:  # Keys of a cache were given, too, whose heads look like tokens.
            return layout_by(
                site, replace(inputs, keys=inputs.step), batches, self._noticed, is_last=is_last
            )
        except UnprovedError:
            return layout_by(site, inputs, batches, self._noticed, is_last=is_last)


def picked(pick: Pick) -> str:
    """Say that a call's tokens may have been picked, but not by what the model is given."""
    how = "by their values" if pick.by is By.VALUES else "at random"
    return (
        f"it picks or orders numbers {how} before it attends ({pick.kernel}), perhaps its tokens, "
        "so that which token a slot stands for cannot be told (indices that the model is given can "
        "be followed; for a log, pick from an array: attention.detach().cpu().numpy())"
    )


def _are_keys_given(others: Sequence[Candidate]) -> bool:
    """Return whether the attending module is given keys that are not its tokens, as of a cache."""
    own = [one.inputs for one in others if one.is_around and not one.level]
    return any(
        x is not None
        and x.keys is not None
        and (x.queries is None or x.queries.source != x.keys.source)
        for x in own
    )


def _leaves_out_queries(one: Candidate, others: Sequence[Candidate]) -> bool:
    """Return whether queries depend on other inputs than those of a run that made keys alone."""
    is_alone = not one.is_around and one.inputs is not None and one.inputs.queries is None
    return is_alone and any(x.inputs is not None and x.inputs.queries is not None for x in others)
