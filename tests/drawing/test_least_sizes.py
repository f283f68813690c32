"""A size that is too small for a picture's texts is refused; what is drawn has room."""

import re

import matplotlib as mpl
import matplotlib.pyplot as plt
import pytest
from meeting import problems
from sample_heads import causal_head
from test_sizes import DRAWS

from gattn.errors import SelectionError

HEAD = causal_head(13)
LAYOUTS = ["matrix", "arcs", "circle", "columns"]


def _advised(error):
    return tuple(map(float, re.search(r"about ([\d.]+) x ([\d.]+)", str(error)).groups()))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("font", [7, 10])
def test_a_head_too_small_is_refused_and_the_size_advised_has_room(layout, font):
    with mpl.rc_context({"font.size": font}):
        for size in ((0.5, 0.5), (0.9, 0.9), (3.3, 0.4), (0.4, 3.3)):
            with pytest.raises(SelectionError, match=r"figsize of .* leaves no room") as refused:
                HEAD.draw(layout, figsize=size)
            assert not plt.get_fignums()
            assert not problems(HEAD.draw(layout, figsize=_advised(refused.value)).figure)
            plt.close("all")


@pytest.mark.parametrize("name", DRAWS)
def test_every_picture_refuses_half_an_inch(name):
    with pytest.raises(SelectionError, match="leaves no room"):
        DRAWS[name](figsize=(0.5, 0.5))
    assert not plt.get_fignums()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_small_head_that_is_drawn_has_its_texts_inside_and_apart(layout):
    with mpl.rc_context({"font.size": 7}):
        for side in (1.0, 1.2, 1.4, 1.6, 1.8):
            try:
                ax = HEAD.draw(layout, figsize=(side, side))
            except SelectionError:
                assert side < 1.6
                continue
            assert not problems(ax.figure)
            assert min(ax.bbox.size) > 0.15 * ax.figure.bbox.width
