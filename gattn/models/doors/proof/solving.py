"""Proves the layout of each attention call, from the innermost module's input outwards."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial
from math import prod

from torch import Tensor, nn

from gattn.models.doors.proof.candidates import Candidate, Inputs, Reader, kind, near
from gattn.models.doors.proof.layouts.assembling import (
    SEVERAL_GROUPS,
    AcrossBatchError,
    Owner,
    Source,
    Tokens,
    assembled,
    check_batch,
    is_settled,
    learned,
    owner_by,
    tokens_of,
)
from gattn.models.doors.proof.layouts.batches import Batches
from gattn.models.doors.proof.no_tokens import (
    MOST_SOURCES,
    are_channels,
    has_features,
    has_no_tokens,
    keeps_tokens,
    weighs_own,
)
from gattn.models.doors.proof.probing import NoTokensError, UnprovedError, UntoldError
from gattn.models.doors.proof.probing.alike import Alike
from gattn.models.doors.proof.probing.dependence import (
    Dependence,
    Probe,
    Side,
    outlined,
    plainly,
    refine,
)
from gattn.models.doors.proof.probing.one_run.picking import By
from gattn.models.doors.proof.probing.one_run.walking import Run
from gattn.models.doors.proof.probing.replaying import Replays, Site
from gattn.models.doors.proof.probing.taints import may_be_mask
from gattn.models.read.layouts import Layout

_CHANNELS = (
    "every slot depends on all tokens of its input, so it attends over channels, or to tokens that "
    "were mixed before, as by a norm, a gate or pooling over all of them"
)
_MAPS = "each slot is a channel of images that the model convolves, so it attends over channels"
_LINEAR = (
    "it multiplies keys with values before queries, as linear (efficient) attention does, so it "
    "computes no weight for a pair of tokens"
)
_FACTORED = (
    "its keys are what another softmax made of all tokens, as are the channels of efficient "
    "(linear) attention, the slots of a soft mixture of experts, or the edges of a hypergraph"
)
_NO_KEYS = (
    "no input of the modules around it tells by its scores which token of which text each of its "
    "keys is"
)
_MIXED = (
    "its scores do not tell its slots apart by the tokens of its input: these are mixed or pooled "
    "before it attends, or scores are made of queries alone, or of several scores"
)
_RECURRENT = (
    "; it also runs a recurrent network, which mixes tokens: attention in a module of its own, "
    "which is given what that network gave, can be read"
)
_ALONE = frozenset((_MIXED, _NO_KEYS, _FACTORED, _LINEAR, SEVERAL_GROUPS))
"""Reasons that say nothing of other calls, whichever dimension is the batch."""
_AT_ONCE = "; if it reads a cache, run the whole text at once, without one"


class Solver:
    """Proves layouts, once for calls that are alike.

    Parameters
    ----------
    model : nn.Module
        A copy of the user's model.
    replays : Replays
        What runs its modules again.
    alike : Alike
        Which of these are alike.
    images : collection of tuple of int
        The shapes (elements, channels, rows, columns, ...) of what it convolves.
    linear, factored : collection of str
        The modules that attend in linear time, as far as can be told: by one softmax, or by two.

    Attributes
    ----------
    holds_once : bool
        Whether masks and integers that the model is given decide which token a slot stands for, so
        that what was proved holds for these inputs only.
    """

    def __init__(
        self,
        model: nn.Module,
        replays: Replays,
        alike: Alike,
        images: Collection[tuple[int, ...]] = (),
        linear: Collection[str] = (),
        factored: Collection[str] = (),
    ) -> None:
        self._model, self._replays, self._alike = model, replays, alike
        self._images, self._linear, self._factored = images, linear, factored
        self.holds_once = False
        self._known: dict[object, list[Candidate]] = {}
        self._first: dict[object, Site] = {}  # Those whose inputs were kept, as by `wanted`.
        for site in replays.sites:
            for level, outer in enumerate(site.chain):
                name = kind(site, level, model, alike)
                if name not in self._first:
                    self._first[name] = site
                    replays.ask(outer, site)

    def layout(self, site: Site, batches: Batches) -> tuple[Layout, bool]:
        """Prove the layout of a call; also say whether its tokens and batch are settled."""
        if not site.altered:
            return self._layout(site, batches)
        raise UnprovedError(
            f"it is changed by {site.altered} between its softmax and its values, so what a "
            "head attends to is not the softmax alone"
        )

    def _layout(self, site: Site, batches: Batches) -> tuple[Layout, bool]:
        others: list[Candidate] = []
        reason, of_keys = "", None
        for one in self._candidates(site, batches.size):
            if one.level and reason == _MIXED and not others:
                break
            if others and one.inputs is None and not self._may_settle(one, batches):
                others.append(one)  # Tried if nothing settles.
                continue
            inputs = self._tried(one, batches)
            if inputs.has_no_tokens and not others:
                raise NoTokensError(_CHANNELS)
            if any(are_channels(one, self._images) for one in inputs.readers):
                raise NoTokensError(_MAPS)
            if inputs.is_mixed:
                reason = reason if others else _MIXED
            if inputs.is_mixed or (inputs.is_lost and any(map(self._may_depend, others))):
                if one.is_around and (one.level or site.queries > 1):
                    break
                continue  # What runs before may make one side from the other.
            others.append(one)
            if inputs.has_folded(batches.size):
                continue
            try:
                layout, is_good = self._assembled(site, one, batches)
            except AcrossBatchError:
                raise
            except UnprovedError as error:
                reason = reason or str(error)
            else:
                if is_good and not _leaves_out_queries(one, others):
                    return layout, True
                if is_good:
                    of_keys = of_keys or layout
        if of_keys is not None:
            return of_keys, True
        return self._unsettled(site, others, batches, reason), False

    def _unsettled(
        self, site: Site, others: list[Candidate], batches: Batches, reason: str
    ) -> Layout:
        """Prove a layout by the input of the most dimensions, the outermost of these."""
        waiting = set(range(len(others)))
        while waiting:
            n = max(waiting, key=lambda n: (self._rank(others[n]), n))
            one = others[n]
            if one.inputs is None:
                inputs = self._tried(one, batches)
                if inputs.is_mixed or inputs.is_lost:
                    waiting.remove(n)
                continue
            waiting.remove(n)
            try:
                return self._assembled(site, one, batches, is_last=True)[0]
            except UnprovedError as error:
                reason = str(error) if n == 0 else reason
        is_alone = reason in _ALONE
        has_step = any(one.inputs is not None and one.inputs.step is not None for one in others)
        if has_step or (site.queries == 1 < site.keys and reason == _MIXED):
            reason, is_alone = reason + _AT_ONCE, False
        if any(isinstance(one, (nn.RNNBase, nn.RNNCellBase)) for one in site.module.modules()):
            reason += _RECURRENT
        kind_of = UntoldError if is_alone else UnprovedError
        raise kind_of(reason or "no input of a module around it tells its tokens apart")

    def _candidates(self, site: Site, batch: int) -> Iterator[Candidate]:
        """List the inputs of the attending module, and then of the runs before and around it."""
        for level in range(len(site.chain)):
            alike = kind(site, level, self._model, self._alike)
            name = alike, batch
            if name not in self._known:
                first = self._first[alike]
                around = first.chain[level]
                runs = [*near(first, level, self._model), around] if level else [around]
                # It embeds ids itself, or its query is made of all tokens.
                if not level and (site.queries == 1 or not self._replays.sources(around)):
                    runs += near(first, level, self._model)
                self._known[name] = [Candidate(first, level, run, run is around) for run in runs]
            yield from self._known[name]

    def _check_picks(self, site: Site, outer: Run) -> None:
        """Refuse to number slots by an input whose tokens come into others each time."""
        inner = [pick for pick in site.picks if outer in pick.running]
        if any(pick.by is By.INPUTS for pick in inner):
            self.holds_once = True
        for pick in inner:
            if pick.by is not By.INPUTS:
                how = "by their values" if pick.by is By.VALUES else "at random"
                raise UnprovedError(
                    f"it picks or orders its tokens {how} before it attends ({pick.kernel}), so "
                    "that which token a slot stands for cannot be told"
                )

    def _may_settle(self, one: Candidate, batches: Batches) -> bool:
        """Return whether inputs may settle which tokens and elements of the batch slots are.

        Of a run that comes before, that is not so if none has the batch as one dimension.
        """
        sources = range(len(self._replays.sources(one.run)[:MOST_SOURCES]))
        return one.is_around or any(batches.is_whole(one.run, n) for n in sources)

    def _may_depend(self, one: Candidate) -> bool:
        """Return whether a call depends on some input of a run, or may if it was not tried yet."""
        if one.inputs is not None:
            return bool(one.inputs.readers)
        return bool(self._replays.sources(one.run))

    def _rank(self, one: Candidate) -> int:
        """Return how many dimensions inputs have, or may have if they were not tried yet."""
        if one.inputs is not None:
            return one.inputs.rank
        return max((x.dim() for x in self._replays.sources(one.run)[:MOST_SOURCES]), default=0)

    def _tried(self, one: Candidate, batches: Batches) -> Inputs:
        if one.inputs is None:
            try:
                one.inputs = self._outlined(one.site, one.level, one.run, batches.size)
            except UnprovedError as error:
                one.inputs = Inputs(one.run, None, None, failure=str(error))
        return one.inputs

    def _outlined(self, site: Site, level: int, run: Run, batch: int) -> Inputs:
        queries: Reader | None = None
        keys: Reader | None = None
        step: Reader | None = None
        is_reached = [False, False]
        some = list(enumerate(self._replays.sources(run)[:MOST_SOURCES]))
        for number, x in sorted(some, key=lambda one: may_be_mask(one[1])):
            probe = partial(self._replays.reached, site, level, run, number)
            found = self._dependence(site, tuple(x.shape), probe, batch)
            for n, side in enumerate(found.sides):
                is_reached[n] |= bool(side.depends.any())
            if queries is None and found.queries.tells_tokens:
                queries = Reader(number, found, probe, True)
            if keys is None and found.keys.tells_tokens:
                keys = Reader(number, found, probe, False)
            is_around = run is site.chain[level] or site.kind != "sum"  # Branches are no step.
            if is_around and queries and queries.dependence is found and _is_step(site, found):
                step = Reader(number, found, probe, False)
            if queries is not None and keys is not None:
                break
        keys = keys or step
        is_mixed = (is_reached[0] and queries is None) or (is_reached[1] and keys is None)
        is_open = is_mixed and keys is None and not level
        proved = is_open and has_no_tokens(site, run, self._replays)
        return Inputs(run, queries, keys, is_mixed, proved, step=step)

    def _dependence(
        self, site: Site, shape: tuple[int, ...], probe: Probe, batch: int
    ) -> Dependence:
        found: Dependence | None = None
        is_usual = len(site.lead) == 2 and len(shape) == 3 and site.queries == site.keys
        if is_usual and shape[:2] == (site.lead[0], site.queries) and shape[0] == batch:
            found = plainly(shape, site.lead, probe)
        found = found or outlined(shape, probe)
        if self._is_one_of_several(site):
            refine(found, probe)
        for side in found.sides if batch == 1 else ():
            is_pooled = side.depends.shape[1] == 1 and side.is_seen and not side.apart
            side.is_one = is_pooled or prod(shape) == max(shape, default=1)
        return found

    def _is_one_of_several(self, site: Site) -> bool:
        """Return whether a module attends several times, as in a loop."""
        return any(one.module is site.module for one in self._replays.sites if one is not site)

    def keeps_tokens(self, site: Site) -> bool:
        """Prove that each value of a sum holds several tokens side by side, as branches do."""
        first = self._first[kind(site, 0, self._model, self._alike)]
        runs = [first.chain[0], *near(first, 0, self._model)]
        return keeps_tokens(first, runs, self._replays, self._images)

    def weighs_own(self, site: Site) -> bool:
        """Prove that each sum is made of one token alone of what the attending module is given."""
        first = self._first[kind(site, 0, self._model, self._alike)]
        return weighs_own(first, self._replays, self._images)

    def _assembled(
        self, site: Site, one: Candidate, batches: Batches, *, is_last: bool = False
    ) -> tuple[Layout, bool]:
        inputs = one.inputs
        assert inputs is not None
        self._check_picks(site, site.chain[one.level])
        is_last = is_last and one.is_around  # What made keys alone does not tell of queries.
        if inputs.step is None or inputs.step is inputs.keys:
            return self._joined(site, inputs, batches, is_last)
        try:  # Keys of a cache were given, too, whose heads look like tokens.
            return self._joined(site, replace(inputs, keys=inputs.step), batches, is_last)
        except UnprovedError:
            return self._joined(site, inputs, batches, is_last)

    def _joined(
        self, site: Site, inputs: Inputs, batches: Batches, is_last: bool
    ) -> tuple[Layout, bool]:
        if inputs.keys is None:
            if inputs.queries is not None and batches.has_constant_keys(site.place):
                owner = batches.owner(inputs.run, inputs.queries.source)
                check_batch(inputs.queries.side, owner)
                inputs.complete()
                queries, is_good = _tokens(inputs, inputs.queries, site.queries, batches)
                return assembled(site.lead, queries, learned(site.keys), is_cross=True), is_good
            is_factored = site.kind != "sdpa" and site.place[0] in self._factored
            raise UnprovedError(inputs.failure or (_FACTORED if is_factored else _NO_KEYS))
        check_batch(inputs.keys.side, batches.owner(inputs.run, inputs.keys.source))
        inputs.complete()
        keys, is_good = _tokens(inputs, inputs.keys, site.keys, batches)
        if inputs.queries is None or not bool(inputs.queries.side.depends.any()):
            if site.queries > 1 and site.kind != "sdpa" and site.place[0] in self._linear:
                raise UnprovedError(_LINEAR)
            are_groups = is_last and has_features(inputs.keys, self._images)
            queries, may_share = learned(site.queries), is_good or are_groups
            layout = assembled(site.lead, queries, keys, is_cross=True, may_share=may_share)
            return layout, is_good
        if batches.is_constant(inputs.run, inputs.queries.source) and keys.sequences is not None:
            queries, is_settled = _repeated(inputs.queries, site.queries, keys.sequences)
            return assembled(site.lead, queries, keys, is_cross=True), is_good and is_settled
        queries, is_settled = _tokens(inputs, inputs.queries, site.queries, batches)
        may_be_same = inputs.queries.dependence is not inputs.keys.dependence
        are_same = queries.are_in_order and keys.are_in_order
        are_same |= _are_same(inputs.queries.side, inputs.keys.side)
        is_cross = may_be_same or not are_same
        queries, keys = _alike(inputs, queries, keys)
        layout = assembled(site.lead, queries, keys, is_cross=is_cross, may_share=is_good)
        are_shared = layout.tokens is not None and layout.tokens.num_queries > queries.count
        if may_be_same and site.queries == site.keys and not are_shared:
            is_good = False  # Further out, both may be made of the same tokens.
        return layout, is_good and is_settled


def _leaves_out_queries(one: Candidate, others: Sequence[Candidate]) -> bool:
    """Return whether queries depend on other inputs than those of a run that made keys alone."""
    is_alone = not one.is_around and one.inputs is not None and one.inputs.queries is None
    return is_alone and any(x.inputs is not None and x.inputs.queries is not None for x in others)


def _tokens(inputs: Inputs, reader: Reader, slots: int, batches: Batches) -> tuple[Tokens, bool]:
    owner = batches.owner(inputs.run, reader.source)
    source = Source(reader.dependence.shape, owner)
    return tokens_of(reader.side, source, slots), is_settled(reader.side, source)


def _is_step(site: Site, found: Dependence) -> bool:
    """Return whether the only query and one key are made of an input, but no other key is."""
    return site.queries == 1 and found.keys.is_single and bool(found.queries.depends.all())


def _repeated(reader: Reader, slots: int, sequences: Tensor) -> tuple[Tokens, bool]:
    """Say which tokens learned queries are, each element's or shared, by the keys' sequences."""
    owner = owner_by(reader.side, sequences)
    source = Source(reader.dependence.shape, owner or Owner(None, sequences[:1]))
    tokens = tokens_of(reader.side, source, slots)
    return replace(tokens, sequences=None), is_settled(reader.side, source)


def _are_same(queries: Side, keys: Side) -> bool:
    """Return whether queries and keys are the same tokens, or mixes of the same ones."""
    if queries.is_exact and keys.is_exact:
        return True
    return _includes(queries, keys) or _includes(keys, queries)


def _includes(one: Side, other: Side) -> bool:
    """Return whether each slot of a side depends on all that the same slot of another does.

    What is not known of it, as of a query whose keys are all marked, is nothing against that.
    """
    return len(one.marks) == len(other.marks) and all(
        x.shape == y.shape and bool((x | hidden | ~y).all())
        for x, hidden, y in zip(one.marks, one.hidden, other.marks, strict=True)
    )


def _alike(inputs: Inputs, queries: Tokens, keys: Tokens) -> tuple[Tokens, Tokens]:
    """Give slots that mix their token with its neighbours the positions of the other side's.

    A convolution over queries or keys does that.
    """
    assert inputs.queries is not None
    assert inputs.keys is not None
    one, other = inputs.queries.side, inputs.keys.side
    if inputs.queries.dependence is inputs.keys.dependence:
        if other.is_exact and not one.is_exact and _includes(one, other):
            return keys, keys
        if one.is_exact and not other.is_exact and _includes(other, one):
            return queries, queries
    return queries, keys
