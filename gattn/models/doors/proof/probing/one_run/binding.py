"""What names of globals, classes and objects with slots are bound to."""

from __future__ import annotations

import sys
from collections.abc import Collection
from functools import cache
from typing import Any

_KNOWN = frozenset(("torch", "numpy")) | sys.stdlib_module_names
MISSING = object()
"""What stands for nothing."""


class Bound:
    """Some names in a dictionary of globals, which code may bind to something else."""

    def __init__(self, holder: Any, names: Collection[str]) -> None:
        self.holder, self._names = holder, names

    def values(self) -> dict[str, Any]:
        """Return what is bound to them."""
        return {name: self.holder[name] for name in self._names if name in self.holder}

    def bind(self, name: str, value: Any) -> None:
        """Bind a name to something, or to nothing."""
        if value is MISSING:
            del self.holder[name]
        else:
            self.holder[name] = value


class OfClass(Bound):
    """All names of a class."""

    def __init__(self, holder: type) -> None:
        super().__init__(holder, ())

    def values(self) -> dict[str, Any]:
        """Return what is bound to them."""
        return {name: x for name, x in vars(self.holder).items() if name[:2] != "__"}

    def bind(self, name: str, value: Any) -> None:
        """Bind a name to something, or to nothing."""
        if value is MISSING:
            delattr(self.holder, name)
        else:
            setattr(self.holder, name, value)


class OfSlots(OfClass):
    """The slots of an object."""

    def values(self) -> dict[str, Any]:
        """Return what is bound to them."""
        some = slots_of(self.holder)
        return {name: getattr(self.holder, name) for name in some if hasattr(self.holder, name)}


@cache
def _slots(kind: type) -> tuple[str, ...]:
    own = [one for one in kind.__mro__ if one.__module__.partition(".")[0] not in _KNOWN]
    some = [vars(one).get("__slots__", ()) for one in own]
    every = [name for x in some for name in ((x,) if isinstance(x, str) else x)]
    return tuple(name for name in every if name not in ("__dict__", "__weakref__"))


def slots_of(x: Any) -> tuple[str, ...]:
    """Return the slots of an object of a class of the user's, or of a library."""
    return _slots(type(x))  # type: ignore[arg-type]
