"""Finds the end of the text, from which edits count negative positions."""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from gattn.errors import EditError
from gattn.models.edit.base import Edit
from gattn.models.edit.where.tokens import counts_from_end
from gattn.models.hugging_face.generating import comes_in_chunks
from gattn.models.read.following import Progress
from gattn.models.read.places import Place
from gattn.models.read.track.tracking import Tracker

_IDS = ("decoder_input_ids", "input_ids")


class Ends:
    """The lengths of the texts that the model was first called with, for a context's edits.

    A text that grows token by token, with its cache, keeps its first end. If it grows in any other
    way, its end moves, and counting from it is refused.
    """

    def __init__(self, edits: Sequence[Sequence[Edit]]) -> None:
        self._counting = {
            id(edit)
            for some in edits
            for edit in some
            if any(counts_from_end(getattr(edit, side, None)) for side in ("query", "key"))
        }
        self._counts: WeakKeyDictionary[Progress, dict[tuple[str, str], dict[int, int]]] = (
            WeakKeyDictionary()
        )
        self._now: set[tuple[str, str]] = set()
        self._last: dict[str, Tensor] = {}
        self._grows: set[str] = set()

    def begin(self, tracker: Tracker) -> None:
        """Note that a call begins, and whether its text extends that of the last call."""
        self._now.clear()
        if not self._counting:
            return
        if comes_in_chunks(tracker.model):
            raise EditError(
                "An edit counts positions from the end, but the prompt comes in chunks "
                "(prefill_chunk_size): count from 0, or give the whole prompt in one call."
            )
        found = {name: tracker.progress.ids.get(name) for name in _IDS}
        known = {name: ids.detach().cpu() for name, ids in found.items() if ids is not None}
        last, self._last, self._grows = self._last, known, set()
        if not tracker.given.seen:
            both = known.keys() & last.keys()
            self._grows = {name for name in both if _goes_on(last[name], known[name])}

    def count(
        self, edit: Edit, place: Place, sequence: int, tracker: Tracker, side: str
    ) -> int | None:
        """Count the tokens of a sequence as it was first given; None if the edit does not ask."""
        if id(edit) not in self._counting:
            return None
        if place.is_part and place.sizes is not None:
            return place.sizes[side == "key"]
        of_decoder = place.stack == "decoder" or (place.stack == "cross" and side == "query")
        if (_IDS[0] if of_decoder and _IDS[0] in self._last else _IDS[1]) in self._grows:
            raise EditError(
                f"{edit} counts from the end, but the text grows from call to call without a "
                "cache, so that the end moves: count from 0, use the cache, or open a context for "
                "each call."
            )
        counts = self._counts_of(tracker.progress)
        known = counts.setdefault((place.stack, side), {})
        begins = all(not one.first or one.positions is not None for one in place.queries)
        is_step = all(len(one) <= 1 for one in place.queries)
        if begins and (place.stack, side) not in self._now:
            known.clear()
            for n, one in enumerate(place.queries if side == "query" else place.keys):
                at = place.sequences[n]
                known[at] = max(known.get(at, 0), one.end)
            self._now.add((place.stack, side))
        elif not begins and (not is_step or (place.stack, side) in self._now):
            known.clear()
        if known.keys() != set(place.sequences):
            raise EditError(
                f"{edit} counts from the end, but the text came in several calls of several "
                "tokens, so that the end of its prompt is not known: count from 0, or give the "
                "whole prompt in one call, and what comes after it token by token."
            )
        return known[sequence]

    def _counts_of(self, progress: Progress) -> dict[tuple[str, str], dict[int, int]]:
        """Return the counts of a call's texts, which are those of the texts that it continues."""
        if progress not in self._counts:
            origin = progress.origin
            known = {} if origin is None else self._counts.get(origin.progress, {})
            self._counts[progress] = {
                side: {row: some[n] for row, n in enumerate(origin.rows) if n in some}
                for side, some in known.items()
                if origin is not None
            }
        return self._counts[progress]


def _goes_on(last: Tensor, ids: Tensor) -> bool:
    """Return whether ids extend those of the last call."""
    width = last.shape[1]
    return (
        ids.shape[0] == last.shape[0] and ids.shape[1] > width and torch.equal(ids[:, :width], last)
    )
