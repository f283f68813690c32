import dataclasses
import math

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
from meeting import drawn_texts, problems
from sample_heads import bipartite_head, causal_head, decoding_step

from gattn import AttentionGraph, TokenGraph
from gattn.drawing.canvas import layouts


def with_sink(head):
    return dataclasses.replace(head, sink=np.full(head.graph.num_queries, 0.2))


def test_arcs_put_tokens_on_a_line_in_order():
    assert layouts.arcs(causal_head(3)) == {0: (0.0, 0.0), 1: (1.0, 0.0), 2: (2.0, 0.0)}


def test_arcs_put_keys_before_queries_with_a_gap():
    places = layouts.arcs(bipartite_head())
    assert [places["key", j][0] for j in range(5)] == [0, 1, 2, 3, 4]
    assert [places["query", i][0] for i in range(3)] == [6, 7, 8]


@pytest.mark.parametrize(("queries", "keys"), [(2, 40), (40, 2), (5, 40), (1, 40), (20, 40)])
def test_a_few_queries_among_many_keys_stand_further_apart(queries, keys):
    """They take a fourth of what the others take, and each side's are evenly apart."""
    graph = TokenGraph.bipartite(queries, keys)
    places = layouts.arcs(AttentionGraph.from_dense(np.full((queries, keys), 0.1), graph))
    found = {
        side: [x for (of, _), (x, _) in places.items() if of == side] for side in ("key", "query")
    }
    for side, count, other in (("key", keys, queries), ("query", queries, keys)):
        wide = max(1.0, other / 4 / count)
        assert np.allclose(np.diff(found[side]), wide)
    assert min(found["query"]) - max(found["key"]) == 2


def test_columns_align_a_token_with_itself():
    places = layouts.columns(causal_head(4))
    assert len(places) == 8
    assert {x for (side, _), (x, _) in places.items() if side == "key"} == {0.0}
    assert all(places["key", i][1] == places["query", i][1] for i in range(4))


def test_columns_align_queries_with_their_positions_in_a_decoding_step():
    places = layouts.columns(decoding_step())
    assert places["query", 4] == (1.0, places["key", 4][1])
    assert ("query", 0) not in places


def test_columns_spread_the_shorter_side_of_a_bipartite_graph_over_the_height():
    places = layouts.columns(bipartite_head())
    assert places["query", 1][1] == places["key", 2][1]
    ends = [(places[side, 0][1] + 0.5 * step, places[side, last][1] - 0.5 * step)
            for side, last, step in (("key", 4, 1), ("query", 2, 5 / 3))]  # fmt: skip
    assert ends[0] == pytest.approx(ends[1])


@pytest.mark.parametrize("size", [(3.3, 2.4), (6.75, 3)])
@pytest.mark.parametrize("sides", [(3, 40), (40, 3)])
def test_the_few_tokens_of_a_column_beside_one_of_many_are_all_named(sides, size):
    words = ["dog", "cat", "a"]
    few = {"query_tokens": words} if sides[0] == 3 else {"tokens": words}
    matrix = np.full(sides, 1 / sides[1])
    head = AttentionGraph.from_dense(matrix, TokenGraph.bipartite(*sides), **few)
    with mpl.rc_context({"font.size": 7}):
        figure = head.draw("columns", figsize=size).figure
        assert set(words) <= {box.text for box in drawn_texts(figure)}
        assert not problems(figure)
    plt.close(figure)


def test_circle_runs_clockwise_at_distance_one():
    places = list(layouts.circle(causal_head(9)).values())
    assert all(math.isclose(math.hypot(x, y), 1) for x, y in places)
    angles = [math.atan2(x, y) % math.tau for x, y in places]
    assert angles == sorted(angles)


def test_circle_puts_keys_left_and_queries_right():
    places = layouts.circle(bipartite_head())
    assert all((x < 0) == (side == "key") for (side, _), (x, _) in places.items())


@pytest.mark.parametrize("layout", [layouts.arcs, layouts.columns, layouts.circle])
@pytest.mark.parametrize("head", [causal_head(5), bipartite_head(), decoding_step()])
def test_every_node_has_its_own_place_and_a_sink_stands_apart(layout, head):
    places = layout(with_sink(head))
    assert len(set(places.values())) == len(places)
    nearest = min(math.dist(places[-1], place) for node, place in places.items() if node != -1)
    between = min(math.dist(a, b) for a in places.values() for b in places.values() if a != b)
    assert nearest > 0.99 * between
    assert -1 not in layout(head)


def test_nodes_are_those_of_networkx():
    for head in (causal_head(5), bipartite_head(), with_sink(decoding_step())):
        assert set(layouts.circle(head)) == set(head.to_networkx())
    part = causal_head(6).subgraph([1, 4, 5])
    assert list(layouts.arcs(part)) == [1, 4, 5]
