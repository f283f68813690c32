"""Lets a model fail in a run that marks its numbers: on NaN, models fail in many ways."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class Stop(BaseException):
    """Ends a run once what it was for was seen; no model catches it."""


@contextmanager
def failing() -> Iterator[None]:
    """Leave a run once it is stopped, or its model fails; gattn's own errors come out."""
    try:
        yield
    except Stop:
        return
    except Exception as error:
        if _is_own(error):
            raise


def _is_own(error: Exception) -> bool:
    """Return whether the code of proofs raised an error, rather than a function that it called."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return False
    home, code = str(trace.tb_frame.f_globals.get("__name__")), trace.tb_frame.f_code
    return home.startswith("gattn.models.doors.proof.") and "func" not in code.co_varnames
