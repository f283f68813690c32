"""A GPU as the accelerator: torch itself tells where the host waits for it.

torch's warnings do not say what the host waited for, and copies to the device count, too.
"""

import warnings

import pretend
import torch
from pretend import Read

NAME = "cuda"
reads: list[Read] = []
WAIT = "a wait"
_SHOW = warnings._showwarnmsg


def why_not() -> None:
    """There is nothing that a GPU needs."""


def install() -> None:
    """Let torch warn of each wait, and note it."""
    torch.cuda.set_sync_debug_mode("warn")
    warnings._showwarnmsg = _noted


def forget() -> None:
    """Empty the list; each wait from here on is noted, not only the first of a line."""
    warnings.simplefilter("always")
    reads.clear()


def to_host(x: torch.Tensor) -> torch.Tensor:
    """Copy a tensor to the CPU."""
    return x.cpu()


def _noted(message: warnings.WarningMessage) -> None:
    if "synchronizing CUDA operation" in str(message.message):
        reads.append(Read(WAIT, pretend._line()))
    else:
        _SHOW(message)
