"""Follows the calls of any PyTorch model: stacks by module path, layers by order, no library."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from torch import nn

from gattn.models.hugging_face.given import Given, arguments
from gattn.models.hugging_face.media import Belonging
from gattn.models.read.following import Progress
from gattn.models.read.modules import Modules
from gattn.models.read.runs import runs
from gattn.models.read.seen_call import SeenCall
from gattn.models.read.stacks import kind_of
from gattn.models.read.tracking import Tracker


class AnyModules(Modules):
    """The modules of a model of any library."""

    def name_stack(self, call: SeenCall) -> str:
        """Name a call's stack: the path of its list of layers, and within a layer.

        The stack of a module is split where it attends several times in a run, or the heads or the
        kind of keys change.
        """
        name = self.name(call.module)
        home, inner = kind_of(name)
        path = ".".join(part for part in (home, inner) if part) or type(call.module).__name__
        sizes = call.query.shape[1], self._crosses(call), call.part
        stack = path if not call.part else f"{path} {call.part + 1}"
        while self._sizes.setdefault(stack, sizes) != sizes:
            stack = f"{path} {len([n for n in self._sizes if n.startswith(path)]) + 1}"
        return self.note_stack(call, stack)

    def note_stack(self, call: SeenCall, stack: str) -> str:
        """Note the stack of a call's module, and whether it is one of cross-attention."""
        self.stacks[self.name(call.module)] = stack
        if self._crosses(call):
            self.crossing.add(stack)
        return stack

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self._sizes: dict[str, object] = {}

    @staticmethod
    def _crosses(call: SeenCall) -> bool:
        if call.is_cross is not None:
            return call.is_cross
        return call.query.shape[2] != call.key.shape[2]

    def check_layers(self, seen: Collection[str], calls: Mapping[str, int]) -> None:
        """Layers are numbered by the calls alone."""


class AnyTracker(Tracker):
    """What is known of the present call of a model of any library."""

    modules: AnyModules

    @staticmethod
    def _modules_of(model: nn.Module) -> AnyModules:
        return AnyModules(model)

    def begin(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Note that a call of the model begins."""
        self.progress = Progress()
        self._take(Given(self.model, {}))
        self.inputs = arguments(module, args, kwargs)
        self._nodes: dict[str, tuple[int, int]] = {}
        self.is_calling = True

    def end(self, result: Any) -> None:
        """Note that the call ended."""
        self._masks.clear()
        self.inputs = {}
        runs.clear()

    def _stack(self, call: SeenCall) -> str:
        """Name the stack of a call; one that its door names is split where the nodes change."""
        if not call.stack:
            return self.modules.name_stack(call)
        sizes = call.query.shape[2], call.key.shape[2]
        stack, number = call.stack, 1
        while self._nodes.setdefault(stack, sizes) != sizes:
            number += 1
            stack = f"{call.stack} {number}"
        return self.modules.note_stack(call, stack)

    def _belonging(self, call: SeenCall, stack: str, start: int) -> Belonging:
        count = len(call.query)
        return Belonging(list(range(count)), [0] * count)

    def generates(self, length: int) -> bool:
        """Return whether a call's tokens were generated: that is not known here."""
        return False
