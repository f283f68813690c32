"""The tokens that were asked about have their names where not all have room."""

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
from meeting import drawn_texts, problems
from paper import FONT
from sample_heads import causal_head

from gattn import AttentionGraph, TokenGraph
from gattn.drawing import draw_overlay


def named(ax):
    found = [box.text.split()[0] for box in drawn_texts(ax.figure)]
    assert not problems(ax.figure)
    plt.close(ax.figure)
    return [int(name) for name in found if name.isdigit()]


@pytest.mark.parametrize("size", [(3.3, 2.4), (6.75, 3)])
@pytest.mark.parametrize("layout", ["matrix", "columns", "arcs", "circle"])
def test_asked_queries_and_keys_are_named_first(layout, size):
    with mpl.rc_context(FONT):
        ax = causal_head(91).draw(layout, query=[17, 43], key=[7, 31], figsize=size)
        found = named(ax)
    assert {17, 43, 7, 31} <= set(found)
    assert 6 <= len(found) < 91, "others have the room that is left"


def test_rows_of_a_small_matrix_that_are_not_named_first_stay_away_from_those_that_are():
    with mpl.rc_context(FONT):
        ax = causal_head(13).draw("matrix", query=[5, 9], figsize=(3.3, 1.6))
        named(ax)
    rows = [int(tick) for tick in ax.get_yticks()]
    assert {5, 9} <= set(rows)
    assert len(rows) > 4


def test_of_asked_tokens_without_room_for_all_some_are_named():
    with mpl.rc_context(FONT):
        ax = causal_head(60).draw("matrix", query=list(range(20, 40)), figsize=(3.3, 1.6))
        named(ax)
    assert 20 in ax.get_yticks()


def test_both_sides_of_two_texts_have_asked_tokens():
    attention = np.random.default_rng(1).dirichlet(np.ones(50), 40)
    head = AttentionGraph.from_dense(attention, TokenGraph.bipartite(40, 50))
    with mpl.rc_context(FONT):
        found = named(head.draw("columns", query=[17, 33], key=[7, 31], figsize=(3.3, 1.6)))
    assert [found.count(place) for place in (17, 33, 7, 31)] == [1, 1, 1, 1]


def test_of_several_heads_asked_tokens_are_named_first():
    with mpl.rc_context(FONT):
        heads = [causal_head(51, seed=n, head=n) for n in range(2)]
        found = named(draw_overlay(heads, "columns", query=43, figsize=(3.3, 2.4)))
    assert 43 in found
