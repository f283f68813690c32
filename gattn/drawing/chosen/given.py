"""Checks the options that pictures share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from inspect import signature
from typing import Any, ParamSpec, TypeVar

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure

from gattn.checks import check_options
from gattn.drawing.canvas.frame import given_axes
from gattn.drawing.canvas.least import check_readable, no_figure_left
from gattn.errors import OptionError, SelectionError

P = ParamSpec("P")
R = TypeVar("R")
_AXES = "matplotlib's Axes to draw on, such as those of plt.subplots()[1]"
_FIGURE = "matplotlib's figure to draw on, such as plt.figure()"
_WANTED: dict[str, tuple[tuple[type, ...], str]] = {
    "title": ((str,), "the text above the picture"),
    "caption": ((str,), "the text below the picture"),
    "ax": ((Axes,), _AXES),
    "figure": ((Figure, SubFigure), _FIGURE),
    "self_loops": ((bool, np.bool_), "True or False"),
    "labels": ((bool, np.bool_), "True or False"),
    "legend": ((bool, np.bool_), "True or False"),
}


def check_given(options: Mapping[str, Any]) -> None:
    """Refuse options of the wrong type, such as a figure for axes.

    Raises
    ------
    SelectionError
        Saying what the option is.
    """
    for name, (kinds, wanted) in _WANTED.items():
        value = options.get(name)
        if value is not None and not isinstance(value, kinds):
            raise SelectionError(f"{name} is {wanted}, not {value!r:.80}.")


def refuse_unused(name: str, where: str, *, is_given: bool) -> None:
    """Refuse an option that a picture would not show, and say where it has an effect.

    Raises
    ------
    SelectionError
        If it is given.
    """
    if is_given:
        raise SelectionError(f"{name}= has no effect here: {where}.")


def checks_given(draw: Callable[P, R]) -> Callable[P, R]:
    """Let a picture refuse options of the wrong type, and a size that is too small for it."""

    @wraps(draw)
    def checked(*arguments: P.args, **options: P.kwargs) -> R:
        check_given(options)
        with no_figure_left():
            shown = draw(*arguments, **options)
            if options.get("figsize") is not None and isinstance(shown, Axes):
                check_readable(shown)
        return shown

    return checked


def drawn(
    picture: Callable[..., Axes],
    shown: object,
    arguments: Sequence[Any],
    options: Mapping[str, Any],
) -> Axes:
    """Draw a picture, on axes or in a size that the user gave, once its options are checked.

    Parameters
    ----------
    picture : callable
        The picture; it takes ``ax=``.
    shown : object
        What it shows.
    arguments : sequence
        What the user said without a name.
    options : mapping
        What the user said by name.

    Raises
    ------
    OptionError
        If neither the picture nor what draws it in matplotlib has one of the options.
    """
    said, given, size = f"{type(shown).__name__}.draw()", dict(options), None
    _, *names = signature(picture).parameters
    if "figsize" not in names:
        size = given.pop("figsize", None)
    check_options(picture, given, said, [*names, "figsize"])
    check_given(given)
    try:
        with no_figure_left():
            if size is None:
                return picture(shown, *arguments, **given)
            ax = picture(shown, *arguments, **given | {"ax": given_axes(given.get("ax"), size)})
            check_readable(ax)
            return ax
    except Exception as error:
        for name in given:
            if f"unexpected keyword argument {name!r}" in str(error):
                raise OptionError(
                    f"{said} has no option {name}=, and neither has what draws it in matplotlib "
                    f"({error}): figsize= is the size, ax= where to draw, and all else can be set "
                    "on the axes that it returns."
                ) from error
        raise
