"""In figures of the size of a paper no text meets another, and none is cut."""

import matplotlib as mpl
import pytest
from matplotlib.figure import Figure
from meeting import problems
from paper import COLUMN, FONT, HEADS, LOW, PANELS, PICTURES, SHEETS, WIDE, one, own, panels, sheet

from gattn.errors import ShapeError

FEW = {
    "matrix, 13 tokens",
    "arcs, cross",
    "columns, a long token",
    "circle, 61 tokens",
    "ribbons",
    "ribbons, 24 layers",
    "circle, 13 tokens",
    "spring, 13 tokens",
    "karate club",
    "effects, edits",
    "head table",
}
"""The pictures that are always tested; the others are tested with the slow tests."""
OWN = [f"{layout}, {name}" for layout in ("matrix", "arcs", "circle") for name in HEADS]


def seldom(names):
    """Mark all but a few as slow."""
    slow = pytest.mark.slow
    return [pytest.param(name, marks=[slow] * (name not in FEW)) for name in names]


@pytest.fixture(autouse=True)
def small_print():
    with mpl.rc_context(FONT):
        yield


@pytest.mark.parametrize("layout", [None, "constrained"])
@pytest.mark.parametrize("size", [COLUMN, LOW])
@pytest.mark.parametrize("name", seldom(PICTURES))
def test_a_picture_in_a_column(name, size, layout):
    assert not problems(one(name, size, layout))


@pytest.mark.parametrize("layout", [None, "constrained", "tight"])
@pytest.mark.parametrize("names", PANELS, ids=" | ".join)
def test_three_panels(names, layout):
    assert not problems(panels(names, WIDE, layout))


@pytest.mark.parametrize("size", [None, COLUMN, LOW])
@pytest.mark.parametrize("name", seldom(OWN))
def test_a_figure_of_its_own_with_another_size(name, size):
    assert not problems(own(name, size))


@pytest.mark.parametrize("size", [COLUMN, LOW, WIDE])
@pytest.mark.parametrize("name", [name for name in SHEETS if name != "two runs"])
def test_many_heads(name, size):
    assert not problems(sheet(name, size))


def test_two_runs_need_the_width_of_a_column():
    assert not problems(sheet("two runs", WIDE))
    assert not problems(sheet("two runs", COLUMN))
    with pytest.raises(ShapeError, match=r"no room on a figure of 2\.0 x 1\.6 inches"):
        sheet("two runs", (2.0, 1.6))


def test_what_meets_or_is_cut_is_found():
    figure = Figure((2, 2))
    figure.text(0.5, 0.5, "one", rotation=45)
    figure.text(0.55, 0.52, "two")
    figure.text(0.9, 0.1, "too far right")
    assert len(problems(figure)) == 2
    ax = figure.subplots(1, 2)[0]
    ax.text(1.5, 0.9, "there")
    assert "'there' is in another picture" in problems(figure)
