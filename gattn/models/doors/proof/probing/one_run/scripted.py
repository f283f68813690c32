"""Stands for a scripted part of a model in a copy of it, as a module that takes hooks."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from gattn.models.load.scripts import frozen_numbers, is_script, is_training


class _Held:
    """Holds a part, so that a copy does not take it for a module of its own."""

    __slots__ = ("script",)

    def __init__(self, script: nn.Module) -> None:
        self.script = script


class ScriptModule(nn.Module):
    """Runs a scripted part, and has its parameters and buffers.

    Parameters
    ----------
    script : ScriptModule
        The part, which is shared: it keeps nothing from run to run but in its buffers.
    """

    def __init__(self, script: nn.Module) -> None:
        super().__init__()
        self.training = is_training(script)
        self.__dict__["_held"] = _Held(script)
        self._parameters.update(script.named_parameters())
        self._buffers.update(script.named_buffers())

    @property
    def frozen(self) -> list[Tensor]:
        """The parameters that are numbers of its code."""
        return list(frozen_numbers(self.__dict__["_held"].script))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the part."""
        return self.__dict__["_held"].script(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        """Read what the part has."""
        if name[:2] == "__":
            raise AttributeError(name)
        return getattr(self.__dict__["_held"].script, name)

    def __deepcopy__(self, memory: dict[int, Any]) -> ScriptModule:
        """Share the part with copies."""
        return ScriptModule(self.__dict__["_held"].script)


def stand_ins(model: nn.Module) -> dict[int, Any]:
    """Return what stands for each scripted part of a model, by the identity of the part."""
    found: dict[int, Any] = {}
    waiting = [model]
    while waiting:
        for part in waiting.pop().children():
            if is_script(part):
                found[id(part)] = ScriptModule(part)
            else:
                waiting.append(part)
    return found
