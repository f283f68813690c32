"""Seconds as people read them: minutes and hours where there are many."""

from __future__ import annotations

from functools import partial

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.font_manager import FontProperties
from matplotlib.ticker import FixedLocator, MaxNLocator

from gattn.drawing.canvas.fitting import fitted, points
from gattn.drawing.canvas.labels import in_digits, widest_of

_MINUTE, _HOUR = 60, 3600
_DAY = 24 * _HOUR
_FROM = {"seconds": -np.inf, "min:s": 2.0 * _MINUTE, "h:min": 2.0 * _HOUR, "days": 4.0 * _DAY}
"""The last second on an axis from which on it has a unit."""
_STEPS = (1, 2, 5, 10, 15, 30)
"""Between how many seconds, minutes or hours there are ticks."""
_MOST, _BETWEEN = 8, 1.0
"""The most numbers along an axis, and the least distance between two in font sizes."""
_FORM = ".10g"
"""How seconds are written: whole, also of days."""


def unit_of(last: float) -> str:
    """Return in which unit an axis up to some second is."""
    return max((name for name, least in _FROM.items() if last >= least), key=_FROM.__getitem__)


def ticks_between(low: float, high: float, most: int) -> tuple[list[float], str]:
    """Find at most so many round times between two, in seconds, and the unit to write them in."""
    unit = unit_of(high)
    step = _step((high - low) / most) if unit != "seconds" else None
    if step is None:
        found = MaxNLocator(nbins=most, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)
        few = 1e-9 * (high - low)
        return [float(at) for at in found if low - few <= at <= high + few], "seconds"
    if unit == "days" and step % _DAY:
        unit = "h:min"
    if unit == "h:min" and step % _MINUTE:
        unit = "h:min:s"
    ticks = np.arange(np.ceil(low / step - 1e-9), np.floor(high / step + 1e-9) + 1) * step
    return ticks.tolist(), unit


def _step(least: float) -> float | None:
    """Return the next round number of seconds, minutes, hours or days; None below a second."""
    if least < 0.5:
        return None
    hours = [hours * _HOUR for hours in (1, 2, 3, 6, 12)]
    steps = [*_STEPS, *(_MINUTE * step for step in _STEPS), *hours]
    if least > steps[-1]:
        return _DAY * _rounded_up(least / _DAY)
    return float(next(step for step in steps if step >= least))


def _rounded_up(number: float) -> float:
    """Return the next 1, 2 or 5 times a power of ten, at least 1."""
    power = 10.0 ** max(np.floor(np.log10(number)), 0.0)
    return next(float(times * power) for times in (1, 2, 5, 10) if times * power >= number)


def in_clock(seconds: float, unit: str) -> str:
    """Write a time: "90", "1:30" in minutes or hours, "1:00:30" in hours, minutes and seconds."""
    if unit == "seconds":
        return in_digits(seconds, _FORM)
    if unit == "days":
        return in_digits(round(seconds / _DAY, 2), _FORM)
    whole = round(abs(seconds))
    sign = "−" * int(seconds < 0 < whole)
    if unit == "h:min:s":
        return f"{sign}{whole // _HOUR}:{whole // _MINUTE % 60:02}:{whole % 60:02}"
    whole = whole if unit == "min:s" else whole // _MINUTE
    return f"{sign}{whole // 60}:{whole % 60:02}"


def label_times(ax: Axes) -> None:
    """Write as many times below axes as have room, and name the axis by their unit."""
    fitted(ax, partial(_label_times, ax))


def _label_times(ax: Axes) -> None:
    size = FontProperties(size=mpl.rcParams["xtick.labelsize"]).get_size_in_points()
    low, high = sorted(ax.xaxis.get_view_interval())
    for most in range(_MOST, 0, -1):
        ticks, unit = ticks_between(low, high, most)
        wide = (widest_of(in_clock(at, unit) for at in ticks) + _BETWEEN) * size
        if len(ticks) < 2 or wide <= points(ax)[0] * (ticks[1] - ticks[0]) / (high - low):
            break
    ax.xaxis.set_major_locator(FixedLocator(ticks))
    ax.xaxis.set_major_formatter(lambda at, _: in_clock(at, unit))
    ax.set_xlabel(unit)
