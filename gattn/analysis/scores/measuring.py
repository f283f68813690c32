"""What the attention of a head is without a part, measured by running the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from gattn.analysis.scores.asked import AskedScores
from gattn.analysis.scores.removing import changes_without
from gattn.models.edit.applying import parts
from gattn.models.edit.hear.without import Without
from gattn.models.run.edit_context import Editing
from gattn.models.run.prompt import Prompt
from gattn.models.stream.writers.parts import Stream

if TYPE_CHECKING:
    from gattn.models.read.places import Place
    from gattn.models.read.reading import Reading
    from gattn.models.read.seen_call import SeenCall

SIDES: tuple[Literal["query", "key"], ...] = ("query", "key")
_COPIES = 32
"""How many parts are taken away at once, at most: each in a copy of the text."""


def measured_changes(
    made: AskedScores, prompt: Prompt, stream: Stream, count: int
) -> dict[tuple[str, int], float]:
    """Run the model without those parts whose predicted changes are largest, on either side.

    Returns the changes by side and the number of the writer.
    """
    at, own = list(made.query), len(stream.all_writers)
    edges = None if made.key is None else made.edges()[at]
    before = made.attention[at]
    chosen = [
        (side, writer)
        for side in SIDES
        for writer, _ in [one for one in changes_without(made, side, at, edges) if one[0] < own][
            :count
        ]
    ]
    tokens = len(made.tokens)
    size = max(min(_COPIES, prompt.most_copies(tokens, 1, 1 << 28)), 1) if prompt.repeats else 1
    found: dict[tuple[str, int], float] = {}
    for start in range(0, len(chosen), size):
        some = chosen[start : start + size]
        edits = [_edit(made, side, writer, stream) for side, writer in some]
        attending = _Attending(edits, made.stack, made.layer, made.head)
        with torch.no_grad():
            prompt.run(attending, len(some))
        attending.check()
        for number, name in enumerate(some):
            after = attending.found[number][at]
            found[name] = change(before, after, edges)
    return found


def change(before: Tensor, after: Tensor, edges: Tensor | None) -> float:
    """Return the change in attention (queries, keys): of some edges, or of what goes elsewhere."""
    if edges is None:
        return float((after - before).abs().sum(-1).mean() / 2)
    return float(((after - before) * edges).sum() / len(before))


def _edit(made: AskedScores, side: Literal["query", "key"], writer: int, stream: Stream) -> Without:
    part = {str(made.writers[writer]): stream.part(writer)}
    return Without(part, side, layer=made.layer, head=made.head, stack=made.stack)


class _Attending(Editing):
    """Edits copies of a text, and keeps the attention of one head in each."""

    def __init__(self, edits: Sequence[Without], stack: str, layer: int, head: int) -> None:
        super().__init__([[edit] for edit in edits])
        self._where, self._head = (stack, layer), head
        self.found: dict[int, Tensor] = {}

    def wants(self, place: Place) -> bool:
        """Return whether a call is the head's, or writes what it reads."""
        return (place.stack, place.layer) == self._where or super().wants(place)

    def see(self, call: SeenCall, place: Place, readings: list[Reading]) -> None:
        """Keep the attention of the head."""
        super().see(call, place, readings)
        if (place.stack, place.layer) != self._where:
            return
        for reading in readings:
            (part,) = parts(reading, [self._head])
            whole = part.dense()[:, 0].cpu().double()
            self.found.update(zip(reading.sequences, whole, strict=True))
