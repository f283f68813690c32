"""Checks the options that pictures share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure

from gattn.errors import SelectionError

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


def checks_given(draw: Callable[P, R]) -> Callable[P, R]:
    """Let a picture refuse options of the wrong type, however it is called."""

    @wraps(draw)
    def checked(*arguments: P.args, **options: P.kwargs) -> R:
        check_given(options)
        return draw(*arguments, **options)

    return checked
