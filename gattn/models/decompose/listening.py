r"""How a layer's queries and keys are made of the residual stream: as linear maps of its parts.

With the statistics of norms as they are in a run, a query is :math:`q_i = Q_i x_i + c_i`, with a
matrix for each token, in which rotations by position have their place; a key likewise. The model
itself says what they are: where it runs with the layer's norms held fixed, :math:`Q_i` is the
gradient, and with zeros in place of the stream, :math:`c_i` is what comes out. That these give the
model's queries and keys is verified.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor

from gattn.errors import CaptureError, SelectionError
from gattn.models.decompose.decomposing import Decomposing
from gattn.models.decompose.layer_runs import LayerRun
from gattn.models.decompose.products import Product
from gattn.models.decompose.sides import Side
from gattn.models.read.places import Place
from gattn.models.read.reading import Reading
from gattn.models.read.seen_call import SeenCall
from gattn.models.run.opening import opened
from gattn.models.run.prompt import Prompt
from gattn.models.stream.sublayers import Sublayer
from gattn.models.stream.writers.parts import Growing, Stream


@dataclass(frozen=True, eq=False)
class Listened:
    """What one head of a layer reads of the residual stream.

    Parameters
    ----------
    call, place, reading
        The call of attention.
    residual : Tensor (tokens, dim)
        The stream before the layer.
    stream : Stream, optional
        What it is a sum of.
    queries, keys : Side
        What is made of it.
    terms : tuple of float and Tensor (queries, keys), optional
        What products of queries and keys are multiplied with, and what is added to them, where the
        call shows only its scores.
    """

    call: SeenCall
    place: Place
    reading: Reading
    residual: Tensor
    stream: Stream | None
    queries: Side
    keys: Side
    terms: tuple[float, Tensor] | None


class _Enough(BaseException):
    """Ends a run; no model catches it."""


class _Zero(LayerRun):
    """A run with zeros in place of the stream, which ends once queries and keys are seen."""

    def see(self, call: SeenCall, place: Place, readings: list[Reading]) -> None:
        """Note the layer's queries and keys."""
        super().see(call, place, readings)
        raise _Enough


def listened(
    prompt: Prompt,
    layer: int,
    head: int,
    stack: str | None,
    split: Collection[tuple[int, int]] | None,
) -> Listened:
    """Run a model, and find how queries and keys of one head are made of the stream.

    The stream is taken apart, and what heads in `split` add by the tokens that they read, unless
    `split` is None.
    """
    plain, stream = LayerRun(layer, stack), None
    if split is None:
        prompt.run(plain)
    else:
        stream = _followed(prompt, plain, layer, stack, split)
    plain.check()
    zero = _Zero(layer, stack, plain)
    with suppress(_Enough):
        prompt.run(zero)
    zero.check()
    with torch.enable_grad():
        return _listened(plain, zero, head, stream)


def _followed(
    prompt: Prompt,
    plain: LayerRun,
    layer: int,
    stack: str | None,
    split: Collection[tuple[int, int]],
) -> Stream:
    """Run a model, and take the stream before a layer apart on the way."""
    growing: list[Growing] = []

    def start(slots: Tensor) -> Stream:
        found = plain.embeddings
        return Stream(found.writers, found.parts.detach()[:, slots.to(found.parts.device)])

    def add(sublayer: Sublayer) -> None:
        slots = sublayer.reading.queries.slots
        if not growing:
            growing.append(Growing(start(slots), split))
        growing[0].pass_on(sublayer.start, slots, context.between)
        growing[0].add(sublayer)

    if not layer:
        prompt.run(plain)
        plain.check()
        return start(plain.reading.queries.slots)
    context = Decomposing(prompt.model, add, range(layer), stack, progress=False)
    with opened(prompt.model, context):
        prompt.run(plain)
    plain.check()
    context.check()
    slots = plain.reading.queries.slots
    growing[0].pass_on(plain.rows[slots.to(plain.rows.device)], slots, plain.between)
    return growing[0].stream()


def _listened(plain: LayerRun, zero: LayerRun, head: int, parts: Stream | None) -> Listened:
    """Say how queries and keys of a head are made of the stream."""
    assert plain.seen is not None
    call, place, reading = plain.seen
    if not 0 <= head < reading.heads:
        raise SelectionError(f"No head {head}; layer {place.layer} has 0 .. {reading.heads - 1}.")
    slots = reading.queries.slots.to(plain.given.device)
    terms = None
    if call.is_scores:
        (scale, added), (query, key), constants = _of_product(plain, zero, head)
        terms = scale, added[slots[:, None], slots]
    else:
        own = call.key.shape[1] * head // reading.heads
        assert zero.seen is not None
        query, key = call.query[0, head], call.key[0, own]
        constants = zero.seen[0].query[0, head], zero.seen[0].key[0, own]
    sides = []
    for name, computed, constant in zip(("query", "key"), (query, key), constants, strict=True):
        if not computed.requires_grad:
            raise CaptureError(
                f"The {name} of {call.where} has no gradient to the residual stream: what it is "
                "made of is unknown."
            )
        some = computed[slots]
        sides.append(Side(some.detach(), constant.detach()[slots], plain.given, some, slots))
    residual = plain.rows[slots]
    if parts is not None:
        parts.check(residual, call.name)
    queries, keys = sides
    return Listened(call, place, reading, residual, parts, queries, keys, terms)


def _of_product(
    plain: LayerRun, zero: LayerRun, head: int
) -> tuple[tuple[float, Tensor], tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Find the scale of scores, and what is added to them, and what is multiplied in both runs."""
    assert plain.seen is not None
    assert zero.seen is not None
    call, _, reading = plain.seen
    one, other = (_product(run) for run in (call, zero.seen[0]))
    slots = reading.queries.slots
    if one is not None and other is not None:
        scores = one.scores[head]
        allowed = torch.zeros_like(scores, dtype=torch.bool)
        allowed[slots[:, None], slots] = True
        allowed &= (scores > call.least) & (other.scores[head] > call.least)
        terms = one.terms(other, head, allowed)
        if terms is not None:
            of_other = other.query[head], other.key[head]
            return terms, (one.query[head], one.key[head]), of_other
    raise CaptureError(
        f"{call.where} shows only its softmax, and its scores are not found to be products of "
        "queries and keys with numbers added that do not depend on them: who wrote them is unknown."
    )


def _product(call: SeenCall) -> Product | None:
    return None if call.mask is None or call.dropped is not None else Product.of(call.mask[0])
