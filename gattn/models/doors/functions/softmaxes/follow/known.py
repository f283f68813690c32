"""What is known in a thread of the tensors and observers that live."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Generic, TypeVar
from weakref import ref

from torch import Tensor

Known = TypeVar("Known")


class Following(threading.local, Generic[Known]):
    """What is followed in a thread, by the identities of what it is."""

    def __init__(self) -> None:
        self.known: dict[int, Known] = {}


class Observers(Following[ref[Known]]):
    """What is shown functions that run in a thread, as long as it lives or until its end."""

    def add(self, one: Known) -> None:
        """Show an observer what runs from now on."""
        name, where = id(one), self.known

        def forget(gone: ref[Known]) -> None:
            if where.get(name) is gone:
                del where[name]

        where[name] = ref(one, forget)

    def remove(self, one: Known) -> None:
        """Show an observer nothing more."""
        self.known.pop(id(one), None)

    def __iter__(self) -> Iterator[Known]:
        return (one for known in list(self.known.values()) if (one := known()) is not None)


class OfTensors(Following[tuple[ref[Tensor], Known]]):
    """What is known of some tensors, as long as they live."""

    def note(self, tensor: Tensor, what: Known) -> None:
        """Remember something of a tensor."""
        name, where = id(tensor), self.known

        def forget(gone: ref[Tensor]) -> None:
            if name in where and where[name][0] is gone:
                del where[name]

        where[name] = ref(tensor, forget), what

    def of(self, x: object) -> Known | None:
        """Return what is known of a tensor, if anything is."""
        entry = self.known.get(id(x))
        return None if entry is None or entry[0]() is not x else entry[1]
