"""Follows the parts of the residual stream while a model runs, for edits of what heads read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from gattn.errors import EditError
from gattn.models.doors.functions.calling.checkpoints import is_in_checkpoint
from gattn.models.edit.base import Edit
from gattn.models.edit.heard import Given, Heard, Hears, Removed
from gattn.models.read.places import Place
from gattn.models.read.seen_call import SeenCall
from gattn.models.read.track.tracking import Tracker
from gattn.models.run.hear.running import Running, check_call
from gattn.models.stream.adding.streams import RunningLayer
from gattn.models.stream.layers import first_of, layers_of
from gattn.models.stream.rows import Rows
from gattn.models.stream.writers.between import Between
from gattn.models.stream.writers.embeddings import Embedded
from gattn.models.stream.writers.parts import Growing, Stream
from gattn.models.watch.contexts import Context, takes_part
from gattn.models.watch.hooks import hooks_on
from gattn.models.watch.listening import Sides
from gattn.normalizers.base import widened


@dataclass(eq=False)
class _State:
    """What a call of the model did so far."""

    running: list[Running] = field(default_factory=list)
    embedded: Embedded = field(default_factory=Embedded)
    between: Between = field(default_factory=Between)
    growing: dict[str, Growing] = field(default_factory=dict)


class Hearing:
    """Follows the parts of the residual stream.

    Parameters
    ----------
    context : Context
        The context for which it does.
    wants : callable
        Says whether what a call writes to the stream is wanted.
    """

    def __init__(self, context: Context, wants: Callable[[Place], bool]) -> None:
        self._context, self._wants = context, wants
        self._states: dict[Tracker, _State] = {}

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
        """Return whether what a call writes to the stream is wanted."""
        return not place.is_bipartite and self._wants(place)

    def see(self, call: SeenCall, place: Place) -> None:
        """Note a call, until its layer ends."""
        state = self._state()
        if state is not None and state.running:
            state.running[-1].layer.seen = call, place, None

    def given(self) -> Tensor | None:
        """Return the stream that the running layer was given."""
        state = self._state()
        return None if state is None or not state.running else state.running[-1].given

    def stream(self, call: SeenCall, place: Place, rows: Rows) -> Stream:
        """Return the stream before the layer of a call, verified."""
        state = self._state()
        given = None if state is None or not state.running else state.running[-1].layer.given
        if state is None or given is None:
            raise EditError(f"{call.where} is not in a layer that reads the stream.")
        if place.layer == 0:
            whole = state.embedded.stream(given)
            found = Stream(whole.writers, whole.parts[:, rows.at])
        else:
            growing = state.growing.get(place.stack)
            if growing is None or growing.depth != place.layer:
                raise EditError(
                    f"What wrote the stream before layer {place.layer} of {place.stack!r} is not "
                    "known."
                )
            growing.pass_on(widened(rows.of(given)), rows.at, state.between)
            found = growing.stream()
        found.check(rows.of(given), call.name, call.output)
        return found

    def heard(
        self, edits: Sequence[Sequence[Edit]], call: SeenCall, place: Place
    ) -> dict[int, Heard]:
        """Compute what a layer reads, by the ids of those edits that change it.

        `edits` are those of each sequence; each of them may hear another stream.
        """
        each = [[edit for edit in some if isinstance(edit, Hears)] for some in edits]
        known = {id(edit): edit for some in each for edit in some}
        if not known:
            return {}
        state, first = self._state(), next(iter(known.values()))
        running = state.running[-1] if state is not None and state.running else None
        check_call(first, call, place, self.given())
        assert running is not None
        if is_in_checkpoint():
            raise EditError(
                f"{first} needs the parts of the stream where the backward pass computes a layer "
                "again, and they are gone then: run the model without checkpointing."
            )
        rows = Rows(place, call.query.shape[2], call.query.device)
        stream, count = self.stream(call, place, rows), call.query.shape[1]
        assert state is not None
        if (earlier := state.growing.get(place.stack)) is not None and earlier.adds_first:
            raise EditError(
                f"{first}: layers of {place.stack!r} add to the stream before their attention, as "
                "Conformers do, and without the part they would add something else. Use edits of "
                "attention such as Cut, Scale, Patch and Ablate."
            )
        removed = {name: edit.removed(stream, rows, count) for name, edit in known.items()}
        for name, edit in known.items():
            _check_sides(edit, removed[name], call, rows)
        lists = [[one for edit in some for one in removed[id(edit)]] for some in each]
        nested = running.without(lists, call, rows, repr(first))
        return {
            name: Heard(repr(edit), tuple(_given(edit, removed[name], each, removed, nested)))
            for name, edit in known.items()
        }

    def _state(self) -> _State | None:
        tracker = takes_part(self._context)
        return None if tracker is None else self._states.get(tracker)

    # What happens while the model runs

    def _enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if (state := self._state()) is not None:
            state.running.append(Running(RunningLayer(module, args, kwargs)))

    def _leave(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> None:
        if (state := self._state()) is None:
            return
        if not state.running:
            if isinstance(result, Tensor) and not any(True for _ in module.children()):
                is_alone = len(args) + len(kwargs) == 1
                known = first_of((*args, *kwargs.values())) if is_alone else None
                state.embedded.note(self._names.get(module, ""), module, known, result)
                state.between.note(module, args, kwargs, result)
            return
        for one in state.running:
            one.layer.note(module, args, kwargs, result)
        if module is state.running[-1].layer.module:
            ended = state.running.pop()
            if ended.layer.seen is not None:
                device = ended.layer.seen[0].query.device.type
                with torch.autocast(device, enabled=False):
                    self._end(state, ended.layer, first_of(result))
            if not state.running:
                state.embedded = Embedded()  # Those of an encoder are not the decoder's.
                state.between = Between()

    @staticmethod
    def _end(state: _State, layer: RunningLayer, output: Tensor | None) -> None:
        part = layer.taken_apart(output)
        assert layer.seen is not None
        assert layer.given is not None
        call, place, _ = layer.seen
        rows = Rows(place, call.query.shape[2], layer.given.device)
        if part.layer == 0:
            whole = state.embedded.stream(layer.given)
            state.growing[part.stack] = Growing(Stream(whole.writers, whole.parts[:, rows.at]))
        state.growing[part.stack].pass_on(part.start, rows.at, state.between)
        state.growing[part.stack].add(part)


def _check_sides(edit: Hears, removed: Sequence[Removed], call: SeenCall, rows: Rows) -> None:
    """Refuse keys of tokens whose stream is not at hand."""
    sides = {side for one in removed for side, _ in one.ends}
    if not rows.are_whole and sides - {"query"}:
        raise EditError(
            f"{edit}: {call.where} continues a cache, whose keys and values were computed with all "
            "parts of the stream, and the streams of those tokens are gone: run the whole text "
            "with use_cache=False. With a cache only queries can be edited."
        )


def _given(
    edit: Hears,
    removed: Sequence[Removed],
    each: Sequence[Sequence[Hears]],
    of: dict[int, list[Removed]],
    nested: Sequence[Sides],
) -> Iterator[Given]:
    """Take what an edit puts in from the runs, of which each sequence has its own order."""
    before = []
    for some in each:
        names = [id(one) for one in some]
        at = names.index(id(edit)) if id(edit) in names else None
        before.append(None if at is None else sum(len(of[name]) for name in names[:at]))
    for n, one in enumerate(removed):
        runs = [0 if first is None else first + n for first in before]
        for side, heads in one.ends:
            tensors = [getattr(run, side) for run in nested]
            if len(set(runs)) == 1:
                vectors = tensors[runs[0]]
            else:
                vectors = torch.stack([tensors[run][row] for row, run in enumerate(runs)])
            yield Given(side, heads, vectors)
