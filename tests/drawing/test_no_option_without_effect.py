"""Each option of each picture changes what is drawn, or is refused with what it is for."""

import inspect
import io

import matplotlib as mpl
import matplotlib.pyplot as plt
import networkx as nx
import numpy as np
import paper
import pytest
from PIL import Image
from sample_heads import causal_head
from scenes import cross_head, landscape, picture_trace
from test_interval_pictures import comparison, statistics

import gattn
from gattn.analysis.reading.results import array
from gattn.drawing.pictures import picture_of
from gattn.errors import OptionError, SelectionError, ShapeError
from gattn.heads.stack import Stack

HEAD = causal_head(300, layer=1, head=0)
ALL = np.random.default_rng(0).random((6, 5))
CHANGED = {
    "query": 5,
    "key": 2,
    "hide": [0, 7],
    "self_loops": False,
    "threshold": 0.3,
    "vmax": 0.4,
    "pool": "max",
    "linewidth": 6.0,
    "title": "Mine",
    "caption": "Mine, too",
    "cmap": "magma",
    "labels": False,
    "legend": False,
    "within_layers": True,
    "sort": "induction",
    "label": "induction",
    "heads": [(0, 1)],
    "smooth": True,
    "count": 2,
    "columns": ["entropy"],
    "edits": "mine",
    "alpha": 0.9,
    "figsize": (4, 4),
}
"""A value of each option that is not the usual one."""
NOTHING_TO_LEAVE_OUT = {("curve over time", "labels"), ("curve over time", "legend")}
"""What is asked to be left out, and is not there."""


def of_result(make, *arguments):
    shown = make()
    return picture_of(type(shown)), lambda **options: shown.draw(*arguments, **options)


def run(seed=0, size=100):
    found = {
        (n, h): causal_head(size, seed=seed + 7 * n + h, layer=n, head=h)
        for n in range(2)
        for h in range(4)
    }
    return gattn.AttentionTrace({"decoder": Stack("decoder", found)}, "tiny-model")


def overlay(layout, **options):
    two = [causal_head(8, seed=seed, layer=1, head=seed) for seed in (0, 1)]
    return gattn.drawing.draw_overlay(two, layout, **options)


def values(rows=6, **facts):
    axes = {"row": range(rows), "column": range(5)} if rows > 1 else {"column": range(5)}
    made = array(ALL[:rows] if rows > 1 else ALL[0], axes, name="x", computed_from="a toy")
    return made.assign_attrs(**facts)


def pictures():
    """List all pictures with the functions that draw them."""
    trace, other, small = run(), run(50), run(size=13)
    draw = gattn.drawing
    word = cross_head(5, 2000).at_times(0.5)
    for layout in ("arcs", "columns", "circle", "matrix", nx.circular_layout):
        name = layout if isinstance(layout, str) else "positions"
        yield f"head, {name}", draw.draw_head, lambda at=layout, **o: HEAD.draw(at, **o)
    for layout in ("arcs", "columns", "circle"):
        yield f"overlay, {layout}", draw.draw_overlay, lambda at=layout, **o: overlay(at, **o)
    yield "text", draw.draw_text, lambda **o: paper.lamp().draw_text(**o)
    yield "graph", draw.draw_graph, lambda **o: paper.karate().draw_graph(**o)
    yield "time", draw.draw_time, lambda **o: word.draw_time(**o)
    yield "curve over time", draw.draw_time, lambda **o: word.draw_time(**{"query": 0} | o)
    over = picture_trace()[1, 2]
    yield "image", draw.draw_image, lambda **o: over.draw_image(landscape(), **o)
    yield "heads", draw.draw_heads, lambda **o: trace.draw(**o)
    chosen = {"heads": [(1, 1), (1, 2)], "figsize": (3.3, 2.2)}
    yield "strip", draw.draw_heads, lambda **o: trace.draw(**chosen | o)
    yield "two runs", draw.draw_compare, lambda **o: trace.draw(other=other, **o)
    graph = gattn.TokenGraph.window(12, 3)
    for layout in ("matrix", "arcs", "columns", "circle"):
        yield f"token graph, {layout}", *of_result(lambda: graph, layout)
    rolled = small.unroll().rollout(query=-1)
    yield "unrolled", *of_result(small.unroll)
    yield "rollout", *of_result(lambda: rolled)
    yield "ribbons", *of_result(lambda: rolled, "ribbons")
    for layout in ("arcs", "matrix", "layered", "heads", "edits"):
        yield f"effects, {layout}", *of_result(lambda at=layout: paper.effects(at), layout)
    for kind in ("map", "ranked"):
        yield f"means, {kind}", *of_result(lambda: statistics(4, 4), kind)
        yield f"differences, {kind}", *of_result(lambda: comparison(4, 4), kind)
    yield "heatmap", *of_result(values)
    yield "points", *of_result(lambda: values(1))
    yield "kinds", *of_result(lambda: values(are_kinds=True).round())
    yield "head table", *of_result(small.summary)
    yield "circuit", *of_result(paper.circuit_of_stacks)


def pixels(drawn):
    figure = getattr(drawn, "figure", None) or drawn
    buffer = io.BytesIO()
    figure.savefig(buffer, dpi=50, format="png")
    plt.close(figure)
    return np.asarray(Image.open(buffer).convert("RGB"))


@pytest.mark.parametrize(
    ("name", "picture", "draw"), [pytest.param(*x, id=x[0]) for x in pictures()]
)
def test_an_option_changes_the_picture_or_is_refused(name, picture, draw):
    with mpl.rc_context({"font.size": 7, "figure.figsize": (3.3, 2.4)}):
        plain = pixels(draw())
        _, *known = inspect.signature(inspect.unwrap(picture)).parameters
        for option in set(known) & set(CHANGED):
            refusal, found = "", plain
            try:
                found = pixels(draw(**{option: CHANGED[option]}))
            except (OptionError, SelectionError, ShapeError) as error:
                refusal = str(error)
            is_same = found.shape == plain.shape and bool((found == plain).all())
            is_nothing = (name, option) in NOTHING_TO_LEAVE_OUT
            is_refused = option in refusal or refusal.startswith("It is not known when the queries")
            assert is_same == (is_nothing or is_refused), option
    assert not plt.get_fignums()
