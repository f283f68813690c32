"""Lets a model fail in a run that marks its numbers: on NaN, models fail in many ways."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from traceback import walk_tb

import torch

from gattn.errors import GattnError


class Stop(BaseException):
    """Ends a run once what it was for was seen; no model catches it."""


@contextmanager
def failing() -> Iterator[None]:
    """Leave a run once it is stopped, its model fails, or gattn refuses what NaN made of it.

    Errors of gattn's own code come out, and those of memory that is full: what they hide would look
    like something not proved.
    """
    try:
        yield
    except Stop:
        return
    except Exception as error:
        if _is_own(error) or is_out_of_memory(error):
            raise


def is_out_of_memory(error: Exception) -> bool:
    """Return whether memory was full, which is held against no model."""
    is_named = isinstance(error, (MemoryError, torch.OutOfMemoryError))
    return is_named or "can't allocate memory" in str(error)  # as torch says of main memory


def _is_own(error: Exception) -> bool:
    """Return whether the code of gattn fails, rather than refuses, or a function that it called."""
    if isinstance(error, GattnError) or error.__traceback__ is None:
        return False
    *_, (frame, _) = walk_tb(error.__traceback__)
    home = str(frame.f_globals.get("__name__"))
    return home.startswith("gattn.models.") and "func" not in frame.f_code.co_varnames
