import dataclasses

import matplotlib as mpl
import matplotlib.pyplot as plt
import networkx as nx
import numpy as np
import pytest
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from paper import HEADS
from sample_heads import bipartite_head, causal_head, signed_head
from seen import drawn_edges

import gattn
from gattn.drawing import draw_head
from gattn.drawing.canvas import layouts
from gattn.errors import SelectionError


def places(ax):
    return [text.get_position() for text in ax.texts if text.get_gid() == "gattn-label"]


@pytest.mark.parametrize(
    "layout", [nx.circular_layout, nx.spiral_layout, lambda graph: nx.spring_layout(graph, seed=0)]
)
def test_a_layout_of_networkx_is_computed_from_the_heads_graph(layout):
    head = causal_head(6)
    ax = draw_head(head, layout, ax=Figure().add_subplot(), threshold=0)
    assert drawn_edges(ax) == 21
    np.testing.assert_allclose(places(ax), list(layout(head.to_networkx()).values()))


def test_layouts_of_ones_own_start_from_those_of_gattn():
    head = causal_head(5)
    mine = layouts.circle(head) | {2: (0.0, 0.0)}
    ax = head.draw(mine, ax=Figure().add_subplot())
    assert places(ax)[2] == (0.0, 0.0)


def test_tokens_may_stand_apart_as_keys_and_as_queries():
    head = dataclasses.replace(causal_head(5), sink=np.full(5, 0.2))
    ax = draw_head(head, layouts.columns(head), ax=Figure().add_subplot(), threshold=0)
    assert drawn_edges(ax) == 20
    assert len(places(ax)) == 11
    assert not any(
        (path.vertices[0] == path.vertices[-1]).all()
        for c in ax.collections
        if c.get_gid() == "gattn-edges"
        for path in c.get_paths()
    )


def test_labels_of_many_nodes_thin_out_until_none_lies_on_another():
    ax = draw_head(causal_head(300), lambda graph: nx.spring_layout(graph, seed=0))
    ax.figure.draw_without_rendering()
    found = [text for text in ax.texts if text.get_gid() == "gattn-label"]
    assert 20 < len(found) < 300
    assert all(text.get_text().split()[0].isdigit() for text in found)
    boxes = [text.get_window_extent() for text in found]
    for i, one in enumerate(boxes):
        for other in boxes[:i]:
            wide = min(one.x1, other.x1) - max(one.x0, other.x0)
            high = min(one.y1, other.y1) - max(one.y0, other.y0)
            assert min(wide, high) < 3


@pytest.mark.parametrize("position", [(1,), (1, 2, 3), (0, np.nan), 4])
def test_positions_that_are_no_points_are_refused(position):
    with pytest.raises(SelectionError, match=r"node 1 must be \(x, y\), two finite"):
        draw_head(causal_head(2), {0: (0, 0), 1: position})
    assert plt.get_fignums() == []


def test_a_function_that_gives_no_positions_is_refused():
    with pytest.raises(SelectionError, match="No layout None; there are arcs"):
        draw_head(causal_head(2), lambda graph: None)


@pytest.mark.mpl_image_compare(savefig_kwargs={"dpi": 60})
def test_layout_of_networkx_of_a_head():
    return draw_head(causal_head(7), nx.circular_layout).figure


@pytest.mark.mpl_image_compare(savefig_kwargs={"dpi": 60})
def test_layout_of_ones_own_of_cross_attention():
    head = bipartite_head()
    keys = {("key", j): (j, j % 2) for j in range(5)}
    return draw_head(head, keys | {("query", i): (2 * i, 3) for i in range(3)}).figure


def near(ax, text, step=0.5):
    """Return whether the ink of an edge is on a text, whose box is a point larger than its ink."""
    box = text.get_window_extent().padded(-ax.figure.dpi / 72)
    found = []
    for lines in ax.collections:
        if lines.get_gid() != "gattn-edges":
            continue
        for path, width in zip(lines.get_paths(), lines.get_linewidths(), strict=True):
            whole = path.transformed(lines.get_transform()).interpolated(1)
            points = np.concatenate(whole.to_polygons(closed_only=False))
            long = np.hypot(*np.diff(points, axis=0).T).cumsum()
            at = np.arange(0, long[-1], step)
            points = np.stack([np.interp(at, [0, *long], side) for side in points.T], axis=1)
            half = width / 2 * ax.figure.dpi / 72
            low, high = np.array([box.p0, box.p1]) + np.array([[-half], [half]])
            found.append(((points > low) & (points < high)).all(1).any())
    return any(found)


@pytest.mark.parametrize("size", [(3.3, 2.2), (3.3, 2.4), (6.75, 2.2)])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_labels_of_few_nodes_stand_on_no_edge(size, seed):
    with mpl.rc_context({"font.size": 7}):
        head = signed_head()
        ax = head.draw(
            lambda graph: nx.spring_layout(graph, seed=seed), ax=Figure(size).add_subplot()
        )
        ax.figure.draw_without_rendering()
        labels = [text for text in ax.texts if text.get_gid() == "gattn-label"]
        assert len(labels) == 3
        assert not [text.get_text() for text in labels if near(ax, text)]


@pytest.mark.parametrize("style", ["light", "dark"])
def test_labels_over_edges_have_a_ground_of_the_figures_colour(style):
    with mpl.rc_context({} if style == "light" else gattn.style("dark")):
        ax = causal_head(13).draw(lambda graph: nx.spring_layout(graph, seed=0))
    ax.figure.draw_without_rendering()
    ground = to_rgba(ax.figure.get_facecolor())
    for text in (text for text in ax.texts if text.get_gid() == "gattn-label"):
        patch = text.get_bbox_patch()
        assert to_rgba(patch.get_facecolor()) == ground
        assert (patch.get_alpha() or 1) == 1
        assert patch.get_linewidth() == 0


@pytest.mark.parametrize(("size", "inside"), [((2, 2), 2), ((2.5, 2.5), 0), ((3.3, 2.4), 0)])
@pytest.mark.parametrize("name", ["13 tokens", "both ways"])
def test_labels_of_a_small_ring_of_nodes_lie_outside_it(name, size, inside):
    """Beyond loops, too, though not all have room there on 2 x 2 in."""
    with mpl.rc_context({"font.size": 7}):
        ax = HEADS[name]().draw(nx.circular_layout, figsize=size)
        ax.figure.canvas.draw()
    labels = [text for text in ax.texts if text.get_gid() == "gattn-label" and text.get_text()]
    boxes = [ax.transData.inverted().transform_bbox(text.get_window_extent()) for text in labels]
    middles = [box.get_points().mean(0) for box in boxes]
    assert len(labels) == len(HEADS[name]().tokens)
    assert sum(np.hypot(*middle) < 1 for middle in middles) <= inside
    plt.close(ax.figure)
