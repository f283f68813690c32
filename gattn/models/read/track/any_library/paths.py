"""Finds what the modules of a model are called without the numbers of their layers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from weakref import WeakKeyDictionary

from torch import nn

_LAYER = re.compile(r"(.*[^\W\d_])_?(\d+)")
_LISTS = nn.Sequential, nn.ModuleDict

Kinds = Mapping[str, type[nn.Module]]


class Paths:
    """The paths of a model's modules, each found when it is asked for.

    Parameters
    ----------
    kinds : mapping of str to type
        The types of all modules, by their names.
    """

    def __init__(self, kinds: Kinds) -> None:
        self.kinds = kinds
        self._paths: dict[str, str] = {}
        self._parts: dict[str, list[str]] = {"": []}
        self._numbers: dict[type[nn.Module], dict[object, list[set[str]]]] = {}

    def __getitem__(self, name: str) -> str:
        """Return a module's path without the number of its layer, or its type where it is empty.

        That is the last number in which modules of its type differ, else the first.
        """
        if name not in self._paths:
            self._paths[name] = self._path(name) or self.kinds[name].__name__
        return self._paths[name]

    def _path(self, name: str) -> str:
        parts = self._parts_of(name)
        places = [n for n, part in enumerate(parts) if part.isdigit()]
        known = self._numbers_of(self.kinds[name])[_pattern(parts)]
        varying = [n for n, some in zip(places, known, strict=True) if len(some) > 1]
        layer = [*places[:1], *varying][-1:]
        return ".".join(part for n, part in enumerate(parts) if n not in layer)

    def _parts_of(self, name: str) -> list[str]:
        if name not in self._parts:
            outer, _, part = name.rpartition(".")
            self._parts[name] = [*self._parts_of(outer), *_parts(part, self.kinds[outer])]
        return self._parts[name]

    def _numbers_of(self, kind: type[nn.Module]) -> dict[object, list[set[str]]]:
        """Return the numbers in the paths of the modules of a type, by their other parts."""
        if kind not in self._numbers:
            found: dict[object, list[set[str]]] = {}
            for name in [name for name, one in self.kinds.items() if one is kind]:
                parts = self._parts_of(name)
                numbers = [part for part in parts if part.isdigit()]
                known = found.setdefault(_pattern(parts), [set() for _ in numbers])
                for values, number in zip(known, numbers, strict=True):
                    values.add(number)
            self._numbers[kind] = found
        return self._numbers[kind]


_known: WeakKeyDictionary[nn.Module, Paths] = WeakKeyDictionary()


def paths_of(model: nn.Module, kinds: Kinds) -> Paths:
    """Return the paths of a model's modules: those found before, unless it has others by now."""
    found = _known.get(model)
    if found is None or found.kinds != kinds:
        found = _known[model] = Paths(kinds)
    return found


def _parts(name: str, around: type[nn.Module]) -> Sequence[str]:
    """Split the number from the name of a layer, as in layers.layer_3, a part of a list."""
    layer = _LAYER.fullmatch(name) if issubclass(around, _LISTS) else None
    if layer is not None:
        return layer.groups()
    return [] if name == "_orig_mod" else [name]


def _pattern(parts: Sequence[str]) -> tuple[str, ...]:
    """Return what paths have in common that differ only in numbers."""
    return tuple("" if part.isdigit() else part for part in parts)
