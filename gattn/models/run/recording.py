"""Records what the calls of a model attend to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from gattn.edit_records import union
from gattn.errors import CaptureError
from gattn.heads.trace import AttentionTrace
from gattn.models.doors.graphs.messages import Messages
from gattn.models.load.loading import model_name
from gattn.models.load.training import refuse_training
from gattn.models.read.places import Place
from gattn.models.read.reading import Reading
from gattn.models.read.seen_call import SeenCall
from gattn.models.read.track.tracking import Tracker
from gattn.models.run.edges_of_calls import EdgesOfCalls
from gattn.models.run.editing import open_edits
from gattn.models.run.names.growing import namings_of
from gattn.models.run.names.naming import Naming
from gattn.models.run.options import Options
from gattn.models.run.record.predictions import shift_of
from gattn.models.run.record.projections import Projections
from gattn.models.run.record.recorded import trace_of
from gattn.models.run.record.refusing import nothing_seen
from gattn.models.run.record.sequences import Sequences
from gattn.models.watch.calls import Calls
from gattn.models.watch.contexts import Context, takes_part, tracker_of
from gattn.names.choices import no_such

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from gattn.models.edit.base import Edit


class Recording(Context):
    """What the calls of a model attended to, while a context was open; see `capturing`."""

    def __init__(
        self,
        model: nn.Module,
        tokenizer: PreTrainedTokenizerBase | None,
        options: Options,
        *,
        keeps_logits: bool = False,
        naming: Naming | None = None,
    ) -> None:
        # The model itself may go when the context closes.
        self._kind, self._name, self._tokenizer = type(model).__name__, model_name(model), tokenizer
        self._options, self._keeps_logits = options, keeps_logits
        self._shift = shift_of(model)
        self._predicts_next = keeps_logits and self._shift == 1
        self._naming = naming or Naming()
        self._projections, self._messages = Projections(self), Messages(self)
        self._sequences = Sequences()
        self._edges = EdgesOfCalls(
            self._name, options, self._sequences, self._projections, self._messages
        )
        self._lock = Lock()
        self._depth: dict[str, int] = {}
        self._was_called = self._broke = self._is_finished = False
        self._traces: list[AttentionTrace] = []

    def __repr__(self) -> str:
        count = len(self._sequences.whole)
        return f"Recording({self._kind}, {count} sequence{'s' * (count != 1)})"

    @contextmanager
    def watching(self, model: nn.Module) -> Iterator[None]:
        """Watch output projections and messages, where contributions are wanted."""
        wanted = self._options.contributions
        projections = self._projections.open(model, wanted is True)
        with projections, self._messages.open(model, wanted == "value"):
            yield

    # What happens while the model runs

    def begin(self, tracker: Tracker) -> None:
        """Refuse a model whose attention is random, and find what a call continues."""
        refuse_training(tracker.model)
        self._was_called = True
        self._sequences.begin(tracker)

    def broke(self, tracker: Tracker) -> None:
        """Undo what a call that broke off has added to traces."""
        self._broke = True
        self._projections.forget(tracker)
        self._messages.forget(tracker)
        self._sequences.broke(tracker)

    def wants(self, place: Place) -> bool:
        """Return whether a layer was chosen."""
        return self._options.chosen.has_layer(place.layer)

    def ignores(self, place: Place) -> bool:
        """Return whether a call matters neither for itself nor for what later tokens tell."""
        return not (self._predicts_next or self.wants(place))

    def edits(self, call: SeenCall, place: Place, tracker: Tracker) -> list[Sequence[Edit]]:
        """Note how far tokens read ahead, also in layers that were not chosen; edit nothing."""
        if self._predicts_next and tracker.is_calling:
            self._sequences[tracker].ahead.begins(call, place, tracker)
        return []

    def met(self, readings: Sequence[Reading], tracker: Tracker) -> None:
        """Note how far tokens read ahead in an edited call."""
        if self._predicts_next and tracker.is_calling:
            self._sequences[tracker].ahead.is_edited(readings)

    def see(self, call: SeenCall, place: Place, readings: list[Reading]) -> None:
        """Keep the edges of a call."""
        self._edges.see(call, place, readings, tracker_of(self))

    def end(self, tracker: Tracker, result: Any) -> None:
        """Note the tokens and the logits of a call."""
        self._projections.check(tracker)
        self._messages.check(tracker)
        now = self._sequences.end(tracker)
        with self._lock:
            for stack, layers in tracker.layers.depth.items():
                self._depth[stack] = max(self._depth.get(stack, 0), layers)
        if now.run is None:
            return
        for number, sequence in enumerate(now.run):
            sequence.edits = union((sequence.edits, open_edits(tracker.model, number)))
        logits = getattr(result, "logits", None) if self._keeps_logits else None
        if not isinstance(logits, Tensor) or logits.dim() not in (2, 3):
            logits = None
        # Multiple choice models give one row for all choices of a text.
        logits = None if logits is None or len(logits) != tracker.given.batch.size else logits
        are_last = isinstance(tracker.given.kept_logits, int | None)
        for number, sequence in enumerate(now.run):
            is_named = self._tokenizer is not None or not tracker.needs_tokenizer
            for stack in tracker.layers.depth if is_named else ():
                sequence.ids[stack, False] = tracker.tokens.ids(stack, number)
                if stack == "cross":
                    sequence.ids[stack, True] = tracker.tokens.ids(stack, number, is_query=True)
            if self._naming.tokens is not None:
                sequence.read = tracker.read(number)
            for stack in tracker.layers.depth:
                if segments := tracker.tokens.segments(stack, number):
                    sequence.segments[stack] = segments
            sequence.fed = tracker.tokens.fed(number)
            if logits is not None and number < len(logits):
                some = tracker.tokens.real_rows(logits[number].detach(), number)
                sequence.logits.append((some, sequence.length if are_last else -1))

    def search(self, tracker: Tracker) -> None:
        """Note which sequences a search runs."""
        self._sequences.search(tracker)

    def returned(self, tracker: Tracker, sequences: Tensor, prompts: Tensor, beams: int) -> None:
        """Keep only the sequences that a search returned."""
        self._sequences.returned(tracker, sequences, prompts, beams)

    # What was recorded

    def finish(self, calls: Calls | None = None) -> None:
        """Check that attention was seen, and every chosen layer; `calls` say why none was."""
        if not self._depth:
            others = (calls.unfollowed, calls.learned, calls.weighing) if calls else ()
            raise CaptureError(nothing_seen(self._kind, self._was_called, self._broke, *others))
        depth = max(self._depth.values())
        if missing := set(self._options.chosen.layers or ()) - set(range(depth)):
            raise no_such("layer", min(missing), depth, "the model")
        self._is_finished = True

    @property
    def traces(self) -> list[AttentionTrace]:
        """The trace of each sequence that ran, in order; the same ones once the context closed."""
        if self._traces:
            return list(self._traces)
        takes_part(self)  # To forget a call that broke off.
        sequences = self._sequences.whole
        encodings = self.encodings
        made = [
            trace_of(
                one, self._name, encodings[n] if encodings else None, self._tokenizer, self._shift
            )
            for n, one in enumerate(sequences)
        ]
        namings = namings_of(self._naming, sequences, made)
        every = {stack for trace in made for stack in trace.stacks} if self._is_finished else None
        found = [
            naming.applied(trace, one.grids, number, unnamed=one.unnamed, own=one.own, others=every)
            for one, trace, (naming, number) in zip(sequences, made, namings, strict=True)
        ]
        if self._is_finished and (wrong := self._naming.surplus(len(sequences))):
            raise CaptureError(f"{wrong}.")
        if self._is_finished:
            self._traces = found
        return list(found)

    @property
    def trace(self) -> AttentionTrace:
        """The trace of the one sequence that ran.

        Raises
        ------
        CaptureError
            If none ran, or several.
        """
        traces = self.traces
        if not traces:
            raise CaptureError("No sequence ran: call the model within the context.")
        if len(traces) != 1:
            raise CaptureError(
                f"{len(traces)} sequences ran within the context; run.traces lists their traces."
            )
        return traces[0]
