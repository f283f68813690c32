"""Calls a module's forward on numbers of gattn's, and leaves the module as it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from gattn.models.doors.proof.copying.random_numbers import random_numbers_kept


def forward_of(module: nn.Module) -> Callable[[Tensor], Any]:
    """Return a module's forward, without hooks; calling it changes neither state nor chance."""

    def apply(given: Tensor) -> Any:
        with random_numbers_kept(module), _state_kept(module):
            return module.forward(given)

    return apply


@contextmanager
def _state_kept(module: nn.Module) -> Iterator[None]:
    """Put back attributes and buffers that a forward changes, such as running means."""
    held = [some for one in module.modules() for some in (vars(one), one._buffers)]
    before = [(some, dict(some)) for some in held]
    numbers = [(x, x.clone()) for some in held for x in some.values() if isinstance(x, Tensor)]
    try:
        yield
    finally:
        for now, old in before:
            for name in now.keys() - old.keys():
                del now[name]
            now.update({name: x for name, x in old.items() if now.get(name, now) is not x})
        for x, own in numbers:
            if not torch.equal(x, own):
                x.detach().copy_(own)
