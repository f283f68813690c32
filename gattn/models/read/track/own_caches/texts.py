"""Knows the texts that calls with caches of the model's own have read, layer by layer."""

from __future__ import annotations

from collections import deque
from threading import Lock

from torch import Tensor

from gattn.models.read.following import Progress
from gattn.models.read.track.own_caches.keys import OwnKeys, are_those
from gattn.models.read.track.own_caches.steps import Part, Step, steps_from

_MOST_RECENT = 32
Name = tuple[str, int, int]
"""A layer: its module, how many calls of attention came before in its run, and which run it is."""


class OwnCaches:
    """The texts that calls of a model have read, in any thread, by their keys."""

    def __init__(self) -> None:
        self._recent: deque[Progress] = deque(maxlen=_MOST_RECENT)
        self._lock = Lock()

    def note(self, progress: Progress) -> None:
        """Note what a call has read."""
        with self._lock:
            self._recent.append(progress)

    def known(self, name: Name) -> list[Progress]:
        """List the calls in which a layer has read texts, the latest first."""
        with self._lock:
            return [one for one in reversed(self._recent) if name in one.layers]

    def have_read(self, name: Name, codes: Tensor) -> bool:
        """Return whether texts have read such a memory, each row in some call."""
        with self._lock:
            found = [one.memories[name].codes for one in self._recent if name in one.memories]
        known = [row for some in found for row in some if row.shape == codes.shape[1:]]
        return all(any(bool(are_those(one, row).all()) for one in known) for row in codes)

    def find(self, name: Name, keys: OwnKeys) -> list[tuple[Progress, list[Step]]]:
        """Find the texts that a call may continue in a layer, the likeliest first.

        Whole texts come before parts of texts, and first parts before last ones; texts that were
        not continued yet before others, and the latest calls before earlier ones.
        """
        found: list[tuple[Progress, list[Step]]] = []
        for part in Part:
            some = []
            for one in self.known(name):
                its = steps_from(one.layers[name], keys, part, continued=one.continued)
                some += [] if its is None else [(one, its)]
            found += sorted(some, key=lambda x: any(step.row in x[0].continued for step in x[1]))
        return found
