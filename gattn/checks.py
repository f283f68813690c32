"""Checks of given numbers and arrays, and of the memory that listing edges may take."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from difflib import get_close_matches
from inspect import Parameter, signature
from math import isfinite
from numbers import Real
from operator import index
from pathlib import Path
from sysconfig import get_path
from types import FrameType, MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gattn.errors import ContractError, GattnError, GraphError, OptionError

_ALIKE = 0.7
"""How alike names are, from 0 to 1, of which one may have been meant for the other."""


_NOT_OF_USERS = (f"{get_path('stdlib')}{os.sep}", f"{Path(__file__).parent}{os.sep}", "<frozen ")
"""Where code lies that is no user's: Python's own, and gattn's."""
_INSTALLED = {"site-packages", "dist-packages"}
"""Folders of libraries, of which there may be several: of a system, an environment, a user."""


_said: ContextVar[set[str] | None] = ContextVar("said", default=None)


@contextmanager
def warning_once() -> Iterator[None]:
    """Give each warning once, however often a model runs."""
    token = _said.set(set()) if _said.get() is None else None
    try:
        yield
    finally:
        if token is not None:
            _said.reset(token)


def warn(message: str, about: str = "") -> None:
    """Warn at the line of the user's code that called gattn, or a model that gattn watches.

    Within `warning_once`, a message that says something `about` what was warned of is left out.
    """
    said = _said.get()
    if said is not None:
        if (about or message) in said:
            return
        said.add(about or message)
    frame = sys._getframe(1)
    while frame.f_back and not _is_of_users(_file_of(frame)):
        frame = frame.f_back
    known = frame.f_globals  # A stacklevel would not count frames of imports.
    warnings.warn_explicit(
        message,
        UserWarning,
        frame.f_code.co_filename,
        frame.f_lineno,
        known.get("__name__"),
        known.setdefault("__warningregistry__", {}),
    )


def _is_of_users(file: str) -> bool:
    return not file.startswith(_NOT_OF_USERS) and _INSTALLED.isdisjoint(Path(file).parts)


def _file_of(frame: FrameType) -> str:
    """Return the file of a frame's module, where dataclasses and such are made of text."""
    return str(frame.f_globals.get("__file__") or frame.f_code.co_filename)


def whole(
    name: str,
    given: Any,
    least: int = 0,
    error: type[GattnError] = ContractError,
    *,
    most: int | None = None,
) -> int:
    """Check a whole number of any library, and return it as an int."""
    try:
        number = None if isinstance(given, (bool, np.bool_)) else index(given)
    except TypeError:
        number = None
    if number is None or number < least or (most is not None and number > most):
        range_ = f"≥ {least}" if most is None else f"from {least} to {most}"
        raise error(f"{name} must be a whole number {range_}, not {given!r:.80}.")
    return number


def finite(name: str, given: float | Tensor) -> float | Tensor:
    """Check a finite number, or a tensor of finite numbers."""
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
    """Check a finite number that is not a tensor."""
    number = None if isinstance(given, Tensor) else finite(name, given)
    if number is None or isinstance(number, Tensor):
        raise ContractError(f"{name} must be a plain number, not a tensor: {given!r:.60}.")
    return number


def check_options(
    function: Callable[..., Any],
    options: Mapping[str, Any],
    said: str,
    more: Sequence[str] = (),
    hints: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Refuse options that a function does not have, unless it passes unknown ones on.

    Parameters
    ----------
    function : callable
        What will be called.
    options : mapping
        By name.
    said : str
        What the user called, such as ``draw()``.
    more : sequence of str
        What else may be named: its other arguments, and options that are taken before it is called.
    hints : mapping of str to str
        What to do in place of options that it does not have, though others like it do.

    Raises
    ------
    OptionError
        With the options that there are.
    """
    parameters = signature(function).parameters.values()
    if any(parameter.kind is Parameter.VAR_KEYWORD for parameter in parameters):
        return
    known = [one.name for one in parameters if one.kind is not Parameter.POSITIONAL_ONLY]
    for name in options:
        if name not in known:
            named = [
                one.name
                for one in parameters
                if one.kind is Parameter.KEYWORD_ONLY or one.name in more
            ]
            named += [one for one in more if one not in named]
            alike = get_close_matches(name, named, 1, _ALIKE)
            guess = f"; did you mean {alike[0]}=?" if alike else f": it has {', '.join(named)}."
            raise OptionError(f"{said} has no option {name}=" + _hinted(name, hints, guess))


def _hinted(name: str, hints: Mapping[str, str], otherwise: str) -> str:
    return f": {hints[name]}." if name in hints else otherwise


def check_call(
    function: Callable[..., Any],
    arguments: Sequence[Any],
    options: Mapping[str, Any],
    said: str,
    hints: Mapping[str, str],
) -> None:
    """Refuse a call that does not fit a method, saying what it takes.

    Parameters
    ----------
    function : callable
        The method.
    arguments : sequence
        What was given by place, without the object itself.
    options : mapping
        What was given by name.
    said : str
        What the user called, such as ``draw()``.
    hints : mapping of str to str
        What else there is to say of parameters, and of those that it does not have.

    Raises
    ------
    OptionError
        If an option is unknown, given twice or missing, or there are too many arguments.
    """
    parameters = list(signature(function).parameters.values())[1:]
    placed = [one.name for one in parameters if one.kind is Parameter.POSITIONAL_OR_KEYWORD]
    check_options(function, options, said, placed, hints)
    if len(arguments) > len(placed):
        extra = f"{arguments[len(placed)]!r:.60}"
        others = [one.name for one in parameters if one.kind is Parameter.KEYWORD_ONLY]
        then = f": {extra} is one argument too many."
        if others:
            then = f", and all else by its name: say what {extra} is, as in {others[0]}=."
        raise OptionError(f"{said} takes {', '.join(placed) or 'nothing'} without a name{then}")
    for name, value in zip(placed, arguments, strict=False):
        if name in options:
            hint = f"; {hints[name]}" if name in hints else ""
            raise OptionError(
                f"{said} was given {name} twice, as {value!r:.60} without a name and as "
                f"{name}={options[name]!r:.60}: its arguments are {', '.join(placed)}{hint}."
            )
    for one in parameters[len(arguments) : len(placed)]:
        if one.default is Parameter.empty and one.name not in options:
            hint = f", {hints[one.name]}" if one.name in hints else ""
            raise OptionError(f"{said} needs {one.name} first{hint}.")


def refuse_hidden(name: str, values: Any, error: type[GattnError] = ContractError) -> None:
    """Refuse masked arrays, sparse and nested tensors, and tensors on the device meta."""
    if isinstance(values, Tensor):
        if values.is_meta:
            raise error(f"{name} is a tensor on the device meta, which holds no numbers.")
        if values.is_nested:
            raise error(f"{name} is a nested tensor: pass one of its parts, as in unbind()[0].")
        if values.layout is not torch.strided:
            raise error(f"{name} is a tensor of layout {values.layout}: pass its to_dense().")
        return
    parts = values if isinstance(values, (list, tuple)) else [values]
    if any(np.ma.is_masked(part) for part in parts if isinstance(part, np.ma.MaskedArray)):
        raise error(
            f"{name} is a masked array, whose hidden entries are not numbers: fill it, as in "
            "array.filled(0), and say in graph= who may attend."
        )


_LIMIT: ContextVar[float] = ContextVar("gattn_memory_limit", default=1.0)


def memory_limit(gib: float) -> AbstractContextManager[None]:
    """Allow listed edges to take more memory than 1 GiB, in this thread and context.

    ``graph.edge_index``, ``mask()``, ``to_networkx()`` and an `attention_graphs` that keeps all
    edges list the edges of a rule. A few characters can ask for more than any machine has, so an
    error says how much memory it would take.

    Parameters
    ----------
    gib : float
        The limit, in GiB of 2**30 bytes.

    Returns
    -------
    context manager
        For a ``with`` block, within which the limit holds.

    Raises
    ------
    ContractError
        If `gib` is not a number above 0.

    Examples
    --------
    >>> with gattn.memory_limit(16):
    ...     edges = TokenGraph.causal(40_000).edge_index
    """
    if not finite_number("gib", gib) > 0:
        raise ContractError(f"gib must be above 0, not {gib!r}.")
    return _limiting(gib)


@contextmanager
def _limiting(gib: float) -> Iterator[None]:
    before = _LIMIT.set(gib)
    try:
        yield
    finally:
        _LIMIT.reset(before)


def allowed_memory() -> int:
    """Return the limit in bytes."""
    return int(_LIMIT.get() * 2**30)


def check_memory(
    size: int, what: str, instead: str = "", error: type[GattnError] = GraphError
) -> None:
    """Refuse what takes more memory than the limit.

    Parameters
    ----------
    size : int
        Its size in bytes.
    what : str
        What would be made, as in "The 9 edges of TokenGraph(...)".
    instead : str
        What to do instead, as in "walk them with row_blocks()".

    Raises
    ------
    GattnError
        If it does.
    """
    limit = _LIMIT.get()
    if size > limit * 2**30:
        raise error(
            f"{what} would take {size / 2**30:,.1f} GiB, more than the {limit:g} GiB allowed; "
            f"{instead + ', or ' if instead else ''}allow it within "
            f"`with gattn.memory_limit({-(-size // 2**30)}):`."
        )
