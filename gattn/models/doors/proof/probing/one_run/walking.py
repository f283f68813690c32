"""Follows which modules of a model run, each within another."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from gattn.models.doors.proof.probing.one_run.hooks import acting, held_by
from gattn.models.doors.proof.probing.one_run.state import State
from gattn.models.watch.hooks import Uncopied

Given = tuple[tuple[Any, ...], dict[str, Any]]

_RECURRENT = (nn.RNN.forward, nn.LSTM.forward, nn.GRU.forward)
"""Give rows first, and then states; classes of the user's own may give anything."""


@dataclass(eq=False)
class Run:
    """One run of a module: the how many-th of this module it is, and the run around it.

    `looks_up` says that it is an embedding, and whether of ids that the model is given, `recurs`
    that it is a recurrent network. It `is_prepared` if attributes of the module were set before, so
    that it does not run alike alone.
    """

    name: str
    number: int
    around: Run | None
    looks_up: bool | None = None
    recurs: bool = False
    inner: list[Run] = field(default_factory=list)
    shapes: object = None
    is_prepared: bool = False

    @property
    def place(self) -> tuple[str, int]:
        """What tells it apart from all others in one run of the model."""
        return self.name, self.number

    @property
    def chain(self) -> list[Run]:
        """The run, and those around it, the innermost first."""
        return [self] if self.around is None else [self, *self.around.chain]

    @property
    def before(self) -> list[Run]:
        """The runs just before it within the run around it, the latest first."""
        if self.around is None:
            return []
        runs = self.around.inner
        return runs[: runs.index(self)][::-1]


Entered = Callable[[Run, nn.Module, Given], Given | None]


class Walk:
    """The runs of a model's modules; what a run changes of the model's tensors is put back.

    What an embedding gives counts as what it is given, since ids hold no NaN. So does what a
    recurrent network gives, which may mix all tokens, but has a row for each.

    Parameters
    ----------
    model : nn.Module
        A copy of the user's model, which is hooked.
    around : sequence
        What else its code may change.
    """

    def __init__(self, model: nn.Module, around: Sequence[Any] = ()) -> None:
        self._names = {module: name for name, module in model.named_modules()}
        self.entered: Entered | None = None
        self.running: list[Run] = []
        hooks = [hook for module in self._names for hook in acting(module)]
        self.state = State(model, [*around, *held_by(hooks)])
        self._counts: dict[str, int] = {}
        for module in self._names:
            module.register_forward_pre_hook(Uncopied(self._enter), with_kwargs=True)
            module.register_forward_hook(Uncopied(self._leave), always_call=True)

    @contextmanager
    def following(self, entered: Entered | None = None) -> Iterator[None]:
        """Call a function as each module begins to run; it may return other inputs."""
        self.running, self._counts, self.entered = [], {}, entered
        try:
            yield
        finally:
            self.running, self.entered = [], None
            self.state.restore()

    @property
    def innermost(self) -> str:
        """The name of the innermost module that runs."""
        return self.running[-1].name if self.running else ""

    def name(self, module: nn.Module) -> str:
        """Return the name of a module."""
        name: str = self._names[module]
        return name

    def chain(self, module: nn.Module) -> list[Run]:
        """Return the run of a module and those around it; the innermost run if none is its own."""
        name = self._names.get(module)
        own = next((one for one in self.running[::-1] if one.name == name), self.running[-1])
        return own.chain

    def _enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name = self._names[module]
        number = self._counts.get(name, 0)
        self._counts[name] = number + 1
        is_embedding = isinstance(module, nn.Embedding)
        around = self.running[-1] if self.running else None
        recurs = around is not None and getattr(module.forward, "__func__", None) in _RECURRENT
        run = Run(name, number, around, False if is_embedding else None, recurs)
        if around is not None:
            around.inner.append(run)
        self.running.append(run)
        if self.entered is None or is_embedding or recurs:
            return None
        with torch._C.DisableTorchFunction():  # What it computes is not the model's.
            return self.entered(run, module, (args, kwargs))

    def _leave(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        name = self._names[module]
        run: Run | None = None
        while self.running and (run is None or run.name != name):
            run = self.running.pop()
        if self.entered is None or run is None or output is None:
            return None
        if run.looks_up is None and not run.recurs:
            return None
        with torch._C.DisableTorchFunction():
            given = self.entered(run, module, ((output,), {}))
        return None if given is None else given[0][0]
