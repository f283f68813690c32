"""Pictures of circuits: what was not measured, and names in the room that there is."""

from itertools import combinations

import numpy as np
import pytest
from circuits_drawn import caption, drawn, names
from made_circuits import made
from matplotlib.text import Text

import gattn


@pytest.mark.parametrize("draw", ["draw", "draw_graph"])
def test_an_edge_whose_loss_was_not_measured_is_thinnest_and_it_is_said(draw):
    losses = [0.5, np.nan, -0.2]
    rows = [((0, n), (1, n + 1), 0, 0, loss) for n, loss in enumerate(losses)]
    found = made(rows, stacks={"decoder": [list("abcd")] * 2}, layers={"decoder": 1})
    ax = found.draw() if draw == "draw" else found.draw_graph({n: (n, n * n) for n in range(4)})
    lines = [c for c in ax.collections if c.get_gid() == "gattn-edges"]
    paths = [path for some in lines for path in some.get_paths()]
    assert len(paths) == 3
    assert all(np.isfinite(path.vertices).all() for path in paths)
    thinnest, *others = sorted(np.concatenate([some.get_linewidths() for some in lines]))
    assert 0 < thinnest < min(others)
    assert "1 of 3 losses not measured (thinnest lines)" in caption(ax)


def test_of_heads_of_one_curve_those_that_were_measured_count():
    found = made(
        [((0, 0), (1, 1), 0, 0, np.nan), ((0, 0), (1, 1), 0, 1, 0.4)],
        stacks={"decoder": [list("ab")] * 2},
        layers={"decoder": 1},
    )
    ax = found.draw()
    (lines,) = (c for c in ax.collections if c.get_gid() == "gattn-edges")
    measured = made(
        [((0, 0), (1, 1), 0, 1, 0.4)],
        stacks={"decoder": [list("ab")] * 2},
        layers={"decoder": 1},
    )
    (other,) = (c for c in measured.draw().collections if c.get_gid() == "gattn-edges")
    np.testing.assert_allclose(lines.get_linewidths(), other.get_linewidths())
    assert [text.get_text() for text in names(ax)] == ["0.1,0.0"]


def test_small_axes_in_a_layout_have_no_names_on_each_other_and_no_cut_side():
    texts = ["a token of many letters"] * 10
    rows = [
        ((layer, n), (layer + 1, n + 1), layer, head, 0.5)
        for layer in range(4)
        for n in range(9)
        for head in range(3)
    ]
    found = made(rows, stacks={"decoder": [texts] * 2}, layers={"decoder": 4})
    ax = drawn(found, (3.3, 2.8))
    ax.figure.draw_without_rendering()
    boxes = [text.get_window_extent() for text in names(ax)]
    assert boxes
    overlaps = [
        (min(a.x1, b.x1) - max(a.x0, b.x0), min(a.y1, b.y1) - max(a.y0, b.y0))
        for a, b in combinations(boxes, 2)
    ]
    assert not any(wide > 1 and high > 1 for wide, high in overlaps)
    assert not covered(ax, boxes)
    side = ax.yaxis.label.get_window_extent()
    assert side.y0 >= 0
    assert side.y1 <= ax.figure.bbox.y1
    told = {text for name in names(ax) for text in heads_in(name.get_text())}
    every = {f"{layer}.{head}" for layer in range(4) for head in range(3)}
    assert all(name in told or name in caption(ax) for name in every)


def covered(ax, boxes):
    """List the nodes, and the numbers of layers, that names cover."""
    (nodes,) = (c for c in ax.collections if c.get_gid() == "gattn-nodes")
    spots = ax.transData.transform(nodes.get_offsets())
    layers = [text.get_window_extent() for text in ax.get_yticklabels()]
    return [spot for spot in spots for box in boxes if box.contains(*spot)] + [
        layer for layer in layers for box in boxes if box.overlaps(layer)
    ]


@pytest.mark.parametrize("units", ["heads", "tokens"])
def test_names_cover_no_nodes_and_no_numbers_of_layers(units):
    text = "The river tall green lamp river tall green lamp river tall green"
    found = gattn.circuit(text, target=" lamp", units=units, random=0, progress=False)
    for inches in ((3.3, 2.8), (6.75, 4.5)):
        ax = drawn(found, inches)
        ax.figure.draw_without_rendering()
        boxes = [text.get_bbox_patch().get_window_extent() for text in names(ax)]
        assert boxes
        assert not covered(ax, boxes)


def heads_in(name):
    return name.partition(" + ")[0].split(",")


def test_a_circuit_in_one_stack_of_several_says_in_which():
    texts = [list("ab")] * 2
    found = made(
        [(("decoder", 0, 0), ("decoder", 1, 1), 0, 0, 0.5)],
        stacks=dict.fromkeys(["encoder", "decoder", "cross"], texts),
        layers={"encoder": 1, "decoder": 2, "cross": 2},
        bipartite=["cross"],
    )
    assert [text.get_text() for text in found.draw().get_yticklabels()] == ["decoder · 0", "1"]


@pytest.mark.parametrize("draw", ["draw", "draw_graph"])
@pytest.mark.parametrize(("losses", "legend"), [([0.5], True), ([0.5], False), ([], True)])
def test_the_key_is_there_where_it_is_wanted_and_there_is_an_edge(draw, losses, legend):
    rows = [((0, n), (1, n + 1), 0, 0, loss) for n, loss in enumerate(losses)]
    found = made(rows, stacks={"decoder": [list("ab")] * 2}, layers={"decoder": 1})
    places = [] if draw == "draw" else [{n: (n, n * n) for n in range(2)}]
    ax = getattr(found, draw)(*places, legend=legend)
    has_key = any("share lost" in text.get_text() for text in ax.findobj(Text))
    assert has_key == bool(losses and legend)
