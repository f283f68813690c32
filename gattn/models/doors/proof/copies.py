"""Copies of a model that a proof runs: they share its parameters, and leave all else as it is."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


def copied(model: nn.Module) -> nn.Module:
    """Copy a model except its parameters: running may change its modules, hooks and buffers."""
    memory: dict[int, Any] = {id(parameter): parameter for parameter in model.parameters()}
    for module in model.modules():
        for value in (*module._buffers.values(), *vars(module).values()):
            if isinstance(value, Tensor) and id(value) not in memory:
                memory[id(value)] = value.detach().clone()
    twin = copy.deepcopy(model, memory)
    for module in twin.modules():
        for hooks in (module._forward_pre_hooks, module._forward_hooks):
            for number in [number for number, hook in hooks.items() if _is_users(hook)]:
                del hooks[number]  # The user has not called the model.
    return twin


def _is_users(hook: Any) -> bool:
    """Return whether a hook is the user's; torch's and transformers' own are parts of a model."""
    home = getattr(getattr(hook, "func", hook), "__module__", None) or ""
    return not home.startswith(("torch.", "transformers."))


@contextmanager
def random_numbers_kept(model: nn.Module) -> Iterator[None]:
    """Leave the states of all random generators as they were."""
    devices = {x.device.index for x in model.parameters() if x.device.type == "cuda"}
    states = random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
