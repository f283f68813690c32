"""Follows the calls of transformers models whose attention torch's functions show."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from torch import nn

from gattn.models.read.layouts import Layout
from gattn.models.read.runs import runs
from gattn.models.read.tracking import Tracker


class ProvedKinds(Protocol):
    """Which types of modules were proved to attend from tokens to tokens."""

    def check(self, module: nn.Module) -> None:
        """Refuse a module whose type was not proved, with the reason."""


class UnroutedTracker(Tracker):
    """What is known of the present call of a transformers model that does not route its attention.

    `prove` proves which of its modules attend.
    """

    def __init__(
        self,
        model: nn.Module,
        known: Tracker | None = None,
        prove: Callable[..., ProvedKinds] | None = None,
    ) -> None:
        self._prove = prove
        self._proved: ProvedKinds | None = None
        super().__init__(model, known)

    def begin(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Note that a call of the model begins, which is proved if its like was not."""
        super().begin(module, args, kwargs)
        if self._prove is not None:
            self._proved = self._prove(self.model, module, args, kwargs, self.given.batch.size)

    def end(self, result: Any) -> None:
        """Note what the call gave."""
        super().end(result)
        runs.clear(self.modules.ids)

    def reads(self, module: nn.Module, lead: Sequence[int], *, over_last: bool = True) -> bool:
        """Return whether a call of attention has tokens in its last dimensions, and heads."""
        return over_last and of_heads(lead, self.given.batch.size) is not None

    @property
    def proves(self) -> bool:
        """Whether attention that is seen by torch's functions is proved."""
        return True

    def layout(self, module: nn.Module, part: int, lead: Sequence[int]) -> Layout | None:
        """Return the layout of a call of attention, after proving its module's type."""
        if self._proved is not None:
            self._proved.check(module)
        return of_heads(lead, self.given.batch.size)


def of_heads(lead: Sequence[int], batch: int | None) -> Layout | None:
    """Return the layout of (batch, heads), or of both in one dimension; None for any other."""
    if len(lead) == 2:
        return Layout(heads=(1,))
    if len(lead) != 1 or batch is None or lead[0] % batch or lead[0] <= batch:
        return None
    return Layout((batch, lead[0] // batch), (1,))
