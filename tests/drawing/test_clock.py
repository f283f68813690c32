"""Axes of many seconds are in minutes or hours."""

import datetime

import numpy as np
import pytest
from meeting import problems
from scenes import attention
from seen import caption

from gattn import AttentionTrace
from gattn.drawing.located.clock import in_clock, ticks_between


def head(step):
    return AttentionTrace.from_arrays(attention(1, 1, 60, 60)).at_times(step)[0, 0]


def numbers(axis):
    return [label.get_text() for label in axis.get_ticklabels()]


@pytest.mark.parametrize(
    ("step", "unit", "ticks"),
    [
        (0.5, "seconds", ["0", "5", "10", "15", "20", "25", "30"]),
        (5, "min:s", ["0:00", "1:00", "2:00", "3:00", "4:00", "5:00"]),
        (60, "min:s", ["0:00", "10:00", "20:00", "30:00", "40:00", "50:00", "60:00"]),
        (600, "h:min", ["0:00", "2:00", "4:00", "6:00", "8:00", "10:00"]),
        (3600, "h:min", ["0:00", "12:00", "24:00", "36:00", "48:00", "60:00"]),
        (86400, "days", ["0", "10", "20", "30", "40", "50", "60"]),
    ],
)
def test_an_axis_is_in_the_unit_of_its_span(step, unit, ticks):
    ax = head(step).draw_time(4, figsize=(5.5, 2.4))
    ax.figure.draw_without_rendering()
    assert ax.get_xlabel() == unit
    assert numbers(ax.xaxis) == ticks
    assert not problems(ax.figure)
    ax = head(step).draw_time(figsize=(5.5, 2.8))
    assert ax.get_ylabel() == f"query, {unit}"
    assert set(numbers(ax.yaxis)) <= {*ticks, *numbers(ax.xaxis), "15:00", "45:00"}


def test_the_caption_names_a_query_in_seconds_and_as_the_axis_does():
    assert caption(head(600).draw_time(4)) == "what query 2400–3000 s (0:40–0:50 h:min) reads"
    assert caption(head(5).draw_time(4)) == "what query 20–25 s (0:20–0:25 min:s) reads"
    assert caption(head(0.5).draw_time(4)) == "what query 2–2.5 s reads"


@pytest.mark.parametrize("span", [0.1, 3, 90, 119, 121, 700, 7000, 7300, 80_000, 900_000])
@pytest.mark.parametrize("begin", [0.0, -50.0, 3661.0, 1e6])
@pytest.mark.parametrize("most", [1, 3, 8])
def test_ticks_are_few_in_the_span_and_written_as_a_clock_does(span, begin, most):
    ticks, unit = ticks_between(begin, begin + span, most)
    assert len(ticks) <= most + 2
    assert all(begin - 1e-6 <= tick <= begin + span + 1e-6 for tick in ticks)
    assert len({in_clock(tick, unit) for tick in ticks}) == len(ticks)
    for tick in ticks:
        if unit == "days":
            assert float(in_clock(tick, unit)) * 86400 == tick
        elif unit != "seconds" and 0 <= tick < 86400:
            hours, minutes, seconds = map(int, str(datetime.timedelta(seconds=tick)).split(":"))
            told = {
                "min:s": f"{60 * hours + minutes}:{seconds:02}",
                "h:min": f"{hours}:{minutes:02}",
                "h:min:s": f"{hours}:{minutes:02}:{seconds:02}",
            }
            assert in_clock(tick, unit) == told[unit]
            assert np.isclose(tick % 1, 0)
