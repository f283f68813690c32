"""Finds the module that runs, by the frames on the stack."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

from torch import nn

from gattn.models.watch.contexts import present

_NO_OWNERS = (nn.Softmax, nn.Softmax2d, nn.Dropout, nn.Identity)


def owner() -> nn.Module | None:
    """Find the module that runs: the innermost of a watched model that is not just a function."""
    known = present()
    for module in _running():
        for calls, _ in known:
            if calls.owns(module):
                return module
    return None


def innermost() -> nn.Module | None:
    """Find the innermost module that runs, of any model."""
    return next(_running(), None)


def _running() -> Iterator[nn.Module]:
    """List the modules whose code runs, the innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        has_self = "self" in code.co_varnames or "self" in code.co_freevars
        module: Any = frame.f_locals.get("self") if has_self else None
        if isinstance(module, nn.Module) and not isinstance(module, _NO_OWNERS):
            yield module
        frame = frame.f_back
