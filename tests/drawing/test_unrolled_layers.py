"""Pictures of unrolled layers: as lines, and as ribbons."""

import io
import itertools
import re

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.figure import Figure
from meeting import problems
from sample_heads import causal_head, uniform_head
from seen import caption

import gattn
from gattn.errors import SelectionError
from gattn.heads.head import AttentionGraph
from gattn.heads.stack import Stack
from gattn.keep import TopK

HOSTILE = ["$x^2$", "a\nb", "\0", "注意", "😀", "שלום", "\u202eabc", "x" * 80, "", "<b>"]
WORDS = ["The", "dog", "chased", "the", "cat"]


def stack_of(size, *, layers=3, tokens=None, make=None):
    heads = {}
    for layer in range(layers):
        head = make(size) if make else causal_head(size, seed=layer, layer=layer, head=0)
        heads[layer, 0] = AttentionGraph.from_dense(
            head.to_dense(), head.graph, tokens=tokens or head.labels(), layer=layer, head=0
        )
    return Stack("decoder", heads)


def one_key_each(size):
    return AttentionGraph.from_dense(np.roll(np.eye(size), 1, axis=1))


@pytest.fixture
def graph():
    return stack_of(5, tokens=WORDS).unroll()


def part(ax, name):
    (found,) = (c for c in ax.collections if c.get_gid() == f"gattn-{name}")
    return found


def texts_of(ax, name):
    return [text.get_text() for text in ax.texts if text.get_gid() == f"gattn-{name}"]


def test_streams_are_straight_and_attention_is_curved(graph):
    lines = part(graph.draw(), "edges")
    straight = [path for path in lines.get_paths() if len(path.vertices) == 2]
    assert len(straight) == 3 * 5
    assert all(path.vertices[0, 0] == path.vertices[1, 0] for path in straight)
    assert 3 * 5 < len(lines.get_paths()) - len(straight) < 3 * 15  # causal, but for weak ones
    greys = lines.get_edgecolor()[: len(straight)]
    assert (np.ptp(greys[:, :3], axis=1) < 0.05).all()


def test_widths_are_weights(graph):
    ax = graph.draw()
    lines = part(ax, "edges")
    pen = float(np.max([line.get_linewidth() for line in ax.get_legend().get_lines()]))
    drawn = {
        tuple(np.round(path.vertices[[0, -1]].ravel(), 6)): width
        for path, width in zip(lines.get_paths(), lines.get_linewidths(), strict=True)
        if path.vertices[0, 0] != path.vertices[-1, 0]
    }
    others = [
        ((key, depth, query, after), facts["weight"])
        for (depth, key), (after, query), facts in graph.edges(data=True)
        if key != query
    ]
    weights = dict(others)
    for place, width in drawn.items():
        assert width == pytest.approx(pen * (0.12 + 0.88 * weights[place]))
    hidden = [weight for place, weight in others if place not in drawn]
    assert max(hidden) < min(weights[place] for place in drawn)
    assert sum(hidden) < 0.01 * sum(facts["attention"] for *_, facts in graph.edges(data=True))
    assert "of 45 edges, 99" in caption(ax)


def test_a_rollout_writes_the_shares_of_the_input_and_rings_the_target(graph):
    passed = graph.rollout(query=-1)
    ax = passed.draw()
    shares = [f"{passed.nodes[0, n]['passes']:.2f}" for n in range(5)]
    assert set(texts_of(ax, "shares")) <= set(shares)
    assert len(texts_of(ax, "shares")) >= 3
    np.testing.assert_allclose(part(ax, "query").get_offsets(), [[4, 3]])
    assert ax.get_title() == "rollout to 4 “cat”"
    assert note_of(ax).partition("decoder stack, layers 0-2")[1]


@pytest.mark.parametrize("size", [(3.3, 2.0), (3.3, 2.4), (7, 5)])
def test_shares_stand_below_the_nodes_of_the_input(graph, size):
    with mpl.rc_context({"font.size": 7}):
        ax = graph.rollout(query=-1).draw(figsize=size)
        ax.figure.canvas.draw()
    shares = [text for text in ax.texts if text.get_gid() == "gattn-shares"]
    assert shares
    point, (_, node) = ax.figure.dpi / 72, ax.transData.transform((0, 0))
    low, _ = ax.get_window_extent().get_points()
    for text in shares:
        box = text.get_window_extent()
        assert low[1] < box.y0
        assert box.y1 < node - 2 * point  # half of a node, whose area is 14 square points
    plt.close(ax.figure)


@pytest.mark.parametrize("tokens", [13, 30])
def test_shares_of_a_narrow_picture_are_as_many_as_fit_and_the_largest(tokens):
    passed = stack_of(tokens).unroll().rollout(query=-1)
    with mpl.rc_context({"font.size": 7}):
        ax = passed.draw(figsize=(3.3, 2.8))
        assert not problems(ax.figure)
    written = {
        round(text.get_position()[0]): float(text.get_text())
        for text in ax.texts
        if text.get_gid() == "gattn-shares"
    }
    shares = [passed.nodes[0, n]["passes"] for n in range(tokens)]
    assert len(written) == 9 if tokens == 13 else len(written) > 5
    for n in [n for n in range(tokens) if shares[n] >= 0.005 and n not in written]:
        beside = [shares[m] for m in written if abs(m - n) <= 2]
        assert max(beside, default=0) >= shares[n] or min(written.values()) + 0.005 >= shares[n]


def test_a_flow_says_how_much_and_that_its_ways_are_one_choice(graph):
    found = graph.flow(key=0, query=4)
    ax = found.draw()
    title = ax.get_title().replace("\n", " ")
    assert f"flow from 0 “The” to 4 “cat”: {found.nodes[3, 4]['passes']:.3g}" in title
    assert any("one of several maximum flows" in t.get_text().replace("\n", " ") for t in ax.texts)


def test_what_passes_between_two_tokens_fills_the_scale(graph):
    found = graph.rollout(key=0, query=4)
    whole = found.nodes[3, 4]["passes"]
    ax = found.draw()
    texts = [text.get_text() for text in ax.get_legend().get_texts()]
    assert texts[:2] == [f"{whole:.3g}", f"{whole / 2:.2g}"]
    pen = ax.get_legend().get_lines()[0].get_linewidth()
    most = max(facts["passes"] for *_, facts in found.edges(data=True))
    widest = float(np.max(part(ax, "edges").get_linewidths()))
    assert pen * 0.5 < widest <= pen * (0.12 + 0.88 * most / whole) + 1e-9


def test_chosen_heads_are_named_on_their_edges():
    ax = stack_of(5, tokens=WORDS).unroll(heads=[(1, 0)]).draw()
    assert set(texts_of(ax, "heads")) == {"1.0"}


def test_a_long_text_says_which_edges_it_shows():
    ax = stack_of(60, layers=2).unroll().draw()
    lines = part(ax, "edges")
    attention = sum(len(path.vertices) > 2 for path in lines.get_paths())
    notes = " ".join(text.get_text().replace("\n", " ") for text in ax.texts)
    assert f": {attention:,} of 3,660 edges" in notes
    assert attention <= 2 * 120


def drawn_edges(ax):
    """The (layer, query, key) of the lines of attention."""
    ends = [path.vertices for path in part(ax, "edges").get_paths() if len(path.vertices) > 2]
    return {(round(v[0, 1]), round(v[-1, 0]), round(v[0, 0])) for v in ends}


def note_of(ax):
    return " ".join(text.get_text().replace("\n", " ") for text in ax.texts)


@pytest.mark.parametrize("passes", [False, True])
def test_the_threshold_is_of_what_is_shown(passes):
    graph = stack_of(30, layers=2).unroll()
    if passes:
        graph = graph.rollout(query=-1)
    ax = graph.draw()
    named = "what attention passes" if passes else "attention"
    least = float(re.search(named + r" ≥ ([\d.]+):", note_of(ax))[1])
    sizes = {
        (depth, query, key): facts["passes" if passes else "weight"]
        for (depth, key), (_, query), facts in graph.edges(data=True)
        if key != query
    }
    expected = {place for place, size in sizes.items() if size >= least}
    assert {place for place in drawn_edges(ax) if place[1] != place[2]} == expected
    assert 0 < len(expected) < len(sizes)


@pytest.mark.parametrize("is_causal", [False, True])
def test_uniform_attention_of_a_long_text_does_not_vanish(is_causal):
    matrix = np.tril(np.ones((120, 120))) if is_causal else np.ones((120, 120))
    head = AttentionGraph.from_dense(matrix / matrix.sum(1, keepdims=True), layer=0, head=0)
    ax = Stack("decoder", {(0, 0): head}).unroll().draw()
    drawn = drawn_edges(ax)
    assert len({query for _, query, _ in drawn}) > 70
    assert len({key for _, _, key in drawn}) > 50
    assert len(drawn) <= 240
    assert "of the strongest" in note_of(ax)


@pytest.mark.parametrize("make", [uniform_head, one_key_each])
def test_no_text_has_more_edges_than_a_picture_can_hold(make):
    ax = stack_of(64, layers=50, make=make).unroll(residual=0.1).draw()
    assert 1000 < len(drawn_edges(ax)) <= 3000
    assert "inf" not in note_of(ax)


def test_ribbons_say_what_came_over_no_edge():
    head = causal_head(8, seed=0).keep(TopK(2))
    passed = Stack("decoder", {(0, 0): head}).unroll().rollout(query=-1)
    lost = 1 - passed.matrices("passes").sum()
    assert lost > 0.01
    assert f"{100 * lost:.0f} % came over edges that are not here" in note_of(
        passed.draw("ribbons")
    )
    assert "no edge" not in note_of(stack_of(8).unroll().rollout(query=-1).draw("ribbons"))


@pytest.mark.parametrize("layout", ["layered", "ribbons"])
@pytest.mark.parametrize("style", ["default", "dark_background"])
def test_hostile_tokens_are_drawn_in_layers(layout, style):
    with mpl.style.context(style):
        ax = stack_of(10, tokens=HOSTILE).unroll().rollout(query=-1).draw(layout)
        ax.figure.savefig(io.BytesIO())
        ax.figure.savefig(io.BytesIO(), format="svg")
    shown = {text.get_text() for text in ax.figure.findobj(mpl.text.Text)}
    assert len(shown) > 10
    assert not any("\0" in text for text in shown)


@pytest.mark.parametrize("layers", [1, 3])
def test_ribbons_add_up_to_the_whole_target_in_each_layer(layers):
    passed = stack_of(12, layers=layers).unroll().rollout(query=-1)
    ax = passed.draw("ribbons")
    wide = dict.fromkeys(range(layers + 1), 0.0)
    for bar in ax.patches:
        wide[round(bar.get_y() + bar.get_height() / 2)] += bar.get_width()
    np.testing.assert_allclose(list(wide.values()), 1)
    at = dict.fromkeys(range(layers), 0.0)
    for path in part(ax, "ribbons").get_paths():
        (x, y), *_, (other, _) = path.vertices[:8]
        at[int(y)] += other - x
        x_end, other_end = path.vertices[3, 0], path.vertices[4, 0]
        assert other_end - x_end == pytest.approx(other - x)
    np.testing.assert_allclose(list(at.values()), 1)


def test_ribbons_of_little_tokens_are_one_and_say_so():
    ax = stack_of(40).unroll().rollout(query=-1).draw("ribbons")
    ticks = [label.get_text() for label in ax.get_xticklabels()]
    (others,) = (text for text in ticks if "others" in text)
    named = int(others.split()[0])
    assert named == 40 - 8
    percents = [int(text.split()[-2]) for text in ticks]
    assert sum(percents) == pytest.approx(100, abs=len(ticks) / 2)
    assert any("others have at most" in t.get_text().replace("\n", " ") for t in ax.texts)


def test_labels_of_ribbons_do_not_meet():
    ax = stack_of(40, layers=2).unroll().rollout(query=-1).draw("ribbons")
    ax.figure.savefig(io.BytesIO())
    boxes = [label.get_window_extent() for label in ax.get_xticklabels()]
    assert len(boxes) > 5
    assert not any(one.overlaps(other) for one, other in itertools.pairwise(boxes))


def test_ribbons_are_refused_where_there_is_no_target(graph):
    for other in (graph, graph.rollout(key=0), graph.flow(key=0, query=4)):
        with pytest.raises(SelectionError, match="Ribbons show"):
            other.draw("ribbons")
    with pytest.raises(SelectionError, match="'layered' or 'ribbons'"):
        graph.draw("arcs")


@pytest.mark.mpl_image_compare(savefig_kwargs={"dpi": 60})
def test_unrolled_layers_as_lines(graph):
    return graph.draw().figure


@pytest.mark.mpl_image_compare(savefig_kwargs={"dpi": 60})
def test_rollout_on_unrolled_layers(graph):
    return graph.rollout(query=-1).draw().figure


@pytest.mark.mpl_image_compare(savefig_kwargs={"dpi": 60})
def test_rollout_as_ribbons():
    return stack_of(12).unroll().rollout(query=-1).draw("ribbons").figure


@pytest.mark.parametrize("shade", ["paper", "dark"])
def test_ribbons_are_told_apart_in_grey(shade):
    with gattn.style(shade):
        ax = (
            stack_of(13)
            .unroll()
            .rollout(query=-1)
            .draw("ribbons", ax=Figure((3.3, 2.4)).add_subplot())
        )
    (ribbons,) = [one for one in ax.collections if one.get_gid() == "gattn-ribbons"]
    colours = np.unique(ribbons.get_facecolors(), axis=0)
    assert len(colours) == 9
    greys = colours[:, 3] * (colours[:, :3] @ [0.299, 0.587, 0.114])
    assert np.diff(np.sort(greys)).min() > 0.02


@pytest.mark.parametrize("tokens", [13, 80])
def test_the_ring_around_an_end_does_not_touch_the_key(tokens):
    ax = stack_of(tokens).unroll().rollout(query=-1).draw(ax=Figure((3.3, 2.4)).add_subplot())
    ax.figure.draw_without_rendering()
    (ring,) = [one for one in ax.collections if one.get_gid() == "gattn-query"]
    wide = float(ring.get_sizes()[0]) ** 0.5 + float(ring.get_linewidths()[0])
    right = ax.transData.transform(ring.get_offsets())[0, 0] + wide / 2 * ax.figure.dpi / 72
    assert right < ax.get_legend().get_window_extent().x0
