"""Around a circle, the last label does not meet the first."""

import matplotlib.pyplot as plt
import numpy as np
import pytest
from meeting import problems
from paper import HEADS
from seen import texts

import gattn


@pytest.mark.parametrize("count", [100, 101, 121, 141])
def test_labels_around_a_circle_stay_apart(count):
    head = gattn.AttentionTrace.from_arrays(np.eye(count)[None, None])[0, 0]
    with plt.rc_context({"font.size": 7}):
        ax = head.draw("circle", figsize=(3.3, 2.4))
        ax.figure.canvas.draw()
    places = {
        text.get_text(): np.array(text.get_position())
        for text in ax.texts
        if text.get_text() and text.get_rotation_mode() == "anchor"
    }
    assert len(places) > 8
    assert "0" in {name.split()[0] for name in places}
    angles = np.sort([np.arctan2(y, x) for x, y in places.values()])
    apart = np.diff([*angles, angles[0] + 2 * np.pi])
    assert apart.min() > 0.6 * np.median(apart)


@pytest.mark.parametrize("layout", ["arcs", "circle"])
@pytest.mark.parametrize("sizes", [(2, 40), (5, 40), (40, 5), (5, 200), (12, 120), (90, 100)])
def test_of_a_few_queries_among_many_keys_each_has_its_name(layout, sizes):
    """Names of the longer side thin out, those of the shorter do not, and none meet."""
    queries, keys = sizes
    names = [f"w{n}" for n in range(keys)], [f"Wort{n}" for n in range(queries)]
    head = gattn.AttentionGraph.from_dense(
        np.full(sizes, 1 / keys), gattn.TokenGraph.bipartite(*sizes),
        tokens=names[0], query_tokens=names[1],
    )  # fmt: skip
    with plt.rc_context({"font.size": 7}):
        figure = head.draw(layout, figsize=(3.3, 2.4)).figure
    assert not problems(figure)
    shown = texts(figure.axes[0], "gattn-label")
    few = min(names, key=len)
    if len(few) <= {"arcs": 5, "circle": 12}[layout]:
        assert set(few) <= set(shown)
    assert len(shown) > min(len(few), 15)


@pytest.mark.parametrize("sizes", [(30, 50), (50, 30), (12, 60)])
def test_labels_of_more_keys_than_queries_stay_apart(sizes):
    graph = gattn.TokenGraph.bipartite(*sizes)
    attention = np.full(sizes, 1 / sizes[1])
    words = [["captain", "of", "the", "Danube"][n % 4] for n in range(60)]
    head = gattn.AttentionGraph.from_dense(
        attention, graph, tokens=words[: sizes[1]], query_tokens=words[: sizes[0]]
    )
    with plt.rc_context({"font.size": 7}):
        for size in ((3.3, 2.6), (6.75, 3.6)):
            assert not problems(head.draw("circle", figsize=size).figure)


@pytest.mark.parametrize("size", [(1.7, 1.7), (2.0, 1.5), (2.0, 2.0), (3.3, 1.5)])
@pytest.mark.parametrize("name", ["13 tokens", "both ways"])
def test_short_words_are_whole_around_a_small_circle(name, size):
    head = HEADS[name]()
    with plt.rc_context({"font.size": 7}):
        figure = head.draw("circle", figsize=size).figure
    assert not problems(figure)
    assert set(head.tokens) == set(texts(figure.axes[0], "gattn-label"))
    plt.close(figure)
