"""Knows the sequences that were recorded, and finds those that a call continues."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from threading import Lock
from weakref import WeakKeyDictionary

from torch import Tensor

from gattn.models.read.following import Origin, Progress
from gattn.models.read.places import Place
from gattn.models.read.track.tracking import Tracker
from gattn.models.run.record.recorded import RecordedLayer, RecordedSequence
from gattn.models.run.record.searched import sequence_returned
from gattn.models.watch.reading_ahead import ReadingAheadOfCall


@dataclass(eq=False)
class RecordedCall:
    """A call of the model: the sequences that it continues, and how to undo what it adds.

    Whether it `goes_on` with a cache of the model's own, and how far tokens read `ahead`, is found
    as it runs.
    """

    progress: Progress
    goes_on: bool = False
    run: list[RecordedSequence] | None = None
    generates: bool = False
    is_whole: bool = False
    ahead: ReadingAheadOfCall = field(default_factory=ReadingAheadOfCall)
    undo: dict[object, Callable[[], object]] = field(default_factory=dict)


class Sequences:
    """The recorded sequences, in order, and the calls that add to them.

    Calls may run in several threads, and within each other; one that breaks off leaves everything
    as it was before.
    """

    def __init__(self) -> None:
        self._all: list[RecordedSequence] = []
        self._calls: WeakKeyDictionary[Tracker, RecordedCall] = WeakKeyDictionary()
        self._run_of: WeakKeyDictionary[Progress, list[RecordedSequence]] = WeakKeyDictionary()
        self._searched: WeakKeyDictionary[Tracker, list[RecordedSequence]] = WeakKeyDictionary()
        self._lock = Lock()

    def __getitem__(self, tracker: Tracker) -> RecordedCall:
        return self._calls[tracker]

    @property
    def whole(self) -> list[RecordedSequence]:
        """The sequences, except those of calls that have not ended."""
        with self._lock:
            running = self._running()
            return [one for one in self._all if one not in running]

    def _running(self) -> list[RecordedSequence]:
        calls = [call for call in self._calls.values() if not call.is_whole]
        return [one for call in calls for one in call.run or ()]

    def begin(self, tracker: Tracker) -> None:
        """Find the sequences that a call continues."""
        now = RecordedCall(tracker.progress)
        with self._lock:
            running = self._running()
            self._calls[tracker] = now
            self._go_on(now, tracker.given.seen, running)
            self._touch(tracker, now.run or ())

    def broke(self, tracker: Tracker) -> None:
        """Undo what a call that broke off has added."""
        with self._lock:
            now = self._calls.pop(tracker, None)
            for forget in reversed(now.undo.values() if now else ()):
                forget()

    def end(self, tracker: Tracker) -> RecordedCall:
        """Note that a call ended, so that nothing of it is undone, and how far its tokens read."""
        with self._lock:
            now = self._calls[tracker]
            now.is_whole = True
            now.undo.clear()
        for stack, every in now.ahead.stacks.items():
            for number, one in enumerate(now.run or ()):
                if number in every:
                    one.note_ahead(stack, every[number].past)
        return now

    def begin_anew(self, tracker: Tracker) -> None:
        """Let a call begin new sequences."""
        with self._lock:
            self._run(self._calls[tracker], [])

    def extend(self, tracker: Tracker, count: int) -> list[RecordedSequence]:
        """Begin further sequences of a call until there are `count`; give all of its sequences."""
        now = self._calls[tracker]
        run = now.run
        assert run is not None
        if len(run) >= count:
            return run
        with self._lock:
            for row in range(len(run), count):
                more = RecordedSequence(now.progress, row)
                now.undo[id(more)] = partial(run.remove, more)
                run.append(more)
                self._list(now, more)
                self._touch(tracker, [more])
        return run

    def go_on(self, tracker: Tracker, place: Place) -> None:
        """Take over the sequences that a call was found to continue, at a place in them.

        One that goes on, or that another row continues, is copied. What the call read before, such
        as an image, replaces what earlier calls read there.
        """
        with self._lock:
            now, running = self._calls[tracker], self._running()
            fresh, now.run = now.run or [], None
            now.progress, now.goes_on = tracker.progress, True
            origin = now.progress.origin
            known = None if origin is None else self._run_of.get(origin.progress)
            if origin is None or known is None or len(known) <= max(origin.rows):
                now.run = fresh or None
                return
            found: list[RecordedSequence] = []
            for row, number in enumerate(origin.rows):
                one, at = known[number], place.queries[place.sequences.index(row)].first
                layer = one.layers.get(place.stack, {}).get(place.layer)
                is_free = number not in origin.rows[:row] and one not in running
                if not is_free or (layer is not None and layer.queries > at):
                    one = one.copied()
                    self._list(now, one, found[-1] if found else None)
                else:
                    now.undo[id(one), "owner"] = partial(_own, one, one.owner, one.row)
                _own(one, now.progress, row)
                found.append(one)
            for one, read in zip(found, fresh, strict=False):
                for stack, layers in read.layers.items():
                    self._replace_layers(now, one, stack, layers)
            self._all[:] = [one for one in self._all if one not in fresh]
            self._touch(tracker, found)
            self._run(now, found)

    def forget(self, tracker: Tracker, place: Place) -> None:
        """Forget a layer that a call reads anew, beside the texts that it continues."""
        now = self._calls[tracker]
        for one in now.run or ():
            layers = one.layers.get(place.stack, {})
            left = {n: layer for n, layer in layers.items() if n != place.layer}
            self._replace_layers(now, one, place.stack, left)

    def _replace_layers(
        self, now: RecordedCall, one: RecordedSequence, stack: str, layers: dict[int, RecordedLayer]
    ) -> None:
        before = one.layers.get(stack)

        def go_back() -> None:
            if before is None:
                one.layers.pop(stack, None)
            else:
                one.layers[stack] = before

        now.undo.setdefault((id(one), stack, "read"), go_back)
        one.layers[stack] = layers

    def _run(self, now: RecordedCall, run: list[RecordedSequence]) -> None:
        before = self._run_of.get(now.progress)
        if before is None:
            now.undo.setdefault("run", partial(self._run_of.pop, now.progress, None))
        else:
            now.undo.setdefault("run", partial(self._run_of.__setitem__, now.progress, before))
        self._run_of[now.progress] = now.run = run

    def _go_on(self, now: RecordedCall, seen: int, running: list[RecordedSequence]) -> None:
        """Find the sequences that a call continues, each cropped to where it does so.

        Sequences that nothing else continues are taken over; others are copied.
        """
        progress, run = now.progress, self._run_of.get(now.progress)
        source = Origin(progress, list(range(len(run or ()))), True)
        if run is None and progress.origin is not None:
            source = progress.origin
            run = self._run_of.get(source.progress)
        if run is None or (seen and len(run) <= max(source.rows, default=-1)):
            return
        if source.progress is progress and not seen:
            now.run = run
            return
        found: list[RecordedSequence] = []
        for row, number in enumerate(source.rows):
            if number >= len(run):
                found.append(RecordedSequence(progress, row))
                self._list(now, found[-1], found[-2] if row else None)
                continue
            sequence, length = run[number], progress.tokens(row, seen)
            surplus = 0 if length is None else max(sequence.length - length, 0)
            is_free = number not in source.rows[:row] and sequence not in running
            is_free &= not surplus or (source.is_own and sequence.owner is source.progress)
            if surplus or not is_free:
                tokens = sequence.length if length is None else min(length, sequence.length)
                after = sequence if is_free else found[-1] if found else None
                sequence = sequence.first(tokens)
                self._list(now, sequence, after, instead=is_free)
            else:
                undo = partial(_own, sequence, sequence.owner, sequence.row)
                now.undo[id(sequence), "owner"] = undo
                if sequence not in self._all:
                    self._list(now, sequence)
            _own(sequence, progress, row)
            found.append(sequence)
        if not seen:  # Encoded texts are listed in the order of their decoder.
            before = [one for one in self._all if one in found]
            self._arrange(found)
            now.undo["order"] = partial(self._arrange, before)
        self._run(now, found)

    def _list(
        self,
        now: RecordedCall,
        sequence: RecordedSequence,
        after: RecordedSequence | None = None,
        *,
        instead: bool = False,
    ) -> None:
        """List a sequence after another or instead of it; last, if that one is not listed."""
        listed = self._all
        place = listed.index(after) + 1 if after in listed else len(listed)
        start = place - 1 if instead and after in listed else place
        before, listed[start:place] = listed[start:place], [sequence]
        now.undo[id(sequence), "listed"] = partial(self._unlist, sequence, before)

    def _arrange(self, order: list[RecordedSequence]) -> None:
        """Put some listed sequences into an order, within the places that they have."""
        known = [one for one in order if one in self._all]
        places = sorted(self._all.index(one) for one in known)
        for place, one in zip(places, known, strict=True):
            self._all[place] = one

    def _unlist(self, sequence: RecordedSequence, before: list[RecordedSequence]) -> None:
        if sequence in self._all:
            place = self._all.index(sequence)
            self._all[place : place + 1] = before

    # Searches, which run more than they return

    def search(self, tracker: Tracker) -> None:
        """Note which sequences a search runs."""
        with self._lock:
            self._searched[tracker] = []

    def _touch(self, tracker: Tracker, run: Iterable[RecordedSequence]) -> None:
        """Note that a search runs some sequences."""
        searched = self._searched.get(tracker)
        if searched is not None:
            searched += [one for one in run if one not in searched]

    def returned(self, tracker: Tracker, sequences: Tensor, prompts: Tensor, beams: int) -> None:
        """Of the sequences that a search ran, keep those it returned, without their last token."""
        with self._lock:
            run = self._searched.pop(tracker, [])
            texts = max(len(prompts) // beams, 1)
            share = max(len(sequences) // texts, 1)
            chosen = []
            for number, ids in enumerate(sequences.cpu()):
                of_text = [one for one in run if one.row // beams == number // share]
                best, prompt, tokens = sequence_returned(of_text, ids, prompts.shape[1])
                chosen.append(best.first(tokens))
                chosen[-1].generate_after(prompt)
                if beams == 1:  # The cache that is left continues from here.
                    self._replace(best, chosen[-1])
            places = [n for n, one in enumerate(self._all) if one in run]
            start = places[0] if places else len(self._all)
            self._all[start:start] = chosen
            self._all[:] = [one for one in self._all if one not in run]

    def _replace(self, old: RecordedSequence, new: RecordedSequence) -> None:
        """Let whatever continues a sequence continue another."""
        for known in self._run_of.values():
            known[:] = [new if one is old else one for one in known]


def _own(sequence: RecordedSequence, owner: Progress, row: int) -> None:
    sequence.owner, sequence.row = owner, row
