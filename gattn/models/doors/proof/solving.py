"""Proves the layout of each attention call, from the innermost module's input outwards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from gattn.models.doors.proof.assembling import (
    AcrossBatchError,
    Source,
    Tokens,
    assembled,
    is_settled,
    learned,
    tokens_of,
)
from gattn.models.doors.proof.batches import Batches
from gattn.models.doors.proof.probing import NoTokensError, UnprovedError
from gattn.models.doors.proof.probing.alike import Alike
from gattn.models.doors.proof.probing.dependence import (
    Dependence,
    Probe,
    Side,
    outlined,
    plainly,
    reaches_all_keys,
)
from gattn.models.doors.proof.probing.replaying import Replays, Site
from gattn.models.doors.proof.probing.walking import Run
from gattn.models.read.layouts import Layout

_BEFORE = 3
"""How many runs before the attending one are tried as inputs, within each run around it."""
_SOURCES = 6
_CHANNELS = (
    "every slot depends on all tokens of its input, so it attends over channels, or its tokens are "
    "mixed before it attends"
)
_MIXED = (
    "its slots cannot be told apart by the tokens of its input, which are mixed before it attends, "
    "or pooled"
)


@dataclass(frozen=True, eq=False)
class Reader:
    """One side of a call, and the input of a run that it depends on."""

    source: int
    dependence: Dependence
    probe: Probe
    is_query: bool

    @property
    def side(self) -> Side:
        """How it depends on it."""
        return self.dependence.queries if self.is_query else self.dependence.keys


@dataclass(frozen=True, eq=False)
class Inputs:
    """The inputs of one run that queries and keys depend on; None if they depend on none.

    `is_mixed` says that some input reached a side, but none in a way that tells its slots apart;
    `has_no_tokens` that this is proved of all keys; `failure` why the run could not be tried.
    """

    run: Run
    queries: Reader | None
    keys: Reader | None
    is_mixed: bool = False
    has_no_tokens: bool = False
    failure: str = ""

    @property
    def readers(self) -> list[Reader]:
        """Both sides, as far as they depend on inputs."""
        return [one for one in (self.queries, self.keys) if one is not None]

    @property
    def is_spread(self) -> bool:
        """Whether single tokens cannot be told apart any more on any side."""
        return all(one.side.is_spread for one in self.readers)

    @property
    def rank(self) -> int:
        """How many dimensions the inputs have."""
        return max((len(one.dependence.shape) for one in self.readers), default=0)

    def has_folded(self, batch: int) -> bool:
        """Return whether elements are more than those of the model's batch, as with windows."""
        for one in self.readers:
            side, shape = one.side, one.dependence.shape
            if side.depends.shape[1] > 1:
                sizes = [shape[dim] for dim in side.batch]
                if sizes and sizes != [batch]:
                    return True
        return False

    def complete(self) -> None:
        """Find which position each slot depends on."""
        for one in self.readers:
            one.dependence.complete(one.probe)


def wanted(sites: list[Site], model: nn.Module, alike: Alike) -> dict[tuple[str, int], Run]:
    """List the runs whose inputs are needed, those of alike modules once."""
    found: dict[tuple[str, int], Run] = {}
    known: set[object] = set()
    for site in sites:
        for level, run in enumerate(site.chain):
            if (name := kind(site, level, model, alike)) not in known:
                known.add(name)
                found |= {one.place: one for one in (run, *_near(site, level))}
    return found


def _near(site: Site, level: int) -> Sequence[Run]:
    """Return runs whose inputs are tried besides that of a run around a call.

    They are those just before the next inner run; for the attending module, its first ones.
    """
    return site.chain[level - 1].before[:_BEFORE] if level else site.inside[:_BEFORE]


def kind(site: Site, level: int, model: nn.Module, alike: Alike) -> object:
    """Return what calls of attention have in common whose proof at some level is the same."""
    outer = site.chain[level]
    path = [
        (one.name[len(outer.name) :], alike[model.get_submodule(one.name)], one.shapes)
        for one in site.chain[: level + 1]
    ]
    return level, tuple(path), site.counts[level], site.lead, site.queries, site.keys, site.kind


class Solver:
    """Proves layouts, once for calls that are alike."""

    def __init__(self, model: nn.Module, replays: Replays, alike: Alike) -> None:
        self._model, self._replays, self._alike = model, replays, alike
        self._known: dict[object, list[Inputs]] = {}
        self._first: dict[object, Site] = {}  # Those whose inputs were kept, as by `wanted`.
        for site in replays.sites:
            for level in range(len(site.chain)):
                self._first.setdefault(kind(site, level, model, alike), site)

    def layout(self, site: Site, batches: Batches) -> tuple[Layout, bool]:
        """Prove the layout of a call; also say whether its tokens and batch are settled."""
        if site.altered:
            raise UnprovedError(
                f"it is changed by {site.altered} between its softmax and its values, so what a "
                "head attends to is not the softmax alone"
            )
        others: list[Inputs] = []
        reason = ""
        for inputs in self._all(site):
            if inputs.has_no_tokens and not others:
                raise NoTokensError(_CHANNELS)
            if inputs.is_mixed:
                reason = reason if others else _MIXED
            is_spread = bool(others and inputs.readers) and inputs.is_spread
            if inputs.is_mixed or is_spread:
                if inputs.run in site.chain:
                    break
                continue  # What runs before may make one side from the other.
            others.append(inputs)
            if inputs.has_folded(batches.size):
                continue
            try:
                layout, is_good = self._assembled(site, inputs, batches)
            except AcrossBatchError:
                raise
            except UnprovedError as error:
                reason = reason or str(error)
            else:
                if is_good:
                    return layout, True
        for n in sorted(range(len(others)), key=lambda n: (-others[n].rank, -n)):
            try:
                return self._assembled(site, others[n], batches)[0], False
            except UnprovedError as error:
                reason = str(error) if n == 0 else reason
        raise UnprovedError(reason or "no input of a module around it tells its tokens apart")

    def _all(self, site: Site) -> Iterator[Inputs]:
        """Try the inputs of the attending module, and then of the runs before and around it."""
        for level in range(len(site.chain)):
            name = kind(site, level, self._model, self._alike)
            known = self._known.setdefault(name, [])
            first = self._first[name]
            run = first.chain[level]
            yield from known
            runs = [*_near(first, level), run] if level else [run]
            if not level and not self._replays.sources(run):  # It embeds ids, and attends itself.
                runs += _near(first, level)
            for one in runs[len(known) :]:
                try:
                    known.append(self._tried(first, level, one))
                except UnprovedError as error:
                    known.append(Inputs(one, None, None, failure=str(error)))
                yield known[-1]

    def _tried(self, site: Site, level: int, run: Run) -> Inputs:
        queries: Reader | None = None
        keys: Reader | None = None
        is_reached = [False, False]
        for number, x in enumerate(self._replays.sources(run)[:_SOURCES]):
            probe = partial(self._replays.reached, site, level, run, number)
            found = _outlined(site, tuple(x.shape), probe)
            for n, side in enumerate(found.sides):
                is_reached[n] |= bool(side.depends.any())
            if queries is None and found.queries.tells_tokens:
                queries = Reader(number, found, probe, True)
            if keys is None and found.keys.tells_tokens:
                keys = Reader(number, found, probe, False)
            if queries is not None and keys is not None:
                break
        is_mixed = (is_reached[0] and queries is None) or (is_reached[1] and keys is None)
        has_no_tokens = is_mixed and keys is None and not level and self._has_no_tokens(site, run)
        return Inputs(run, queries, keys, is_mixed, has_no_tokens)

    def _has_no_tokens(self, site: Site, run: Run) -> bool:
        """Prove that keys are no tokens of what the attending module is given."""
        some = self._replays.sources(run)
        if run is not site.chain[0] or len(some) > _SOURCES or site.keys == 1:
            return False
        probes = [partial(self._replays.reached, site, 0, run, n) for n in range(len(some))]
        whole = torch.ones((), dtype=torch.bool)
        reaching = [n for n, probe in enumerate(probes) if bool(probe(whole).keys.any())]
        return bool(reaching) and all(
            reaches_all_keys(tuple(some[n].shape), probes[n]) for n in reaching
        )

    def _assembled(self, site: Site, inputs: Inputs, batches: Batches) -> tuple[Layout, bool]:
        if inputs.keys is None:
            raise UnprovedError(
                inputs.failure or "its keys depend on no input of the modules around it"
            )
        inputs.complete()
        keys, is_good = _tokens(inputs, inputs.keys, site.keys, batches)
        if inputs.queries is None or not bool(inputs.queries.side.depends.any()):
            return assembled(site.lead, learned(site.queries), keys, is_cross=True), is_good
        queries, is_settled = _tokens(inputs, inputs.queries, site.queries, batches)
        queries, keys = _alike(inputs, queries, keys)
        is_cross = inputs.queries.dependence is not inputs.keys.dependence
        if is_cross and site.queries == site.keys:
            is_good = False  # Further out, both may be made of the same tokens.
        is_cross = is_cross or not _are_same(inputs.queries.side, inputs.keys.side)
        return assembled(site.lead, queries, keys, is_cross=is_cross), is_good and is_settled


def _tokens(inputs: Inputs, reader: Reader, slots: int, batches: Batches) -> tuple[Tokens, bool]:
    owner = batches.owner(inputs.run, reader.source)
    source = Source(reader.dependence.shape, owner)
    return tokens_of(reader.side, source, slots), is_settled(reader.side, source)


def _outlined(site: Site, shape: tuple[int, ...], probe: Probe) -> Dependence:
    is_usual = len(site.lead) == 2 and len(shape) == 3 and site.queries == site.keys
    if is_usual and shape[:2] == (site.lead[0], site.queries):
        found = plainly(shape, site.lead, probe)
        if found is not None:
            return found
    return outlined(shape, probe)


def _are_same(queries: Side, keys: Side) -> bool:
    """Return whether queries and keys are the same tokens, or mixes of the same ones."""
    if queries.is_exact and keys.is_exact:
        return True
    return _includes(queries, keys) or _includes(keys, queries)


def _includes(one: Side, other: Side) -> bool:
    """Return whether each slot of a side depends on all that the same slot of another does."""
    return len(one.marks) == len(other.marks) and all(
        x.shape == y.shape and bool((x | ~y).all())
        for x, y in zip(one.marks, other.marks, strict=True)
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
