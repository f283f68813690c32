"""Random numbers that a proof leaves as they were."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import nn


def seed() -> None:
    """Begin a run with the same random numbers as all others of a proof."""
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    torch.manual_seed(0)


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
