"""Records what wrote to the residual stream on other texts."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from gattn.errors import CaptureError, EditError
from gattn.models.edit.hear.parts import Parts
from gattn.models.read.places import Place
from gattn.models.read.reading import Reading
from gattn.models.read.seen_call import SeenCall
from gattn.models.read.track.tracking import Tracker
from gattn.models.run.functions import prepared
from gattn.models.run.hear.hearing import Hearing
from gattn.models.run.hear.running import check_call
from gattn.models.stream.rows import Rows
from gattn.models.stream.writers.parts import Stream
from gattn.models.watch.contexts import Context, without_contexts

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def parts_of(text: Any, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None) -> Parts:
    """Run a model on a text, and record the parts of the stream before each layer."""
    recording = _Recording()
    with torch.no_grad(), without_contexts():
        prepared(text, model, tokenizer).run(recording)
    return Parts(f"{text!r:.60}", text, recording.found)


def mean_parts(given: Sequence[Any], each: Sequence[Parts]) -> Parts:
    """Take the mean of what each writer wrote, over all positions of several texts."""
    found = {}
    for stack, layer in each[0].found:
        streams = [one.before(stack, layer) for one in each]
        writers = streams[0].writers
        if any(one.writers != writers for one in streams):
            raise EditError(f"What writes the stream before layer {layer} differs between texts.")
        mean = torch.cat([one.parts for one in streams], 1).mean(1, keepdim=True)
        found[stack, layer] = Stream(writers, mean)
    said = f"the mean over {len(each)} text{'s' * (len(each) != 1)}"
    return Parts(said, given, found, is_mean=True)


class _Recording(Context):
    """Records the parts of the stream before each layer, of one sequence."""

    reads_one_call = True

    def __init__(self) -> None:
        self._hearing = Hearing(self, lambda place: True)
        self.found: dict[tuple[str, int], Stream] = {}

    def watching(self, model: nn.Module) -> AbstractContextManager[None]:
        """Watch the residual stream."""
        return self._hearing.watching(model)

    def begin(self, tracker: Tracker) -> None:
        """Begin a call of the model."""
        self._hearing.begin(tracker)

    def end(self, tracker: Tracker, result: Any) -> None:
        """End a call of the model."""
        self._hearing.end(tracker)

    def broke(self, tracker: Tracker) -> None:
        """End a call of the model."""
        self._hearing.end(tracker)

    def wants(self, place: Place) -> bool:
        """Look at all calls of self-attention."""
        return self._hearing.wants(place)

    def see(self, call: SeenCall, place: Place, readings: list[Reading]) -> None:
        """Record what wrote the stream before a call."""
        rows = Rows(place, call.query.shape[2], call.query.device)
        if len(place.queries) != 1 or not rows.are_whole:
            raise CaptureError(
                f"{call.where} attends in {len(place.queries)} sequences, or continues a cache: "
                "parts are taken from one whole text."
            )
        self._hearing.see(call, place)
        check_call("What wrote the stream", call, place, self._hearing.given())
        order = rows.position.argsort()
        stream = self._hearing.stream(call, place, rows)
        parts = stream.parts[:, order]
        # Where norms do not turn the stream, earlier layers have a part of the same tensor.
        for name, known in self.found.items():
            some = parts[: len(known.parts)]
            if name[0] == place.stack and torch.equal(known.parts, some):
                self.found[name] = Stream(known.writers, some)
        self.found[place.stack, place.layer] = Stream(stream.writers, parts)
