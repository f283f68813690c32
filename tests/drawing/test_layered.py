"""The picture of routes: what it shows, where, and that hostile tokens do not break it."""

import io
from itertools import combinations, pairwise

import matplotlib as mpl
import networkx as nx
import numpy as np
import pytest
from matplotlib.bezier import BezierSegment
from matplotlib.collections import PathCollection
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.path import Path

from gattn.analysis import routes
from gattn.drawing.canvas.colours import Scale
from gattn.drawing.canvas.frame import new_axes
from gattn.drawing.canvas.pen import Pen
from gattn.drawing.layers import layered
from gattn.drawing.layers.layered import LayeredEdges, Line
from gattn.drawing.layers.routes import draw_routes
from gattn.errors import SelectionError

TEXT = "The river tall green lamp river tall green lamp river tall green"


@pytest.fixture(scope="module")
def river():
    return routes(TEXT, progress=False)


def edges_of(ax):
    (lines,) = (c for c in ax.collections if c.get_gid() == "gattn-edges")
    return lines


def test_every_edge_is_a_line_from_where_it_begins_to_the_stream(river):
    ax = river.draw()
    lines = edges_of(ax)
    kinds = [facts["kind"] for *_, facts in river.edges(data=True)]
    paths = lines.get_paths()
    assert len(paths) == sum(kind != "output" for kind in kinds)
    height = {"residual": 0.0, "middle": 0.58}
    known = {
        (position, round(layer + height[kind], 6))
        for layer, position, kind in river
        if kind in height
    }
    for path in paths:
        for x, y in (path.vertices[0], path.vertices[-1]):
            assert (round(x), round(float(y), 6)) in known
        assert path.vertices[-1][1] > path.vertices[0][1]
    straight = [path for path in paths if len(path.vertices) == 2]
    assert len(straight) == kinds.count("residual")
    assert all(path.vertices[0][0] == path.vertices[1][0] for path in straight)
    curves = [p.vertices for p in paths if len(p.vertices) == 4]
    bent = [(v[1][0] > v[0][0]) for v in curves if v[0][0] == v[3][0]]
    assert sum(bent) == kinds.count("self")
    assert len(bent) - sum(bent) == kinds.count("mlp")


def test_widths_rise_with_what_they_show(river):
    strengths = {}
    for source, target, facts in river.edges(data=True):
        if facts["kind"] == "residual":
            strengths[source, target] = river.nodes[target]["strength"] * facts["weight"]
    ax = river.draw()
    lines = edges_of(ax)
    widths = {}
    for path, width in zip(lines.get_paths(), lines.get_linewidths(), strict=True):
        if len(path.vertices) == 2:
            widths[tuple(np.round(path.vertices.ravel(), 6))] = width
    drawn = sorted(widths.values())
    np.testing.assert_allclose(
        drawn, np.interp(sorted(strengths.values()), [0, 1], np.array([0.12, 1]) * drawn_pen(lines))
    )
    other = edges_of(draw_routes(river, by="importance"))
    assert not np.allclose(sorted(other.get_linewidths()), sorted(lines.get_linewidths()))


def drawn_pen(lines):
    return 7.5 / 13**0.2


def test_tokens_heads_and_the_prediction_are_written(river):
    ax = river.draw()
    ax.figure.savefig(io.BytesIO())
    first, *others = (label.get_text() for label in ax.get_xticklabels())
    assert first.startswith("<|endo")
    assert first.endswith("|>")
    assert others == list(river.tokens[1:])
    texts = [text.get_text() for text in ax.texts]
    assert "→ lamp" in texts
    assert "2.0,2.1" in texts
    assert ax.get_title() == "routes to “␣lamp”"
    assert any(text.startswith("embedded") for text in texts)
    plain = river.draw(labels=False)
    assert "→ lamp" not in [text.get_text() for text in plain.texts]
    assert not plain.get_xticks().size


def test_it_draws_on_given_axes_and_dark_ones(river):
    figure = Figure()
    ax = figure.add_subplot()
    assert river.draw(ax=ax) is ax
    with mpl.rc_context({"text.color": "white", "figure.facecolor": "black"}):
        dark = river.draw()
    assert isinstance(edges_of(dark), PathCollection)
    assert not np.allclose(edges_of(dark).get_edgecolor()[-1], edges_of(ax).get_edgecolor()[-1])
    with pytest.raises(SelectionError, match="strength"):
        river.draw(by="weight")


def test_long_texts_show_the_tokens_on_a_route():
    long = routes("The dog ran. " * 24, threshold=0.1, progress=False)
    assert len(long.tokens) > 64
    ax = long.draw()
    shown = {position for _, position, _ in long}
    assert ax.get_xlim() == (-0.7, len(shown) - 0.3)
    ax.figure.savefig(io.BytesIO())


def test_hostile_tokens_are_drawn(river):
    hostile = river.copy()
    for n, node in enumerate(hostile):
        hostile.nodes[node]["token"] = ["$x_1$", "\n", "\0", "猫", "😀", "ש"][n % 6]
    hostile.graph["predicted"] = "$\\frac"
    hostile.graph["tokens"] = '["$a$", "\\n", "\\u0000", "' + '", "'.join("猫" * 10) + '"]'
    ax = hostile.draw()
    ax.figure.savefig(io.BytesIO())
    shown = {text.get_text() for text in ax.figure.findobj(mpl.text.Text)}
    assert any("frac" in text for text in shown)
    assert not any("\0" in text for text in shown)


def any_meet(texts):
    boxes = [text.get_window_extent() for text in texts]
    return any(one.overlaps(other) for one, other in combinations(boxes, 2))


@pytest.mark.parametrize("text", ["a", TEXT, TEXT * 4])
@pytest.mark.parametrize("by", ["strength", "importance"])
def test_names_of_heads_do_not_meet(text, by):
    ax = routes(text, progress=False).draw(by=by)
    ax.figure.savefig(io.BytesIO())
    names = [text for text in ax.texts if text.get_gid() == "gattn-heads"]
    assert len(names) > 1
    assert not any_meet(names)


@pytest.mark.parametrize("size", [(3.3, 2.4), (3.3, 3.3), (6.75, 3.3)])
def test_names_of_heads_hide_little_of_any_strong_edge(river, size):
    with mpl.rc_context({"font.size": 7}):
        ax = river.draw(paths=3, ax=Figure(size).add_subplot())
        ax.figure.canvas.draw()
    lines = edges_of(ax)
    strong = np.argsort(lines.get_linewidths())[-12:]
    names = [text.get_window_extent() for text in ax.texts if text.get_gid() == "gattn-heads"]
    assert len(names) >= 6
    for path in (lines.get_paths()[n] for n in strong):
        corners = lines.get_transform().transform(path.vertices)
        course = BezierSegment(corners[-4:])(np.linspace(0, 1, 60))
        hidden = [np.mean([box.contains(*point) for point in course]) for box in names]
        assert max(hidden) < 0.4


def test_long_names_of_heads_keep_their_distance():
    ax = new_axes(6, 3)
    ax.set(xlim=(0, 10), ylim=(0, 1))
    lines = LayeredEdges(ax, Pen(Scale(1.0, False, widest=3), mpl.colormaps["viridis"]))
    for n in range(50):
        lines.add(Line(1 / (n + 1), "self", Path([(0, 0)]), (n / 5, 0.5), "11.10,11,9…"))
    lines.name_strongest(50)
    ax.figure.savefig(io.BytesIO())
    assert len(ax.texts) > 2
    assert not any_meet(ax.texts)


def test_subgraphs_are_drawn_and_reversed_routes_are_refused(river):
    part = river.subgraph([node for node in river if node[2] != "middle"]).copy()
    lines = edges_of(part.draw())
    assert len(lines.get_paths()) == sum(f["kind"] != "output" for *_, f in part.edges(data=True))
    whole = {np.round(path.vertices, 6).tobytes() for path in edges_of(river.draw()).get_paths()}
    kinds = [path for path in lines.get_paths() if len(path.vertices) == 4]
    assert {np.round(path.vertices, 6).tobytes() for path in kinds} <= whole
    river.subgraph([]).draw()
    with pytest.raises(SelectionError, match="reversed"):
        river.reverse().draw()


def test_the_strongest_paths_stand_out(river):
    ax = river.draw(paths=2)
    (bright,) = (c for c in ax.collections if c.get_gid() == "gattn-paths")
    steps = {
        edge
        for nodes in river.paths(2)["nodes"]
        for step in pairwise(nodes)
        for way in nx.all_simple_edge_paths(river, *step, cutoff=2)
        if all(target[2] == "mlp" for _, target in way[:-1])
        for edge in way
        if river.edges[edge]["kind"] != "output"
    }
    assert len(bright.get_paths()) == len(steps)
    whole = {np.round(path.vertices, 6).tobytes() for path in edges_of(ax).get_paths()}
    assert {np.round(path.vertices, 6).tobytes() for path in bright.get_paths()} <= whole
    labels = [text.get_text().replace("\n", " ") for text in ax.get_legend().get_texts()]
    assert labels[-1] == "strongest paths"
    assert not any(c.get_gid() == "gattn-paths" for c in river.draw().collections)


def test_names_of_heads_have_a_ground_of_the_figures_colour(river):
    colours = {"text.color": "white", "figure.facecolor": "#102030", "axes.facecolor": "#102030"}
    with mpl.rc_context(colours):
        ax = river.draw()
    ax.figure.draw_without_rendering()
    names = [text for text in ax.texts if text.get_gid() == "gattn-heads"]
    assert names
    assert {to_hex(text.get_bbox_patch().get_facecolor()) for text in names} == {"#102030"}


@pytest.mark.parametrize("dark", [False, True])
def test_streams_and_mlps_differ_in_lightness(dark):
    colours = [to_rgb(layered._COLOURS[kind][dark]) for kind in ("stream", "mlp")]
    light = np.array(colours) @ (0.299, 0.587, 0.114)
    assert abs(light[0] - light[1]) > 0.15
