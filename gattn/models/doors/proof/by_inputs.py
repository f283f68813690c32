"""Makes a layout of the inputs that the queries and keys of a call depend on."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from torch import Tensor

from gattn.models.doors.proof.candidates import Inputs, Reader
from gattn.models.doors.proof.layouts.assembling import assembled
from gattn.models.doors.proof.layouts.batches import Batches
from gattn.models.doors.proof.layouts.slots import (
    Owner,
    Source,
    Tokens,
    check_batch,
    is_settled,
    learned,
    owner_by,
    tokens_of,
)
from gattn.models.doors.proof.no_tokens import has_features
from gattn.models.doors.proof.other_inputs import check_orders
from gattn.models.doors.proof.other_values import check_values
from gattn.models.doors.proof.probing import LearnedError, UnprovedError, UntoldError
from gattn.models.doors.proof.probing.dependence import Side
from gattn.models.doors.proof.probing.one_run.sites import Site
from gattn.models.read.layouts import Layout

FACTORED = (
    "its keys are what another softmax made of all tokens, as are the channels of efficient "
    "(linear) attention, the slots of a soft mixture of experts, or the edges of a hypergraph"
)
LEARNED = "its keys and values are the same whatever the model is given"
NO_KEYS = (
    "no input of the modules around it tells by its scores which token of which text each of its "
    "keys is (an input of a module of its own would)"
)


LINEAR = (
    "it multiplies keys with values before queries, as linear (efficient) attention does, so it "
    "computes no weight for a pair of tokens"
)
WEIGHED_AGAIN = (
    "another softmax weighs what this one made of all tokens, as are the channels of efficient "
    "(linear) attention, the slots of a soft mixture of experts, or the edges of a hypergraph, so "
    "it computes no weight for a pair of tokens"
)


class LinearError(UntoldError):
    """Says that queries are no tokens but the features of linear attention, whatever is around."""


@dataclass(frozen=True)
class Noticed:
    """What a run of the whole model showed.

    Parameters
    ----------
    images : collection of tuple of int
        The shapes (elements, channels, rows, columns, ...) of what it convolves.
    linear, factored : collection of str
        The modules that attend in linear time, as far as can be told: by one softmax, or by two.
    """

    images: Collection[tuple[int, ...]] = ()
    linear: Collection[str] = ()
    factored: Collection[str] = ()

    def check(self, where: str) -> None:
        """Refuse a module that attends in linear time, as far as can be told."""
        if where in self.linear:
            raise LinearError(LINEAR)
        if where in self.factored:
            raise LinearError(WEIGHED_AGAIN)


def layout_by(
    site: Site,
    inputs: Inputs,
    batches: Batches,
    noticed: Noticed,
    *,
    is_last: bool,
    is_whole: bool = False,
) -> tuple[Layout, bool]:
    """Prove the layout of a call by inputs; also say whether its tokens and batch are settled.

    Those of the whole model are different ones, though there may be as many.
    """
    if inputs.keys is None:
        if inputs.queries is not None and batches.has_constant_keys(site.place):
            if site.kind != "sdpa":  # It may as well weigh classes or prototypes.
                raise LearnedError(LEARNED)
            owner = batches.owner(inputs.run, inputs.queries.source)
            check_batch(inputs.queries.side, owner)
            inputs.complete()
            queries, is_good = _tokens(inputs, inputs.queries, site.queries, batches)
            return assembled(site.lead, queries, learned(site.keys), is_cross=True), is_good
        is_factored = site.kind != "sdpa" and site.place[0] in noticed.factored
        raise UnprovedError(inputs.failure or (FACTORED if is_factored else NO_KEYS))
    owner = _owner(inputs, inputs.keys, batches)
    check_batch(inputs.keys.side, owner)
    inputs.complete()
    check_values(inputs.keys.dependence, owner)
    keys, is_good = _tokens(inputs, inputs.keys, site.keys, batches)
    if inputs.queries is None or not bool(inputs.queries.side.depends.any()):
        if site.queries > 1 and site.kind != "sdpa":
            noticed.check(site.place[0])
        are_groups = is_last and has_features(inputs.keys, noticed.images)
        queries, may_share = learned(site.queries), is_good or are_groups
        layout = assembled(site.lead, queries, keys, is_cross=True, may_share=may_share)
        return layout, is_good
    is_batch = batches.owner(inputs.run, inputs.keys.source) is not None
    if (
        is_batch
        and keys.sequences is not None
        and batches.is_constant(inputs.run, inputs.queries.source)
    ):
        queries, is_settled = _repeated(inputs.queries, site.queries, keys.sequences)
        layout = assembled(site.lead, queries, keys, is_cross=True)
        assert layout.tokens is not None
        rows = replace(layout.tokens, has_own_rows=True)
        return replace(layout, tokens=rows), is_good and is_settled
    queries, is_settled = _tokens(inputs, inputs.queries, site.queries, batches)
    is_one = batches.are_same(inputs.run, inputs.queries.source, inputs.keys.source)
    may_be_same = inputs.queries.dependence is not inputs.keys.dependence
    are_same = queries.are_in_order and keys.are_in_order
    are_same |= _are_same(inputs.queries.side, inputs.keys.side)
    is_cross = (may_be_same and not is_one) or not are_same
    queries, keys = _alike(inputs, queries, keys)
    layout = assembled(site.lead, queries, keys, is_cross=is_cross, may_share=is_good)
    check_orders(layout, inputs, site)
    are_shared = layout.tokens is not None and layout.tokens.num_queries > queries.count
    if may_be_same and site.queries == site.keys and not (are_shared or is_whole):
        is_good = False  # Further out, both may be made of the same tokens.
    return layout, is_good and is_settled


def _owner(inputs: Inputs, reader: Reader, batches: Batches) -> Owner | None:
    run, source = inputs.run, reader.source
    return batches.owner(run, source) or batches.owner_by_answer(run, source)


def _tokens(inputs: Inputs, reader: Reader, slots: int, batches: Batches) -> tuple[Tokens, bool]:
    owner = _owner(inputs, reader, batches)
    source = Source(reader.dependence.shape, owner)
    return tokens_of(reader.side, source, slots), is_settled(reader.side, source)


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
