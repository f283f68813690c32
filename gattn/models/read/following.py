"""Knows which texts a call continues: those in its cache, or those that an encoder read."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.utils.weak import TensorWeakRef, WeakTensorKeyDictionary

from gattn.models.hugging_face import caches
from gattn.models.hugging_face.given import repeated
from gattn.models.read.layouts import Layout

_MOST_RECENT = 32


class Row(NamedTuple):
    """What a layer has read of one text: numbers per key, and which of these are real tokens."""

    codes: Tensor
    real: Tensor

    def tokens(self, stop: int) -> int:
        """Count the real tokens before a slot."""
        return int(self.real[:stop].sum())


class Memory(NamedTuple):
    """The keys that queries of one text read beside it: their numbers, (elements, slots, 3).

    `layout` is that of its layer's tensors; `asked` says how many queries of each text have read
    them.
    """

    codes: Tensor
    layout: Layout
    asked: int


@dataclass(eq=False)
class Progress:
    """What is known of the texts that a call continues: their ids, and which tokens are real.

    `stop` counts their slots so far, `held` is what their cache holds, and `cached` names the
    stacks that use it. `origin` says where they come from. `left` is how many slots the calls that
    ended left in a cache that now holds more; `awaits` are the texts whose images came first.
    Where a model's caches are not known, `layers` is what each layer has read, `memories` what it
    reads beside the text, and `continued` names the rows that a later call continues.
    """

    ids: dict[str, Tensor | None] = field(default_factory=dict)
    real: dict[str, Tensor] = field(default_factory=dict)
    read: dict[str, Tensor] = field(default_factory=dict)
    cached: set[str] = field(default_factory=set)
    held: caches.Held | None = None
    stop: int = 0
    count: int | None = None
    origin: Origin | None = None
    left: int | None = None
    awaits: TensorWeakRef | None = None
    layers: dict[tuple[str, int, int], Sequence[Row]] = field(default_factory=dict)
    memories: dict[tuple[str, int, int], Memory] = field(default_factory=dict)
    continued: set[int] = field(default_factory=set)

    def taken(self, rows: list[int], stop: int, side: str, is_own: bool) -> Progress:
        """Take some sequences up to a slot; `side` names the ids that the cache holds."""
        count = None if self.held is None else len(self.held.codes)
        ids = {
            name: _rows(x, rows, count, stop) if name == side else _rows(x, rows)
            for name, x in self.ids.items()
        }
        real = {n: _rows(x, rows, count, stop) for n, x in self.real.items() if n in self.cached}
        known = {n: x for n, x in real.items() if x is not None}
        return Progress(ids, known, cached=set(self.cached), origin=Origin(self, rows, is_own))

    def encoded(self, rows: list[int]) -> Progress:
        """Take what was encoded of some sequences."""
        ids = {name: _rows(x, rows) for name, x in self.ids.items()}
        return Progress(ids, origin=Origin(self, rows, False))

    @property
    def real_in_cache(self) -> Tensor | None:
        """Which slots of the cache are real tokens, (sequences, slots)."""
        return next((self.real[name] for name in self.cached if name in self.real), None)

    def note_ids(self, name: str, ids: Tensor, seen: int) -> None:
        """Note the ids of a call, after those `seen` in its cache, as far as these are known."""
        if not seen:
            self.ids[name] = ids
            return
        known = repeated(self.ids.get(name), len(ids))
        if known is not None:  # It may hold tokens of a call that failed.
            known = torch.cat([known[:, :seen], ids], 1)
            known = known if known.shape[1] == seen + ids.shape[1] else None
        self.ids[name] = known

    def tokens(self, row: int, stop: int) -> int | None:
        """Count the real tokens of a sequence before a slot, where they are known."""
        if not stop:
            return 0
        real = self.real_in_cache
        return None if real is None or row >= len(real) else int(real[row, :stop].sum())


class Origin(NamedTuple):
    """The sequences that others continue, and whether in the cache that held them."""

    progress: Progress
    rows: list[int]
    is_own: bool


def _rows(
    values: Tensor | None, rows: list[int], count: int | None = None, stop: int | None = None
) -> Tensor | None:
    """Take rows of values up to a slot; None if there are not `count` of them."""
    if values is None or len(values) <= max(rows) or (stop is not None and len(values) != count):
        return None
    return values[rows][:, :stop]


class Texts:
    """The texts in caches and encoders' outputs, for all calls of a model, in any thread.

    Parameters
    ----------
    side : str
        The name of the ids that a cache holds.
    """

    def __init__(self, side: str) -> None:
        self.side = side
        self._of_cache: WeakKeyDictionary[Any, Progress] = WeakKeyDictionary()
        self._recent: deque[Progress] = deque(maxlen=_MOST_RECENT)
        self._of_encoded: Any = WeakTensorKeyDictionary()
        self._lock = Lock()

    def begin(self, cache: Any, progress: Progress) -> None:
        """Note that a call fills a cache, unless what earlier calls left in it is known."""
        if isinstance(cache, Hashable) and cache is not None:
            with self._lock:
                self._of_cache.setdefault(cache, progress)

    def end(self, cache: Any, progress: Progress, batch: int | None) -> None:
        """Note what a call left in its cache."""
        if cache is None or not isinstance(cache, Hashable):
            return
        progress.stop, progress.count = caches.length(cache), batch
        progress.held, progress.origin = caches.held(cache, progress.stop), None
        with self._lock:
            self._of_cache[cache] = progress
            if progress not in self._recent:
                self._recent.append(progress)

    def in_cache(self, cache: Any, seen: int, batch: int | None, reorders: bool) -> Progress:
        """Find the sequences that a cache holds, which may have changed since the last call.

        If its keys cannot be seen, a cache is trusted to hold what it held, unless a search
        `reorders` it.
        """
        now = caches.held(cache, seen)
        with self._lock:
            own = self._of_cache.get(cache)
            first = [] if own is None else [own]
            known = dict.fromkeys([*first, *reversed(self._recent), *self._of_cache.values()])
        if now is None:
            is_same = own is not None and (own.stop, own.count) == (seen, batch)
            return own if own is not None and is_same and not reorders else Progress()
        for one in sorted(known, key=lambda one: one.stop > seen):
            rows = None if one.held is None else now.rows_of(one.held)
            if rows is not None and one.held is not None:
                whole = one is own and one.stop == seen
                if whole and rows == list(range(len(one.held.codes))):
                    return one
                return one.taken(rows, seen, self.side, one is own)
        return Progress(left=None if own is None or own.stop >= seen else own.stop)

    def encode(self, encoded: Tensor, progress: Progress) -> None:
        """Note an encoder's output, without keeping it alive."""
        with self._lock:
            self._of_encoded[encoded] = progress

    def in_encoded(self, taken: Tensor) -> Progress | None:
        """Find the texts of the encoder's output that a decoder is given, perhaps repeated."""
        with self._lock:
            own = self._of_encoded.get(taken)
            known = list(self._of_encoded.items())[::-1]
        for given, progress in [*([] if own is None else [(taken, own)]), *known]:
            rows = rows_of(taken, given)
            if rows is not None:
                found: Progress = progress.encoded(rows)
                return found
        return None


def rows_of(taken: Tensor, given: Tensor) -> list[int] | None:
    """Find each row of a tensor in another, in the usual order of repeats where possible."""
    if taken is given:
        return list(range(len(given)))
    if taken.shape[1:] != given.shape[1:]:
        return None
    found = []
    for number, row in enumerate(taken.detach().to(given.device)):
        usual = number * len(given) // len(taken)
        if not torch.equal(row, given[usual]):
            same = (given == row).flatten(1).all(1)
            if not bool(same.any()):
                return None
            usual = int(same.int().argmax())
        found.append(usual)
    return found
