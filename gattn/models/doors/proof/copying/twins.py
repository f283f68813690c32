"""Lets a copy of a model find what is kept for the model's modules, under its own ones."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor, nn

from gattn.models.doors.proof.probing.one_run.binding import Bound
from gattn.models.doors.proof.probing.one_run.holding import attributes_of, content
from gattn.models.doors.proof.probing.one_run.inputs import detached, mapped

_DEPTH = 4
"""How deep lists and objects are followed."""
_DICTIONARIES = (dict, WeakKeyDictionary)


class Twins:
    """The modules of a copy, found by those of the model.

    A model may keep keys and values in a dictionary whose keys are modules, or made of these.

    Parameters
    ----------
    model, twin : nn.Module
        The model and its copy.
    """

    def __init__(self, model: nn.Module, twin: nn.Module) -> None:
        parts = dict(twin.named_modules())
        self.by_id = {id(x): parts[name] for name, x in model.named_modules() if name in parts}

    def key(self, key: Any) -> Any:
        """Return what a key that is made of modules, or of their identities, is for the copy."""
        if isinstance(key, nn.Module):
            return self.by_id.get(id(key), key)
        if type(key) is int:
            return id(self.by_id[key]) if key in self.by_id else key
        if type(key) is tuple:
            found = tuple(map(self.key, key))
            return key if all(x is y for x, y in zip(found, key, strict=True)) else found
        return key

    def rekey(self, held: Any) -> None:
        """Keep what a dictionary of the copy holds under its own modules."""
        if not isinstance(held, _DICTIONARIES):
            return
        keys = {key: self.key(key) for key in held}
        if any(key is not own for key, own in keys.items()):
            for key, x in list(held.items()):  # In their order.
                del held[key]
                held[keys[key]] = x

    def given(self, x: Any, depth: int = _DEPTH) -> Any:
        """Give the copy what the model is given, with its own modules for keys."""
        if depth == 0 or isinstance(x, (Tensor, nn.Module)):
            return x
        if isinstance(x, _DICTIONARIES):
            found = [(self.key(key), self.given(one, depth - 1)) for key, one in x.items()]
            if all(own is key and new is x[key] for key, (own, new) in zip(x, found, strict=True)):
                return x
            twin: Any = copy.copy(x)
            twin.clear()
            twin.update(found)
            return twin
        if type(x) in (list, tuple):
            parts = [self.given(one, depth - 1) for one in x]
            is_same = all(one is new for one, new in zip(x, parts, strict=True))
            return x if is_same else type(x)(parts)
        own = attributes_of(x)
        changed = (
            {}
            if own is None
            else {
                name: new
                for name, one in own.items()
                if (new := self.given(one, depth - 1)) is not one
            }
        )
        if not changed:
            return x
        twin = copy.copy(x)
        vars(twin).update(changed)
        return twin

    @contextmanager
    def lent(self, holders: Iterable[Any]) -> Iterator[None]:
        """Let the copy find what dictionaries around it hold for the model's modules."""
        done: list[tuple[Any, Any]] = []
        try:
            some = [content(x) for x in holders if not isinstance(x, Bound)]
            for held in _dictionaries(some, _DEPTH):
                for key in [*held]:
                    if (own := self.key(key)) is not key:
                        done.append((held, own))
                        held[own] = mapped(_apart, held[key])
            yield
        finally:
            for held, own in done:
                held.pop(own, None)


def _dictionaries(some: Iterable[Any], depth: int) -> list[Any]:
    """List dictionaries, and those within them and within objects."""
    found = []
    for one in some:
        found += [one] if isinstance(one, _DICTIONARIES) else []
        own = one if isinstance(one, _DICTIONARIES) else attributes_of(one)
        if own is not None and depth:
            found += _dictionaries(list(own.values()), depth - 1)
    return found


def _apart(x: Any) -> Any:
    return detached(x) if isinstance(x, Tensor) else x
