"""Around a circle, the last label does not meet the first."""

import matplotlib.pyplot as plt
import numpy as np
import pytest
from meeting import problems

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
