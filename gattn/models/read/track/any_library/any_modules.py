"""Names the stacks of a model of any library: by module path."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from torch import nn

from gattn.models.read.seen_call import SeenCall
from gattn.models.read.track.any_library.paths import paths_of
from gattn.models.read.track.modules import Modules


class AnyModules(Modules):
    """The modules of a model of any library."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self._now: dict[tuple[str, int], str] = {}
        self._earlier: dict[tuple[str, int], str] = {}
        self._sizes: dict[str, object] = {}
        self._paths = paths_of(model, {name: type(x) for name, x in self.held.items()})

    def name_stack(
        self,
        name: str,
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
        path = self._paths[name]
        sizes = heads, is_cross, part
        number = part + 1
        if is_softmax and part:
            path, number = f"{path} softmax {number}", 1
        stack = path if number == 1 else f"{path} {number}"
        while self._sizes.setdefault(stack, sizes) != sizes:
            number += 1
            stack = f"{path} {number}"
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

    def check_layers(self, seen: Collection[str], calls: Mapping[str, int]) -> None:
        """Layers are numbered by the calls alone."""


def crosses(call: SeenCall) -> bool:
    """Return whether a call's keys are other tokens than its queries, as far as is known."""
    if call.is_cross is not None:
        return call.is_cross
    return call.query.shape[2] != call.key.shape[2]
