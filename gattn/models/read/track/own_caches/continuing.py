"""Finds which texts a call continues: in each layer, the keys before its own must be theirs.

What each layer has read is noted, one number per key. In a later call, the keys before those of its
own tokens must be the same, one by one, as those of a text in that layer, perhaps rounded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from gattn.errors import CaptureError
from gattn.models.read.following import Memory, Origin, Progress, Row
from gattn.models.read.layouts import Layout
from gattn.models.read.places import Place, Side, all_real
from gattn.models.read.seen_call import SeenCall
from gattn.models.read.track.own_caches.keys import OwnKeys, are_those, codes_of, few_of
from gattn.models.read.track.own_caches.refusing import (
    SEVERAL_PARTS,
    moved,
    other,
    too_early,
    unknown,
)
from gattn.models.read.track.own_caches.steps import Begun, Step, sides_of, steps_as
from gattn.models.read.track.own_caches.texts import Name, OwnCaches


class Continuing:
    """Which texts the present call of a model continues, if it does: the first cached layer tells.

    Parameters
    ----------
    caches : OwnCaches
        What earlier calls have read.
    progress : Progress
        What is known of the call's texts; another one once it is found which they continue.
    """

    def __init__(self, caches: OwnCaches, progress: Progress) -> None:
        self._caches, self.progress = caches, progress
        self._runs: Counter[tuple[str, int]] = Counter()
        self._sides: dict[Name, tuple[list[Side], list[Side]]] = {}
        self._anew: set[str] = set()
        self._source: Progress | None = None
        self._steps: list[Step] = []
        self._length = 0
        self._others: list[tuple[Progress, list[Step]]] = []
        self._queries: list[Side] = []

    @property
    def has_begun(self) -> bool:
        """Whether the call is known to continue texts."""
        return self._source is not None

    @property
    def rows(self) -> list[int]:
        """Which text each sequence of the call continues, by its row in an earlier call."""
        return [step.row for step in self._steps]

    def name(self, module: str, part: int) -> Name:
        """Name a layer by its module, and count the module's runs in this call."""
        number = self._runs[module, part]
        self._runs[module, part] += 1
        return module, part, number

    def memory(self, module: str, part: int) -> Memory | None:
        """Return what the next call of a layer reads beside the text that it continues, if known.

        None, too, if what reads it are other tokens than the text's, such as latent ones.
        """
        name = module, part, self._runs[module, part]
        found = None if self._source is None else self._source.memories.get(name)
        return found if found is not None and self._asks(found) else None

    def _asks(self, memory: Memory) -> bool:
        return all(memory.asked == step.stop for step in self._steps)

    def queries(
        self, call: SeenCall, name: Name, codes: Tensor, layout: Layout
    ) -> list[Side] | None:
        """Return the queries of a step that read a memory again; None if they read it anew."""
        known = None if self._source is None else self._source.memories.get(name)
        asked = call.query.shape[2]
        is_step = known is not None and self._asks(known) and asked == self._length
        if known is not None and is_step:
            rows = self.rows
            is_same = len(codes) == len(rows) and known.codes.shape[1:] == codes.shape[1:]
            if not is_same or not bool(are_those(known.codes[rows], codes).all()):
                raise CaptureError(moved(call, self._caches.have_read(name, codes)))
            asked += known.asked
        self.progress.memories[name] = Memory(codes, layout, asked)
        return self._queries if is_step else None

    def met(self, call: SeenCall, module: str) -> None:
        """Note the keys of a layer's last call, which has begun before they were known."""
        name, few = (module, call.part, self._runs[module, call.part] - 1), few_of(call)
        if name in self.progress.layers:
            real = [row.real for row in self.progress.layers[name]]
            self.progress.layers[name] = list(map(Row, codes_of(few), real))
        if (memory := self.progress.memories.get(name)) is not None:
            self.progress.memories[name] = memory._replace(codes=codes_of(few))

    def again(self, name: Name) -> tuple[list[Side], list[Side]] | None:
        """Return both sides of a layer that runs again, as gradient checkpointing makes it."""
        return self._sides.get((*name[:2], 0))

    def sides(
        self, call: SeenCall, name: Name, stack_of: Callable[[], str], keys: OwnKeys
    ) -> tuple[list[Side], list[Side]] | None:
        """Return both sides of a layer's call; None if it reads keys of no text that is known.

        `stack_of` names its stack, as one of self-attention.
        """
        may_begin = keys.length < keys.size and not self.has_begun
        found = self._caches.find(name, keys) if may_begin else []
        if not found and not self.has_begun and keys.others_are_read:
            if self._caches.known(name):
                raise CaptureError(unknown(call))
            return None
        stack = stack_of()
        if found:
            self._begin(call, stack, keys, found)
        rows, steps = self._rows_before(call, name, stack, keys)
        self.progress.real.pop(stack, None)
        goes_on = steps is not None
        if steps is None:
            self._anew.add(stack)
            if keys.are_all:
                return self._whole(name, stack, keys)
            rows = [Row(keys.codes[0, :0], torch.ones(0, dtype=torch.bool, device="cpu"))]
            steps = [Step(0, 0, torch.arange(0, device="cpu"))] * len(keys.slots)
        sides = [sides_of(keys, n, rows[step.row], step) for n, step in enumerate(steps)]
        after = [row for _, _, row in sides]
        self.progress.layers[name] = after
        if len({len(row.real) for row in after}) == 1:
            self.progress.real[stack] = torch.stack([row.real for row in after])
        self._sides[name] = [one for one, _, _ in sides], [one for _, one, _ in sides]
        if goes_on:
            self._queries = self._sides[name][0]
        return self._sides[name]

    def _whole(self, name: Name, stack: str, keys: OwnKeys) -> tuple[list[Side], list[Side]]:
        """Return both sides of a call whose slots are all tokens of texts that begin with them."""
        self.progress.layers[name] = Begun(keys.few, keys.real)
        self.progress.real[stack] = keys.real
        whole = [Side(keys.slots[0], 0)] * len(keys.slots)
        self._sides[name] = whole, whole
        return whole, whole

    def begin_whole(self, name: Name, place: Place) -> Tensor:
        """Note a call of whole texts that nothing continues; return which slots are tokens."""
        self._anew.add(place.stack)
        self._sides[name] = place.queries, place.keys
        return all_real(len(place.sequences), len(place.queries[0]))

    def _rows_before(
        self, call: SeenCall, name: Name, stack: str, keys: OwnKeys
    ) -> tuple[Sequence[Row], list[Step] | None]:
        """Return what a layer has read, and how its call continues that; None if it does not."""
        if self._source is None:
            return [], None
        rows = self._source.layers.get(name, [])
        steps = steps_as(rows, keys, self._steps) if rows else None
        if steps is None and keys.others_are_read:
            raise CaptureError(other(call))
        if steps is None and stack in self.progress.cached | self._local(rows, stack, keys):
            steps = [
                Step(step.row, step.stop, torch.arange(0, device="cpu")) for step in self._steps
            ]
        if steps is not None:
            self._check_order(call, stack)
            self.progress.cached.add(stack)
            self._others = [
                (one, its)
                for one, its in self._others
                if name in one.layers and steps_as(one.layers[name], keys, its) is not None
            ]
        return rows, steps

    def _local(self, rows: Sequence[Row], stack: str, keys: OwnKeys) -> set[str]:
        """Return the stack of a call that reads only its own tokens, if they are the text's.

        Otherwise they are tokens that it reads anew in each call, as those of an encoder.
        """
        ends = keys.length == self._length and len(rows) > max(step.row for step in self._steps)
        if not ends or any(len(rows[step.row].codes) != step.stop for step in self._steps):
            return set()
        is_same = len(rows) == len(keys.slots) and all(
            torch.equal(row.codes, keys.codes[n, own])
            for n, (row, own) in enumerate(zip(rows, keys.slots, strict=True))
        )
        return set() if is_same else {stack}

    def _begin(
        self,
        call: SeenCall,
        stack: str,
        keys: OwnKeys,
        found: list[tuple[Progress, list[Step]]],
    ) -> None:
        """Note which texts the call continues."""
        self._check_order(call, stack)
        self._source, self._steps = found[0]
        self._length = keys.length
        for its_name, memory in self.progress.memories.items():
            its = self._source.memories.get(its_name)
            if its is not None and self._asks(its) and memory.asked == self._length:
                raise CaptureError(too_early(call, its_name[0]))
        where = _positions(self._steps)
        self._others = [(one, steps) for one, steps in found[1:] if _positions(steps) != where]
        rows = self.rows
        before, self.progress = (
            self.progress,
            Progress(
                cached={stack},
                origin=Origin(self._source, rows, False),
                layers=self.progress.layers,
            ),
        )
        self.progress.real.update(before.real)
        stops = {step.stop for step in self._steps}
        for side, ids in before.ids.items():
            known = self._source.ids.get(side)
            self.progress.ids[side] = _joined(known, ids, rows, stops)

    def _check_order(self, call: SeenCall, stack: str) -> None:
        if stack in self._anew:
            raise CaptureError(too_early(call, stack))

    def end(self) -> None:
        """Note what the call has read; refuse it where that may be at several positions."""
        if self._others:
            raise CaptureError(SEVERAL_PARTS)
        if self._source is not None:
            self._source.continued.update(self.rows)
        if self.progress.layers:
            self._caches.note(self.progress)


def _positions(steps: Sequence[Step]) -> list[tuple[int, int]]:
    return [(step.stop - len(step.earlier), step.stop) for step in steps]


def _joined(
    known: Tensor | None, ids: Tensor | None, rows: list[int], stops: set[int]
) -> Tensor | None:
    """Join the ids of texts and those of a step; None if some are not known slot by slot."""
    if known is None or ids is None or len(stops) > 1 or len(ids) != len(rows):
        return None
    stop = next(iter(stops))
    if len(known) <= max(rows) or known.shape[1] < stop:
        return None
    return torch.cat([known[rows, :stop], ids.to(known.device)], 1)
