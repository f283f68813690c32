"""Numbers that are given: whole ones, of any library, and finite ones; and what they may take."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from math import isfinite
from numbers import Real
from operator import index
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gattn.errors import ContractError, GattnError, GraphError


def whole(
    name: str,
    given: Any,
    least: int = 0,
    error: type[GattnError] = ContractError,
    *,
    most: int | None = None,
) -> int:
    """Take a whole number, a NumPy one or another that Python counts with too.

    Raises
    ------
    GattnError
        Where it is not one, less than `least`, or more than `most`.
    """
    try:
        number = None if isinstance(given, (bool, np.bool_)) else index(given)
    except TypeError:
        number = None
    if number is None or number < least or (most is not None and number > most):
        range_ = f">= {least}" if most is None else f"from {least} to {most}"
        raise error(f"{name} must be a whole number {range_}, not {given!r:.80}.")
    return number


def finite(name: str, given: float | Tensor) -> float | Tensor:
    """Take a finite number, or a tensor of them.

    Raises
    ------
    ContractError
        Where it is infinite, NaN or no number.
    """
    if isinstance(given, Tensor):
        if not given.is_meta and not bool(given.detach().isfinite().all()):
            raise ContractError(f"{name} must hold finite numbers, not {given.tolist()!r:.60}.")
        return given
    if isinstance(given, Real):
        try:
            number = given if isinstance(given, (int, float)) else float(given)
            if isfinite(number):
                return number
        except OverflowError:
            pass
    raise ContractError(f"{name} must be a finite number, not {given!r:.60}.")


def finite_number(name: str, given: float) -> float:
    """Take a finite number that is no tensor."""
    number = None if isinstance(given, Tensor) else finite(name, given)
    if number is None or isinstance(number, Tensor):
        raise ContractError(f"{name} must be a plain number, not a tensor: {given!r:.60}.")
    return number


def refuse_hidden(name: str, values: Any, error: type[GattnError] = ContractError) -> None:
    """Refuse arrays of which some numbers are masked, and tensors that hold none or not all.

    Raises
    ------
    GattnError
        Where they are such.
    """
    if isinstance(values, Tensor):
        if values.is_meta:
            raise error(f"{name} is a tensor on the device meta, which holds no numbers.")
        if values.layout is not torch.strided:
            raise error(f"{name} is a tensor of layout {values.layout}: pass its to_dense().")
        return
    parts = values if isinstance(values, (list, tuple)) else [values]
    if any(np.ma.is_masked(part) for part in parts if isinstance(part, np.ma.MaskedArray)):
        raise error(
            f"{name} is a masked array, and what its mask hides is no number: fill it, as in "
            "array.filled(0), and say in graph= who may attend."
        )


_LIMIT: ContextVar[float] = ContextVar("gattn_memory_limit", default=1.0)


@contextmanager
def memory_limit(gib: float) -> Iterator[None]:
    """Let what lists edges take up to so many GiB, rather than 1, in this thread and context.

    Edges of a rule are listed where something asks for them: ``graph.edge_index``, ``mask()``,
    ``to_networkx()``, `attention_graphs` that keep all. A few characters can ask for more than any
    machine has, so beyond the limit they are refused with what they would take.

    Parameters
    ----------
    gib : float
        The limit, in GiB of 2**30 bytes.

    Examples
    --------
    >>> with gattn.memory_limit(16):
    ...     edges = TokenGraph.causal(40_000).edge_index
    """
    if not finite_number("gib", gib) > 0:
        raise ContractError(f"gib must be above 0, not {gib!r}.")
    before = _LIMIT.set(gib)
    try:
        yield
    finally:
        _LIMIT.reset(before)


def allowed_memory() -> int:
    """Give the limit in bytes."""
    return int(_LIMIT.get() * 2**30)


def check_memory(
    size: int, what: str, instead: str = "", error: type[GattnError] = GraphError
) -> None:
    """Refuse what takes more bytes than the limit.

    Parameters
    ----------
    size : int
        What it takes, in bytes.
    what : str
        What would be made, as in "The 9 edges of TokenGraph(...)".
    instead : str
        What else there is, as in "walk them with row_blocks()".

    Raises
    ------
    GattnError
        Where it does.
    """
    limit = _LIMIT.get()
    if size > limit * 2**30:
        raise error(
            f"{what} would take {size / 2**30:,.1f} GiB, more than the {limit:g} GiB allowed; "
            f"{instead + ', or ' if instead else ''}insist within "
            f"`with gattn.memory_limit({-(-size // 2**30)}):`."
        )
