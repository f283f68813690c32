"""Makes compiled models run uncompiled while contexts are open.

Code compiled by `torch.compile` ignores hooks and never asks which attention function to call.
While a context is open, the compiler's stance is ``force_eager``: compiled functions run as
written. Compiled code is kept, and runs again after the last context closes.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

import torch
from torch._dynamo import eval_frame

from gattn.errors import ModelError


class Stance:
    """A compiler stance that is ``force_eager`` while `is_on` says so, else the one `before` it.

    PyTorch has one stance for all threads. Contexts and the user's own stances may end in any
    order; if this one is put back after its contexts closed, it changes nothing.
    """

    def __init__(self, before: Any, is_on: Callable[[], bool]) -> None:
        self.before, self._is_on = before, is_on

    @property
    def stance(self) -> str:
        """The name of the stance."""
        return "force_eager" if self._is_on() else str(self.before.stance)

    @property
    def skip_guard_eval_unsafe(self) -> bool:
        """Whether guards are skipped."""
        return bool(self.before.skip_guard_eval_unsafe)

    @property
    def backend(self) -> Any:
        """The backend that is forced, if any."""
        return None if self._is_on() else self.before.backend


def _bypass(is_on: Callable[[], bool]) -> None:
    stance: Any = eval_frame._stance
    try:
        stance = stance if isinstance(stance, Stance) else Stance(stance, is_on)
        eval_frame._set_stance(stance)
    except RuntimeError as error:
        raise ModelError(
            "A context was opened inside a function that torch.compile compiles, so the model "
            "would still run compiled: open the context outside, around the call of the function."
        ) from error


# The compiler refuses to trace code that sets its stance.
_uncompiled = cast("Callable[..., None]", torch.compiler.disable(_bypass, recursive=False))


def bypass_compiled(is_on: Callable[[], bool]) -> None:
    """Run compiled code as written while `is_on` says so."""
    _uncompiled(is_on)


def restore_compiled() -> None:
    """Restore the stance that was set before, if ours is still set."""
    current: Any = eval_frame._stance
    if isinstance(current, Stance):
        with suppress(RuntimeError):  # Inside compiled code it stays set, without effect.
            eval_frame._set_stance(current.before)
