"""Attention on the layout that a graph brings with it."""

from dataclasses import replace

import matplotlib as mpl
import networkx as nx
import numpy as np
import pytest
import torch
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from scenes import attention
from seen import axes, caption, drawn_edges, texts

import gattn
from gattn import AttentionGraph, AttentionTrace, TokenGraph, TopK
from gattn.drawing import draw_graph
from gattn.errors import SelectionError, ShapeError
from gattn.heads.stack import Stack


def network(seed=0):
    """The karate club, each member reading its friends and itself."""
    generator = np.random.default_rng(seed)
    graph = nx.DiGraph(nx.karate_club_graph().to_directed())
    graph.add_edges_from((node, node) for node in graph)
    for node in graph:
        friends = list(graph.predecessors(node))
        for friend, share in zip(friends, generator.dirichlet(np.ones(len(friends))), strict=True):
            graph.edges[friend, node]["weight"] = float(share)
    return graph


ARROWS = "arrows: key → query"
GRAPH = network()
PLACES = nx.circular_layout(GRAPH)
HEAD = replace(AttentionGraph.from_networkx(GRAPH), layer=0, head=1).with_layout(PLACES)


def nodes(ax, gid="gattn-nodes"):
    (found,) = [dots for dots in ax.collections if dots.get_gid() == gid]
    return found


def faint(ax):
    return sum(len(c.get_segments()) for c in ax.collections if c.get_gid() == "gattn-faint")


def test_nodes_stand_where_the_data_says():
    ax = HEAD.draw_graph()
    np.testing.assert_allclose(nodes(ax).get_offsets(), [PLACES[node] for node in range(34)])
    assert ax.get_title() == "layer 0 · head 1"
    assert f"{drawn_edges(ax)} of {len(GRAPH.edges)} edges" in caption(ax)
    assert not faint(ax)
    assert ax.get_aspect() == 1


@pytest.mark.parametrize("seed", [1, 4])
def test_names_of_nodes_cover_no_node(seed):
    ax = HEAD.with_layout(nx.spring_layout(GRAPH, seed=seed)).draw_graph(query=33)
    ax.figure.draw_without_rendering()
    dots = ax.transData.transform(nodes(ax).get_offsets())
    named = [text for text in ax.texts if text.get_gid() == "gattn-label"]
    assert len(named) > 30
    for text in named:
        box = text.get_window_extent()
        inside = (dots > [box.x0, box.y0]) & (dots < [box.x1, box.y1])
        assert not inside.all(axis=1).any(), text.get_text()


def placed_labels(head, size, **options):
    """Draw a head at the size of a paper; return nodes, labels and lines to them in points."""
    with mpl.rc_context({"font.size": 7}):
        ax = head.draw_graph(ax=Figure(size, layout="constrained").add_subplot(), **options)
    ax.figure.set_dpi(72)
    ax.figure.draw_without_rendering()
    to_points = ax.transData.transform
    dots = to_points(nodes(ax).get_offsets())
    radius = nodes(ax).get_sizes()[0] ** 0.5 / 2
    named = [text for text in ax.texts if text.get_gid() == "gattn-label"]
    boxes = {text.get_text(): text.get_window_extent().get_points() for text in named}
    (lines,) = [c for c in ax.collections if c.get_gid() == "gattn-leaders"]
    return dots, radius, boxes, [to_points(line) for line in lines.get_segments()]


@pytest.mark.parametrize("query", [None, 33])
@pytest.mark.parametrize("size", [(3.3, 2.4), (3.3, 3.3), (6.75, 4.5)])
@pytest.mark.parametrize("seed", [1, 3])
def test_at_the_size_of_a_paper_each_label_is_at_its_node_or_joined_to_it(seed, size, query):
    head = HEAD.with_layout(nx.spring_layout(nx.karate_club_graph(), seed=seed))
    dots, radius, boxes, lines = placed_labels(head, size, query=query)
    assert len(boxes) >= (24 if size == (3.3, 2.4) else 34)
    along = np.linspace(0, 1, 200)[:, None]
    for one, (name, (low, high)) in enumerate(boxes.items()):
        away = np.hypot(*np.maximum(np.maximum(low - dots, dots - high), 0).T)
        assert away.min() > radius, name
        for other, (begin, end) in list(boxes.items())[:one]:
            assert (np.minimum(high, end) - np.maximum(low, begin)).min() < 0.3, (name, other)
        ends = [line for line in lines if ((line[1] > low - 2) & (line[1] < high + 2)).all()]
        own = [line for line in ends if np.hypot(*(line[0] - dots[int(name)])) < radius + 0.1]
        if not own:
            assert away.argmin() == int(name), name
        elif query is None:  # What a query reads has a label wherever one has room.
            others = np.delete(away, int(name))
            assert others.min() > radius + 2.5, name  # Beside no other node, as its label would be.
    height = min(high[1] - low[1] for low, high in boxes.values())
    for line in lines:
        assert np.hypot(*(line[1] - line[0])) < 5 * height  # Not across the plot.
        points = line[0] + (line[1] - line[0]) * along
        owner = np.hypot(*(dots - line[0]).T).argmin()
        others = np.delete(dots, owner, axis=0)
        assert np.hypot(*(points[:, None] - others).T).min() > radius


@pytest.mark.parametrize("size", [(3.3, 3.0), (4.6, 4.4), (6.75, 5)])
@pytest.mark.parametrize("seed", [1, 4])
def test_no_loop_lies_on_a_name(seed, size):
    head = HEAD.with_layout(nx.spring_layout(GRAPH, seed=seed))
    with mpl.rc_context({"font.size": 7}):
        ax = head.draw_graph(threshold=0.02, ax=Figure(size).add_subplot())
    ax.figure.draw_without_rendering()
    boxes = [text.get_window_extent() for text in ax.texts if text.get_gid() == "gattn-label"]
    _, loops = (c for c in ax.collections if c.get_gid() == "gattn-edges")
    assert len(loops.get_paths()) > 25
    for path in loops.get_paths():
        (points,) = path.transformed(ax.transData).to_polygons(closed_only=False)
        assert len(points) > 6
        for box in boxes:
            inside = (points > [box.x0, box.y0]) & (points < [box.x1, box.y1])
            assert not inside.all(axis=1).any()


def test_loops_open_where_no_edges_lead():
    edges = torch.tensor([[0, 1, 2, 3, 0, 1], [0, 0, 0, 0, 1, 1]])
    head = AttentionGraph.from_edges(edges, torch.full((6,), 0.5), num_tokens=4)
    head = head.with_layout([[0, 0], [-1, 1], [1, 1], [0, 1.4]])
    ax = head.draw_graph(ax=axes())
    _, loops = (c for c in ax.collections if c.get_gid() == "gattn-edges")
    down, away = (path.vertices[1:3].mean(0) - path.vertices[0] for path in loops.get_paths())
    assert down[1] < 0
    assert abs(down[0]) < 1e-6 * -down[1]
    np.testing.assert_allclose(away / np.hypot(*away), np.array([-1, 1]) / 2**0.5, atol=1e-6)


def test_names_that_differ_need_no_numbers():
    named = replace(HEAD, tokens=tuple(f"member {n}" for n in range(34)))
    assert set(texts(named.draw_graph(), "gattn-label")) <= set(named.tokens)
    twice = replace(HEAD, tokens=("one", *["two"] * 33))
    assert "2 two" in texts(twice.draw_graph(), "gattn-label")


def test_edges_run_from_key_to_query_as_wide_as_their_attention():
    ax = HEAD.draw_graph(threshold=0.3, self_loops=False)
    strong = [(a, b) for a, b, w in GRAPH.edges.data("weight") if w >= 0.3 and a != b]
    assert drawn_edges(ax) == len(strong)
    lines = next(c for c in ax.collections if c.get_gid() == "gattn-edges")
    ends = {
        (tuple(path.vertices[0].round(6)), tuple(path.vertices[-1].round(6)))
        for path in lines.get_paths()
    }
    assert ends == {(tuple(PLACES[a].round(6)), tuple(PLACES[b].round(6))) for a, b in strong}
    weights = sorted(GRAPH.edges[edge]["weight"] for edge in strong)
    slope = np.polyfit(weights, lines.get_linewidths(), 1)
    np.testing.assert_allclose(np.polyval(slope, weights), lines.get_linewidths(), rtol=1e-6)


def test_a_query_is_ringed_and_shows_all_that_it_reads():
    ax = HEAD.draw_graph(5)
    friends = list(GRAPH.predecessors(5))
    assert drawn_edges(ax) == len(friends)
    assert faint(ax) == len(GRAPH.edges)
    np.testing.assert_allclose(nodes(ax, "gattn-outline").get_offsets(), [PLACES[5]])
    said = f"what query 5 reads: all {len(friends)} edges"
    assert caption(ax) == f"{said}; {ARROWS}"
    fills = nodes(ax).get_facecolors()
    others = [node for node in GRAPH if node not in friends]
    assert (fills[others] == fills[others[0]]).all()
    darkness = fills[friends][:, :3].sum(1)
    shares = [GRAPH.edges[friend, 5]["weight"] for friend in friends]
    assert (np.argsort(-darkness) == np.argsort(shares)).all()


def test_self_loops_can_be_left_out_and_are_said():
    head = HEAD.without_self_loops()
    for ax in (HEAD.draw_graph(5, self_loops=False), head.draw_graph(5)):
        assert drawn_edges(ax) == GRAPH.in_degree(5) - 1
        own = 1 - GRAPH.edges[5, 5]["weight"]
        assert f"{GRAPH.in_degree(5) - 1} of {GRAPH.in_degree(5)} edges, {100 * own:.0f} %" in (
            caption(ax)
        )


def test_several_queries_and_heads():
    other = AttentionGraph.from_networkx(network(seed=1)).with_layout(PLACES)
    ax = draw_graph([HEAD, other], [5, 6], threshold=0.01)
    assert nodes(ax, "gattn-outline").get_offsets().shape == (2, 2)
    mean = (HEAD.to_dense() + other.to_dense()) / 2
    shown = int((mean[[5, 6]] >= 0.01).sum())
    assert drawn_edges(ax) == shown
    assert ax.get_title() == "mean of 2 heads"
    trace = AttentionTrace({"gat": Stack("gat", {(0, 0): HEAD, (0, 1): other})})
    assert drawn_edges(trace.draw_graph(5, heads="0.1")) == GRAPH.in_degree(5)


def test_heads_of_other_edges_are_averaged_over_both():
    one = AttentionGraph.from_edges([[0, 1], [0, 0]], [0.4, 0.6], num_tokens=2)
    two = AttentionGraph.from_edges([[0, 1], [0, 1]], [1.0, 1.0], num_tokens=2)
    places = [[0, 0], [1, 0]]
    ax = draw_graph([one.with_layout(places), two.with_layout(places)], [0, 1])
    lines = [c for c in ax.collections if c.get_gid() == "gattn-edges"]
    widths = sorted(np.concatenate([line.get_linewidths() for line in lines]))
    scale = [0.3, 0.5, 0.7]  # of (1 <- 0), (1 <- 1), (0 <- 0)
    np.testing.assert_allclose(np.diff(widths) / np.diff(scale), np.diff(widths)[0] / 0.2)


def test_names_are_written_and_the_query_first():
    named = replace(HEAD, tokens=tuple(f"member {n}" for n in range(34)))
    assert "member 33" in " ".join(texts(named.draw_graph("member 33"), "gattn-label"))
    assert not texts(named.draw_graph(labels=False), "gattn-label")


def test_keys_and_queries_have_their_own_places_and_a_sink_one_below():
    head = AttentionGraph.from_dense(
        attention(2, 3), TokenGraph.bipartite(2, 3), tokens=list("abc"), query_tokens=list("xy")
    )
    with pytest.raises(ShapeError, match="not known where the nodes"):
        head.with_layout([[0, 0], [1, 0], [2, 0]]).draw_graph()
    placed = head.with_layout([[0, 0], [1, 0], [2, 0]]).with_layout([[0, 1], [2, 1]])
    ax = placed.draw_graph("y")
    assert nodes(ax).get_offsets().tolist() == [[0, 0], [1, 0], [2, 0], [0, 1], [2, 1]]
    assert drawn_edges(ax) == 3
    assert "arrows: key → query" in caption(ax)
    ax = replace(placed, sink=np.array([0.1, 0.2])).draw_graph()
    np.testing.assert_allclose(nodes(ax).get_offsets()[-1], [-0.24, -0.12])


def test_what_cannot_be_drawn_is_refused():
    with pytest.raises(ShapeError, match=r"head.with_layout\(data.pos\)"):
        AttentionGraph.from_networkx(GRAPH).draw_graph()
    with pytest.raises(ShapeError, match="they have Grid"):
        AttentionGraph.from_dense(attention(4, 4)).on_grid(2, 2).draw_graph()
    with pytest.raises(SelectionError, match=r"0 \.\. 33"):
        HEAD.draw_graph(34)
    with pytest.raises(SelectionError, match="threshold is a number"):
        HEAD.draw_graph(threshold="high")
    with pytest.raises(SelectionError, match=r"threshold=1\.5 shows nothing"):
        HEAD.draw_graph(threshold=1.5)
    with pytest.raises(SelectionError, match="a head, or several"):
        draw_graph([])
    nowhere = AttentionGraph.from_dense(attention(2, 2)).with_layout([[0, 0], [np.nan, np.nan]])
    with pytest.raises(ShapeError, match="node 1 lies nowhere"):
        nowhere.draw_graph()


def test_it_is_drawn_on_axes_of_ones_own():
    ax = axes()
    assert HEAD.draw_graph(ax=ax, legend=False) is ax
    assert ax.get_legend() is None
    assert to_rgba(nodes(ax).get_edgecolors()[0]) == to_rgba("black")


@pytest.mark.parametrize("count", [0, 1, 2, 400])
def test_any_number_of_nodes_can_be_drawn(count):
    matrix = np.eye(count) if count < 3 else attention(count, count)
    places = np.random.default_rng(0).normal(size=(count, 2))
    head = AttentionGraph.from_dense(matrix).with_layout(places)
    assert len(nodes(head.draw_graph()).get_offsets()) == count


def mean_of_two(keep=None, sign=1.0):
    rows = np.array([[0.7, 0.1, 0.1, 0.1]] * 4), sign * np.array([[0.1, 0.1, 0.1, 0.7]] * 4)
    heads = [
        AttentionGraph.from_dense(row, tokens=list("abcd")).with_layout(SQUARE) for row in rows
    ]
    return heads if keep is None else [head.keep(keep) for head in heads]


SQUARE = [(0, 0), (1, 0), (1, 1), (0, 1)]


@pytest.mark.parametrize(
    ("query", "edges"),
    [(None, 16), (1, 4)],
)
def test_a_mean_of_kept_edges_counts_each_pair_once(query, edges):
    """Each head dropped other edges: together they show all, but not all that the heads give."""
    heads = mean_of_two(TopK(3))
    said = caption(draw_graph(heads, query))
    assert said.endswith(f"TopK(3): {edges} of {edges} edges, 90 % of the attention; {ARROWS}")
    assert sum(int(head.total_edges.sum()) for head in heads) == 32


def test_a_mean_of_all_edges_is_all_even_if_signs_cancel():
    assert caption(draw_graph(mean_of_two())) == f"all 16 edges; {ARROWS}"
    assert caption(draw_graph(mean_of_two(sign=-1.0), threshold=0)) == f"all 16 edges; {ARROWS}"


def crowd():
    """Nodes that are more than can be named, each reading its neighbours and itself."""
    graph = nx.random_geometric_graph(120, 0.2, seed=1)
    reads = nx.DiGraph(graph.to_directed())
    reads.add_edges_from((node, node) for node in graph)
    generator = np.random.default_rng(0)
    for node in reads:
        keys = list(reads.predecessors(node))
        for key, share in zip(keys, generator.dirichlet(np.ones(len(keys))), strict=True):
            reads.edges[key, node]["weight"] = float(share)
    return AttentionGraph.from_networkx(reads).with_layout(nx.spring_layout(graph, seed=0))


@pytest.mark.parametrize("query", [0, 30, 60])
def test_the_query_is_named_before_all_others_and_then_what_it_reads_most(query):
    head = crowd()
    with gattn.style("paper"):
        ax = head.draw_graph(query, figsize=(3.3, 2.2))
    ax.figure.draw_without_rendering()
    given = head.to_dense()[query]
    named = set(map(int, texts(ax, "gattn-label")))
    assert {query, *np.argsort(-given)[:3].tolist()} <= named
    assert given[sorted(named)].sum() > 0.8
    assert f"labels of {len(named)} of 120 nodes have room" in caption(ax)


@pytest.mark.parametrize("size", [(3.3, 2.3), (3.3, 3), (6.75, 5)])
@pytest.mark.parametrize("seed", range(2))
def test_labels_of_a_graph_of_34_nodes_lie_on_no_loops(size, seed):
    graph = nx.karate_club_graph()
    reads = nx.DiGraph(graph.to_directed())
    reads.add_edges_from((node, node) for node in graph)
    for _, node, edge in reads.edges(data=True):
        edge["weight"] = 1 / reads.in_degree(node)
    places = nx.spring_layout(graph, seed=seed)
    head = AttentionGraph.from_networkx(reads)
    with gattn.style("paper"):
        drawn = (
            head.with_layout(places).draw_graph(figsize=size),
            head.draw(lambda _: places, figsize=size),
        )
        for ax in drawn:
            ax.figure.canvas.draw()
            found = [path for lines in ax.collections for path in lines.get_paths()]
            loops = [
                ax.transData.transform_path(path) for path in found
                if len(path.vertices) > 3 and np.allclose(path.vertices[0], path.vertices[-1])
                and path.vertices[0].tolist() in np.array(list(places.values())).tolist()
            ]  # fmt: skip
            assert len(loops) >= 20
            labels = [text for text in ax.texts if text.get_gid() == "gattn-label"]
            boxes = [text.get_window_extent() for text in labels if text.get_text()]
            assert not [box for box in boxes for loop in loops if loop.intersects_bbox(box)]
