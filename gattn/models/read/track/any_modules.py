"""Names the stacks of a model of any library: by module path."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

from torch import nn

from gattn.models.read.seen_call import SeenCall
from gattn.models.read.track.modules import Modules

_LAYER = re.compile(r"(.*[^\W\d_])_?(\d+)")
_LISTS = nn.Sequential, nn.ModuleDict


class AnyModules(Modules):
    """The modules of a model of any library."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self._now: dict[tuple[str, int], str] = {}
        self._earlier: dict[tuple[str, int], str] = {}
        self._sizes: dict[str, object] = {}
        self._paths: dict[str, str] = {}
        self._parts: dict[str, list[str]] = {"": []}
        self._numbers: dict[type[nn.Module], dict[object, list[set[str]]]] = {}

    def name_stack(
        self,
        module: nn.Module,
        part: int,
        heads: int,
        *,
        is_cross: bool,
        is_foreign: bool = False,
        is_softmax: bool = False,
    ) -> str:
        """Name a call's stack: the path of its list of layers, and within a layer.

        The stack of a module is split where it attends several times in a run, of which this is
        the call number `part`, or the heads or the kind of keys change; or where it mixes several
        softmaxes, of which the call may be one.
        """
        name = self.name(module)
        if name not in self._paths:
            self._paths[name] = self._path(name) or type(module).__name__
        path = self._paths[name]
        sizes = heads, is_cross, part
        number = part + 1
        if is_softmax and part:
            path, number = f"{path} softmax {number}", 1
        while self._sizes.setdefault(stack := _numbered(path, number), sizes) != sizes:
            number += 1
        self._now[name, part] = stack
        earlier = self._earlier.get((name, part), stack)
        if earlier != stack and stack not in self._earlier.values():
            self.apart.setdefault(stack, (name, earlier))
        return self._noted(name, stack, is_cross=is_cross, is_foreign=is_foreign)

    def note_stack(self, call: SeenCall, stack: str) -> str:
        """Note the stack of a call's module, and what its tokens are."""
        name, is_cross = self.name(call.module), crosses(call)
        return self._noted(name, stack, is_cross=is_cross, is_foreign=call.is_foreign)

    def _noted(self, name: str, stack: str, *, is_cross: bool, is_foreign: bool) -> str:
        self.stacks[name] = stack
        if is_cross:
            self.crossing.add(stack)
        if is_foreign:
            self.foreign.add(stack)
        return stack

    def begin(self) -> None:
        """Note that a call of the model begins: stacks of a module that it adds are told apart."""
        self._earlier = dict(self._now)

    def _path(self, name: str) -> str:
        """Return a module's path without the number of its layer.

        That is the last number in which modules of its type differ, else the first.
        """
        parts = self._parts_of(name)
        places = [n for n, part in enumerate(parts) if part.isdigit()]
        known = self._numbers_of(type(self._held[name]))[_pattern(parts)]
        varying = [n for n, some in zip(places, known, strict=True) if len(some) > 1]
        layer = [*places[:1], *varying][-1:]
        return ".".join(part for n, part in enumerate(parts) if n not in layer)

    def _parts_of(self, name: str) -> list[str]:
        if name not in self._parts:
            outer, _, part = name.rpartition(".")
            own = _parts(part, self._held[outer])
            self._parts[name] = [*self._parts_of(outer), *own]
        return self._parts[name]

    def _numbers_of(self, kind: type[nn.Module]) -> dict[object, list[set[str]]]:
        """Return the numbers in the paths of the modules of a type, by their other parts."""
        if kind not in self._numbers:
            found = self._numbers[kind] = {}
            for name in [name for name, module in self._held.items() if type(module) is kind]:
                parts = self._parts_of(name)
                numbers = [part for part in parts if part.isdigit()]
                known = found.setdefault(_pattern(parts), [set() for _ in numbers])
                for values, number in zip(known, numbers, strict=True):
                    values.add(number)
        return self._numbers[kind]

    def check_layers(self, seen: Collection[str], calls: Mapping[str, int]) -> None:
        """Layers are numbered by the calls alone."""


def crosses(call: SeenCall) -> bool:
    """Return whether a call's keys are other tokens than its queries, as far as is known."""
    if call.is_cross is not None:
        return call.is_cross
    return call.query.shape[2] != call.key.shape[2]


def _numbered(path: str, number: int) -> str:
    return path if number == 1 else f"{path} {number}"


def _parts(name: str, around: nn.Module) -> Sequence[str]:
    """Split the number from the name of a layer, as in layers.layer_3, a part of a list."""
    layer = _LAYER.fullmatch(name) if isinstance(around, _LISTS) else None
    if layer is not None:
        return layer.groups()
    return [] if name == "_orig_mod" else [name]


def _pattern(parts: Sequence[str]) -> tuple[str, ...]:
    """Return what paths have in common that differ only in numbers."""
    return tuple("" if part.isdigit() else part for part in parts)
