"""Computes what heads read of the residual stream without some of its parts, while a model runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from gattn.errors import EditError
from gattn.models.edit.base import Edit
from gattn.models.edit.without import SIDES, Heard, Without
from gattn.models.read.masks import taken
from gattn.models.read.places import Place
from gattn.models.read.reading import Reading
from gattn.models.read.seen_call import SeenCall
from gattn.models.read.track.tracking import Tracker
from gattn.models.stream.embeddings import Embedded
from gattn.models.stream.layers import first_of, layers_of
from gattn.models.stream.parts import Growing, Stream
from gattn.models.stream.rounding import is_half, tolerance
from gattn.models.stream.streams import RunningLayer
from gattn.models.watch.contexts import Context, takes_part, without_contexts
from gattn.models.watch.hooks import hooks_on
from gattn.models.watch.listening import first_call
from gattn.normalizers.base import widened


@dataclass(eq=False)
class _Running:
    """A running layer, with its arguments."""

    layer: RunningLayer
    given: Tensor | None
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def run_on(self, stream: Tensor) -> SeenCall | None:
        """Run the layer on another stream, up to its attention."""

        def put(x: Any) -> Any:  # A cache would hold the layer's keys twice.
            return stream if x is self.given else None if _is_cache(x) else x

        args = tuple(map(put, self.args))
        kwargs = {name: put(x) for name, x in self.kwargs.items()}
        with without_contexts():
            return first_call(lambda: self.layer.module.forward(*args, **kwargs))


@dataclass(eq=False)
class _State:
    """What a call of the model did so far."""

    running: list[_Running] = field(default_factory=list)
    embedded: Embedded = field(default_factory=Embedded)
    growing: dict[str, Growing] = field(default_factory=dict)


class Hearing:
    """Follows the parts of the residual stream for edits of what heads read of it.

    Parameters
    ----------
    context : Context
        The context of the edits.
    edits : sequence of Edit
        All of its edits.
    """

    def __init__(self, context: Context, edits: Sequence[Edit]) -> None:
        self._context = context
        self._edits = [edit for edit in edits if isinstance(edit, Without)]
        self._states: dict[Tracker, _State] = {}

    def __bool__(self) -> bool:
        return bool(self._edits)

    @contextmanager
    def watching(self, model: nn.Module) -> Iterator[None]:
        """Watch a model's modules."""
        layers = layers_of(model)
        self._names = {module: name for name, module in model.named_modules()}
        with (
            hooks_on((x for x in model.modules() if id(x) in layers), enter=self._enter),
            hooks_on(model.modules(), leave=self._leave),
        ):
            yield

    def begin(self, tracker: Tracker) -> None:
        """Begin a call of the model."""
        self._states[tracker] = _State()

    def end(self, tracker: Tracker) -> None:
        """Forget a call of the model."""
        self._states.pop(tracker, None)

    def wants(self, place: Place) -> bool:
        """Return whether a call writes what a later layer reads without it."""
        return not place.is_bipartite and any(
            (layers := edit.layers()) is None or place.layer < max(layers) for edit in self._edits
        )

    def see(self, call: SeenCall, place: Place, readings: Sequence[Reading]) -> None:
        """Note a call, until its layer ends."""
        state = self._state()
        self._check(call, place)
        if state is not None and state.running:
            state.running[-1].layer.seen = call, place, readings[0]

    def heard(self, edit: Without, call: SeenCall, place: Place) -> Heard:
        """Compute what a layer reads without the parts that an edit names."""
        state = self._state()
        self._check(call, place)
        if torch.is_grad_enabled() and call.query.requires_grad:
            raise EditError(
                f"{edit} takes parts of the stream as constants, which gradients would not go "
                "through: run the model under torch.no_grad()."
            )
        if state is None or not state.running or state.running[-1].given is None:
            raise EditError(f"{edit}: {call.name} is not in a layer that reads the stream.")
        running = state.running[-1]
        given = running.given
        assert given is not None
        stream = self._stream(state, place, given)
        stream.check(widened(given[0]), call.name)
        instead = given - _part(edit, stream, place).to(given.dtype)

        again, nested = (running.run_on(x) for x in (given, instead))
        if again is None or nested is None or again.key.shape != call.key.shape:
            raise EditError(
                f"{edit}: {call.name} does not route its attention through transformers' "
                "interface, or has a cache of its own, so what it would read is not known."
            )
        if not all(_are_close(getattr(again, side), getattr(call, side)) for side in SIDES):
            raise EditError(
                f"{edit}: run again on what its layer was given, {call.name} has other queries, "
                "keys or values. A hook on the layer changes what it is given, or chance does."
            )
        tensor = widened(taken(getattr(nested, edit.side), 2, place.keys[0]))
        groups = call.query.shape[1] // tensor.shape[1]
        tensor = tensor.repeat_interleave(groups, dim=1) if groups > 1 else tensor
        return Heard(repr(edit), edit.side, tensor, edit.layer, edit.head, edit.stack)

    def _stream(self, state: _State, place: Place, given: Tensor) -> Stream:
        """Return the stream before a layer."""
        if place.layer == 0:
            return state.embedded.stream(widened(given[0]))
        growing = state.growing.get(place.stack)
        if growing is None or growing.depth != place.layer:
            raise EditError(
                f"What wrote the stream before layer {place.layer} of {place.stack!r} is not known."
            )
        return growing.stream()

    @staticmethod
    def _check(call: SeenCall, place: Place) -> None:
        size = len(place.queries[0]) if place.queries else 0
        if len(call.query) > 1 or call.query.shape[2] != call.key.shape[2] or place.heads:
            raise EditError(
                f"Without needs one whole text at a time, but {call.name} takes "
                f"{len(call.query)} of {call.query.shape[2]} queries and {call.key.shape[2]} keys: "
                "run texts one by one, and with use_cache=False."
            )
        if size != call.query.shape[2]:
            raise EditError(
                f"Without needs a text without padding, but {call.name} takes "
                f"{call.query.shape[2]} slots for {size} tokens: run texts one by one."
            )
        if is_half(call.query):
            raise EditError(
                f"Without needs single precision, but {call.name} computes in {call.query.dtype}: "
                "try model.float()."
            )

    # What happens while the model runs

    def _state(self) -> _State | None:
        tracker = takes_part(self._context)
        return None if tracker is None else self._states.get(tracker)

    def _enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if (state := self._state()) is not None:
            given = first_of((*args, *kwargs.values()))
            layer = RunningLayer(module, None if given is None else given.clone())
            state.running.append(_Running(layer, given, args, kwargs))

    def _leave(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> None:
        if (state := self._state()) is None:
            return
        given, output = first_of((*args, *kwargs.values())), first_of(result)
        is_alone = len(args) + len(kwargs) == 1
        if not state.running:
            if isinstance(result, Tensor) and not any(True for _ in module.children()):
                known = given if is_alone else None
                state.embedded.note(self._names.get(module, ""), module, known, result)
            return
        if given is not None and output is not None:
            for one in state.running:
                one.layer.note(module, given, output, is_alone)
        if module is state.running[-1].layer.module:
            ended = state.running.pop()
            if ended.layer.seen is not None:
                with torch.no_grad():
                    self._end(state, ended.layer, output)
            if not state.running:
                state.embedded = Embedded()  # Those of an encoder are not the decoder's.

    @staticmethod
    def _end(state: _State, layer: RunningLayer, output: Tensor | None) -> None:
        part = layer.taken_apart(output)
        if part.layer == 0:
            state.growing[part.stack] = Growing(state.embedded.stream(part.residual))
        state.growing[part.stack].add(part)


def _are_close(one: Tensor, other: Tensor) -> bool:
    limit = tolerance(other) * float(other.abs().max()) if other.numel() else 0.0
    return one.shape == other.shape and bool(((one - other).abs() <= limit).all())


def _is_cache(x: Any) -> bool:
    return any(kind.__name__ == "Cache" for kind in type(x).__mro__)


def _part(edit: Without, stream: Stream, place: Place) -> Tensor:
    """Return the sum of the parts that an edit names: (tokens, dim)."""
    names = [str(one) for one in stream.writers]
    chosen: set[int] = set()
    for part in edit.parts:
        some = [n for n, name in enumerate(names) if name == part]
        if part == "embedding" and not some:
            some = [n for n, one in enumerate(stream.writers) if one.kind == "embedding"]
        if not some:
            raise EditError(
                f"{edit} names the part {part!r}, but what wrote the stream before layer "
                f"{place.layer} is {', '.join(names)}."
            )
        chosen |= set(some)
    vector = stream.parts[sorted(chosen)].sum(0)
    return vector - vector.mean(0) if edit.by == "mean" else vector
