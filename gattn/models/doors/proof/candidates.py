"""The inputs by which a call's tokens may be told: those of the runs around it and before it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod

from torch import Tensor, nn

from gattn.models.doors.proof.probing.alike import Alike
from gattn.models.doors.proof.probing.dependence import Dependence, Probe, Side
from gattn.models.doors.proof.probing.one_run.picking import By
from gattn.models.doors.proof.probing.one_run.sites import Site
from gattn.models.doors.proof.probing.one_run.walking import Run
from gattn.models.doors.proof.probing.rerunning import Reruns
from gattn.models.read.layouts import Layout

_BEFORE = 3
"""How many runs before the attending one are tried as inputs, within each run around it."""


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

    @property
    def untold(self) -> int:
        """How many dimensions of the input tell no slots apart, as channels do."""
        sizes = enumerate(self.dependence.shape)
        return sum(size > 1 and dim not in self.side.apart for dim, size in sizes)


@dataclass(frozen=True, eq=False)
class Inputs:
    """The inputs of one run that queries and keys depend on; None if they depend on none.

    `step` is the key of the only query's token, if no other key depends on that: those of a cache.
    `is_mixed` says that some input reached a side, but none in a way that tells its slots apart;
    `has_no_tokens` that this is proved of all keys; `is_by_rows` that queries are known by the
    tokens that their rows are added to; `failure` why the run could not be tried. `probes` mark
    each of its first inputs.
    """

    run: Run
    queries: Reader | None
    keys: Reader | None
    is_mixed: bool = False
    has_no_tokens: bool = False
    failure: str = ""
    step: Reader | None = None
    is_by_rows: bool = False
    probes: Sequence[tuple[Tensor, Probe]] = ()

    @property
    def readers(self) -> list[Reader]:
        """Both sides, as far as they depend on inputs."""
        return [one for one in (self.queries, self.keys, self.step) if one is not None]

    @property
    def names(self) -> tuple[object, ...]:
        """What tells the inputs of queries and of keys from others."""
        sides = self.queries, self.keys
        return tuple(None if one is None else (self.run.place, one.source) for one in sides)

    @property
    def is_lost(self) -> bool:
        """Whether single tokens cannot be told apart any more on any side."""
        return bool(self.readers) and all(one.side.is_spread for one in self.readers)

    @property
    def rank(self) -> int:
        """How many dimensions the inputs have."""
        return max((len(one.dependence.shape) for one in self.readers), default=0)

    def folded(self, batch: int) -> list[int]:
        """List how many elements sides have that are not those of the model's batch: windows."""
        found = []
        for one in (self.queries, self.step or self.keys):
            if one is not None and one.side.depends.shape[1] > 1:
                sizes = [one.dependence.shape[dim] for dim in one.side.batch]
                if sizes and sizes != [batch]:
                    found.append(prod(sizes))
        return found

    def complete(self) -> None:
        """Find which position each slot depends on."""
        for one in self.readers:
            one.dependence.complete(one.probe)


@dataclass(eq=False)
class Candidate:
    """A run whose inputs may tell the tokens of calls of one kind, `site` being the first of these.

    `is_around` says that the call is within the run; other runs come before it. `inputs` are known
    once it was tried.
    """

    site: Site
    level: int
    run: Run
    is_around: bool
    inputs: Inputs | None = None


class Firsts:
    """The first of the calls that are alike at some level: that of which inputs were kept.

    Parameters
    ----------
    model : nn.Module
        A copy of the user's model.
    alike : Alike
        Which of its modules are alike.
    reruns : Reruns
        What runs them again, and knows the calls.
    """

    def __init__(self, model: nn.Module, alike: Alike, reruns: Reruns) -> None:
        self.model, self._alike = model, alike
        self._known: dict[object, Site] = {}  # As by `wanted`.
        for site in reruns.sites:
            for level, outer in enumerate(site.chain):
                name = self.kind(site, level)
                if name not in self._known:
                    self._known[name] = site
                    reruns.ask(outer, site)

    def kind(self, site: Site, level: int) -> object:
        """Return what a call has in common with others whose proof at some level is the same."""
        return kind(site, level, self.model, self._alike)

    def __call__(self, site: Site, level: int) -> Site:
        """Return the first call that is like another one at some level."""
        return self._known[self.kind(site, level)]


def wanted(sites: list[Site], model: nn.Module, alike: Alike) -> dict[tuple[str, int], Run]:
    """List the runs whose inputs are needed, those of alike modules once."""
    found: dict[tuple[str, int], Run] = {}
    known: set[object] = set()
    for site in sites:
        for level, run in enumerate(site.chain):
            if (name := kind(site, level, model, alike)) not in known:
                known.add(name)
                found |= {one.place: one for one in (run, *near(site, level, model))}
    return found


def near(site: Site, level: int, model: nn.Module) -> Sequence[Run]:
    """Return runs whose inputs are tried besides that of a run around a call.

    They are those just before the next inner run, and embeddings of ids further back; for the
    attending module, its first ones, embeddings of ids and recurrent networks among all and within
    them, and the one that only made the weights. What is given to a module like the inner one, such
    as the layer before it, is arranged alike.
    """
    if not level:
        found = [one for one in site.inside if one.looks_up is not False]
        further = [one for one in _giving(site.inside) if one not in found[:_BEFORE]]
        weighs = [one for one in _all(site.inside) if one.name == site.name][-1:]
        return list(
            dict.fromkeys((*found[:_BEFORE], *further[:_BEFORE], *further[-_BEFORE:], *weighs))
        )
    inner = site.chain[level - 1]
    of = type(model.get_submodule(inner.name))
    found = [
        one
        for one in inner.before
        if one.looks_up is not False
        and (one.shapes != inner.shapes or type(model.get_submodule(one.name)) is not of)
    ]
    return found[:_BEFORE] + [one for one in found[_BEFORE:] if one.looks_up][:_BEFORE]


def recurrent(site: Site) -> list[Run]:
    """List the recurrent networks that ran within the attending module before a call."""
    return [one for one in _giving(site.inside) if one.recurs]


def _giving(runs: Iterable[Run]) -> list[Run]:
    """List the runs, among some and within them, of which it counts what they give."""
    return [one for one in _all(runs) if one.looks_up or one.recurs]


def _all(runs: Iterable[Run]) -> Iterator[Run]:
    """List runs, and those within them."""
    for run in runs:
        yield run
        yield from _all(run.inner)


def kind(site: Site, level: int, model: nn.Module, alike: Alike) -> object:
    """Return what calls of attention have in common whose proof at some level is the same.

    Values may pick other tokens for each of them.
    """
    outer = site.chain[level]
    path = [
        (
            one.name[len(outer.name) :],
            alike[model.get_submodule(one.name)],
            one.shapes,
            one.is_prepared,
        )
        for one in site.chain[: level + 1]
    ]
    picks = any(pick.by is not By.INPUTS and outer in pick.running for pick in site.picks)
    sizes = site.counts[level], site.lead, site.queries, site.keys
    return level, tuple(path), *sizes, site.kind, site if picks else None


def has_as_heads(found: Layout, other: Layout, site: Site) -> bool:
    """Return whether a layout has as heads what another one has as tokens."""
    sizes = []
    for layout in (found, other):
        assert layout.tokens is not None
        tokens = len(set(layout.tokens.sequences)) * layout.tokens.num_keys
        sizes.append((layout.num_heads(site.lead), tokens))
    (heads, few), (fewer, many) = sizes
    return heads > fewer and heads * few == fewer * many


def has_elements_as_heads(
    layout: Layout, site: Site, one: Candidate, others: Sequence[Candidate], batch: int
) -> bool:
    """Return whether a layout has as heads what a module is given as elements, each of all heads.

    Where a norm over each frame of a video mixes its pixels, an input further out tells frames
    alone. What tells all tokens, but not these elements, makes copies of a text.
    """
    inputs = one.inputs
    if one.is_around and inputs is not None and all(x.untold < 2 for x in inputs.readers):
        return False
    heads = layout.num_heads(site.lead)
    inner = [x.inputs for x in others if x.is_around and x.inputs is not None]
    elements = [count for inputs in inner for count in inputs.folded(batch)]
    return any(1 < prod(site.lead) // count < heads for count in elements)
