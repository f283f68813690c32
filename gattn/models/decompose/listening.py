r"""How a layer's queries and keys are made of the residual stream: as linear maps of its parts.

With the statistics of norms as they are in a run, a query is :math:`q_i = Q_i x_i + c_i`, with a
matrix for each token, in which rotations by position have their place; a key likewise. The model
itself says what they are: it runs with the layer's norms held fixed, where :math:`Q_i` is the
gradient, and with zeros in place of the stream, where :math:`c_i` is what comes out. That these
give the model's queries and keys is verified.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gattn.errors import CaptureError, SelectionError
from gattn.models.decompose.sides import Side
from gattn.models.read.places import Place
from gattn.models.read.reading import Reading
from gattn.models.read.seen_call import SeenCall
from gattn.models.run.prompt import Prompt
from gattn.models.stream.embeddings import Embedded
from gattn.models.stream.layers import first_of, layers_of
from gattn.models.stream.parts import Stream
from gattn.models.stream.rounding import is_half
from gattn.models.stream.sublayers import FixedNorm
from gattn.models.watch.contexts import Context, takes_part
from gattn.models.watch.hooks import hooks_on


@dataclass(frozen=True, eq=False)
class Listened:
    """What a layer's attention reads of the residual stream."""

    call: SeenCall
    place: Place
    reading: Reading
    residual: Tensor
    embeddings: Stream
    queries: Side
    keys: Side


def listened(prompt: Prompt, layer: int, head: int, stack: str | None) -> Listened:
    """Run a model, and find how queries and keys of one head are made of the stream."""
    plain = _Listening(layer, stack)
    with torch.no_grad():
        prompt.run(plain)
        plain.check()
        linear, zero = (_Listening(layer, stack, plain, is_zero) for is_zero in (False, True))
        prompt.run(linear)
        prompt.run(zero)
    for one in (linear, zero):
        one.check()
    return plain.listened(linear, zero, head)


class _Listening(Context):
    """Watches how the stream before a layer comes to its attention.

    Parameters
    ----------
    layer, stack
        Where.
    plain : _Listening, optional
        What ran before, whose norms are held fixed.
    is_zero : bool
        Whether zeros stand in place of the stream.
    """

    reads_one_call = True

    def __init__(
        self,
        layer: int,
        stack: str | None,
        plain: _Listening | None = None,
        is_zero: bool = False,
    ) -> None:
        self._layer, self._asked = layer, stack
        self._plain, self._is_zero = plain, is_zero
        self._running: list[tuple[nn.Module, int]] = []
        self._runs: dict[nn.Module, int] = {}
        self._given: dict[nn.Module, Tensor] = {}
        self._number, self._had_gradient = 0, False
        self._stacks: dict[str, int] = {}
        self._embedded = Embedded()
        self._start: Tensor | None = None
        self.norms: dict[int, FixedNorm | None] = {}
        self.at: tuple[nn.Module, int] | None = None
        self.given: Tensor | None = None
        self.seen: tuple[SeenCall, Place, Reading] | None = None

    @contextmanager
    def watching(self, model: nn.Module) -> Iterator[None]:
        """Watch a model's layers and the modules within them."""
        layers = layers_of(model)
        leaves = [x for x in model.modules() if not any(True for _ in x.children())]
        self._names = {module: name for name, module in model.named_modules()}
        try:
            with (
                hooks_on((x for x in model.modules() if id(x) in layers), self._enter, self._left),
                hooks_on(leaves, leave=self._leave),
            ):
                yield
        finally:
            self._running, self._given = [], {}

    # What happens while the model runs

    def _enter(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        if not takes_part(self):
            return None
        run = self._runs.get(module, 0)
        self._runs[module] = run + 1
        self._running.append((module, run))
        given = first_of((*args, *kwargs.values()))
        if given is None or self.seen is not None:
            return None
        self._number, self.norms = 0, {}
        self._given[module] = given.detach().clone()
        if self._plain is None or self._plain.at != (module, run):
            return None
        instead = torch.zeros_like(given) if self._is_zero else given.detach().clone()
        if not self._is_zero:
            instead.requires_grad_()
            self._had_gradient = True
            torch.set_grad_enabled(True)
        self.given, self.at = instead, (module, run)
        put = {id(given): instead}
        return (
            tuple(put.get(id(x), x) for x in args),
            {name: put.get(id(x), x) for name, x in kwargs.items()},
        )

    def _left(self, *_: Any) -> None:
        if takes_part(self) and self._running:
            self._running.pop()
        if not self._running and self._start is None:  # An encoder's are not the decoder's.
            self._embedded = Embedded()

    def _leave(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> Tensor | None:
        if not takes_part(self) or self.seen is not None:
            return None
        is_alone = len(args) + len(kwargs) == 1
        given = first_of((*args, *kwargs.values()))
        if not isinstance(result, Tensor):
            return None
        if not self._running:
            if self._start is None and self._plain is None:
                known = given if is_alone else None
                self._embedded.note(self._names.get(module, ""), module, known, result)
            return None
        if not is_alone or given is None or given.shape != result.shape:
            return None
        self._number += 1
        if self._plain is None:
            if not torch.equal(given, result):
                both = (x.detach().flatten(0, -2) for x in (given, result))
                self.norms[self._number] = FixedNorm.of(module, *both)
            return None
        if self.at is None or self._running[-1] != self.at:
            return None
        fixed = self._plain.norms.get(self._number)
        if fixed is None:
            return None
        turned = fixed.turned(given) * fixed.factor.reshape(*given.shape[:-1], 1)
        turned = turned.to(result.dtype)
        if self._is_zero:
            return turned + fixed.shift.to(result.dtype)
        return result.detach() + (turned - turned.detach())

    def wants(self, place: Place) -> bool:
        """Return whether a call is the layer's self-attention."""
        if place.is_bipartite:
            return False
        self._stacks[place.stack] = max(self._stacks.get(place.stack, 0), place.layer + 1)
        if self._asked is None and len(self._stacks) > 1:
            raise SelectionError(
                f"The model has several stacks of self-attention, {' and '.join(self._stacks)}: "
                f"choose one, as in stack={place.stack!r}."
            )
        if self._asked not in (None, place.stack):
            return False
        if place.layer == 0 and self._running:
            self._start = self._given.get(self._running[-1][0])
        return place.layer == self._layer

    def see(self, call: SeenCall, place: Place, readings: list[Reading]) -> None:
        """Note the layer's queries and keys."""
        if self._had_gradient:
            torch.set_grad_enabled(False)
        if self.seen is not None:
            raise CaptureError(
                f"{call.name} attends more than once: expected one run on one whole text."
            )
        if len(readings) != 1 or len(readings[0].elements) != 1:
            raise CaptureError(
                f"{call.name} attends in {len(call.query)} groups of tokens at once: expected a "
                "single sequence. Run texts one by one; windows of an image are not supported."
            )
        if len(readings[0].queries) != len(readings[0].keys):
            raise CaptureError(
                f"{call.name} continues a cache, so who wrote its earlier keys is not seen: run "
                "the whole text at once."
            )
        if not readings[0].has_vectors or call.is_scores:
            raise CaptureError(
                f"{call.name} shows only its softmax, not its queries and keys: who wrote them is "
                "unknown."
            )
        if is_half(call.query):
            raise CaptureError(
                f"{call.name} computes in {call.query.dtype}, whose rounding hides what scores are "
                "made of: try model.float()."
            )
        if not self._running or self._running[-1][0] not in self._given:
            raise CaptureError(
                f"{call.name} is not in a list of layers that take the residual stream."
            )
        if self._plain is None:
            self.at = self._running[-1]
            self.given = self._given[self.at[0]]
        self.seen = call, place, readings[0]

    # What was found

    def check(self) -> None:
        """Refuse if the layer was not found."""
        known = self._stacks.get(self._asked or next(iter(self._stacks), ""), 0)
        if self.seen is None and not known:
            named = f" in {self._asked!r}" if self._asked else ""
            there = " and ".join(map(repr, self._stacks))
            there = f"; there is {there}" if there else ""
            raise SelectionError(f"The model shows no self-attention{named}{there}.")
        if self.seen is None:
            raise SelectionError(f"No layer {self._layer}; the model has layers 0 .. {known - 1}.")

    def listened(self, linear: _Listening, zero: _Listening, head: int) -> Listened:
        """Say how queries and keys of a head are made of the stream."""
        assert self.seen is not None
        assert self.given is not None
        assert self._start is not None
        assert linear.given is not None
        assert linear.seen is not None
        assert zero.seen is not None
        call, place, reading = self.seen
        stream, linear_call, zero_reading = linear.given, linear.seen[0], zero.seen[2]
        if not 0 <= head < reading.heads:
            raise SelectionError(
                f"No head {head}; layer {place.layer} has 0 .. {reading.heads - 1}."
            )
        slots = reading.queries.slots.to(self.given.device)

        def side(name: str) -> Side:
            vectors, constant = (
                getattr(one.attention, name)[0, head] for one in (reading, zero_reading)
            )
            with torch.enable_grad():
                tensor = getattr(linear_call, name)
                own = tensor.shape[1] * head // reading.heads
                computed = tensor[0, own, slots]
            if not computed.requires_grad:
                raise CaptureError(
                    f"The {name} of {call.name} has no gradient to the residual stream: what it is "
                    "made of is unknown."
                )
            return Side(vectors, constant, stream, computed, slots)

        residual = self.given[0, slots]
        return Listened(
            call,
            place,
            reading,
            residual,
            _at(self._embedded.stream(self._start), slots),
            side("query"),
            side("key"),
        )


def _at(stream: Stream, slots: Tensor) -> Stream:
    return Stream(stream.writers, stream.parts[:, slots])
