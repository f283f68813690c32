"""Where tokens lie: on a grid, in time, at places of their own."""

from dataclasses import replace

import networkx as nx
import numpy as np
import pytest
import torch
from same import assert_same_head, assert_same_trace

import gattn
from gattn import AttentionGraph, AttentionTrace, TokenGraph
from gattn.analysis import rollout, without_tokens
from gattn.errors import SelectionError, ShapeError
from gattn.files import load
from gattn.heads.geometry import Grid, Layout, Times
from gattn.heads.stack import Stack


def attention(*shape):
    return np.random.default_rng(0).dirichlet(np.ones(shape[-1]), shape[:-1])


def picture_head(rows=2, columns=3, prefix=1):
    tokens = rows * columns + prefix
    return AttentionGraph.from_dense(attention(tokens, tokens)).on_grid(rows, columns)


def cross_head(queries=2, keys=6):
    return AttentionGraph.from_dense(attention(queries, keys), TokenGraph.bipartite(queries, keys))


def whisper():
    stacks = {
        "encoder": Stack("encoder", {(0, 0): AttentionGraph.from_dense(attention(6, 6))}),
        "cross": Stack("cross", {(0, 0): cross_head(2, 6)}),
        "decoder": Stack("decoder", {(0, 0): AttentionGraph.from_dense(attention(2, 2))}),
    }
    return AttentionTrace(stacks, "tiny")


def test_patches_lie_row_by_row_after_the_class_token():
    head = picture_head()
    found = head.geometry
    np.testing.assert_array_equal(found.coordinates()["row"], [np.nan, 0, 0, 0, 1, 1, 1])
    np.testing.assert_array_equal(found.coordinates()["column"], [np.nan, 0, 1, 2, 0, 1, 2])
    assert head.tokens == ("class", "0,0", "0,1", "0,2", "1,0", "1,1", "1,2")
    assert found.token_at(1, 2) == 6
    laid = found.spread(head.to_dense()[0])
    np.testing.assert_array_equal(laid, head.to_dense()[0][1:].reshape(2, 3))


def test_tokens_that_have_texts_keep_them_and_several_apart_are_numbered():
    named = replace(picture_head(), tokens=tuple("abcdefg"), geometry=None)
    assert named.on_grid(2, 3).tokens == tuple("abcdefg")
    head = AttentionGraph.from_dense(attention(8, 8)).on_grid(2, 3, prefix=2)
    assert head.tokens[:3] == ("special 0", "special 1", "0,0")


def test_cells_may_be_in_any_order_as_in_windows():
    cells = [0, 1, 4, 5, 2, 3, 6, 7]
    head = AttentionGraph.from_dense(attention(8, 8)).on_grid(2, 4, cells=torch.tensor(cells))
    row = head.to_dense()[3]
    for token, cell in enumerate(cells):
        assert head.geometry.spread(row)[divmod(cell, 4)] == row[token]
    assert head.geometry.token_at(1, 0) == 2


def test_some_patches_may_have_no_token():
    head = AttentionGraph.from_dense(attention(3, 3)).on_grid(2, 2, cells=[-1, 3, 0])
    laid = head.geometry.spread(np.array([9.0, 1.0, 2.0]))
    np.testing.assert_array_equal(laid, [[2.0, np.nan], [np.nan, 1.0]])
    with pytest.raises(SelectionError, match="row 0, column 1 has no token"):
        head.geometry.token_at(0, 1)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"rows": 3, "columns": 3}, "3 × 3 with no class token or one has 9 or 10 tokens"),
        ({"rows": 2, "columns": 3, "prefix": 0}, "prefix=1 fits"),
        ({"rows": 1, "columns": 3}, "prefix=4 fits"),
        ({"rows": 2, "columns": 3, "prefix": -1}, "prefix must be a whole number"),
        ({"rows": 0, "columns": 3}, "rows must be a whole number"),
        ({"rows": 2, "columns": 3, "cells": [0, 1]}, "2 places, but 7 tokens"),
        ({"rows": 2, "columns": 3, "cells": [0, 1, 1, 2, 3, 4, 5]}, "1 and 2 both lie in cell 1"),
        ({"rows": 2, "columns": 3, "cells": [6, 1, 0, 2, 3, 4, 5]}, "token 0 is 6, but those"),
        ({"rows": 2, "columns": 3, "cells": [[0, 1]]}, "one per token"),
        ({"rows": 2, "columns": 3, "cells": [-1] * 7, "prefix": 1}, "prefix= or cells="),
        ({"rows": 2, "columns": 3, "image_size": 224}, "image_size is .height, width."),
        ({"rows": 2, "columns": 3, "image_size": (0, 3)}, "image_size"),
        ({"rows": 2, "columns": 3, "patch_size": (4, 4)}, "patch_size needs image_size"),
        (
            {"rows": 2, "columns": 3, "image_size": (20, 20), "patch_size": (16, 16)},
            "3 columns of 16 pixels do not fit a picture of 20",
        ),
    ],
)
def test_grids_that_do_not_fit_say_what_would(given, said):
    head = AttentionGraph.from_dense(attention(7, 7))
    with pytest.raises(ShapeError, match=said):
        head.on_grid(given.pop("rows"), given.pop("columns"), **given)


def test_a_square_that_fits_is_named():
    with pytest.raises(ShapeError, match="a grid of 3 × 3 with prefix=1 fits"):
        AttentionGraph.from_dense(attention(10, 10)).on_grid(2, 4)


def test_patches_may_leave_pixels_over_or_reach_into_padding():
    head = AttentionGraph.from_dense(attention(6, 6))
    sizes = {"image_size": (20, 26), "patch_size": (8, 9)}
    assert head.on_grid(2, 3, **sizes).geometry.covered == (16 / 20, 27 / 26)
    assert head.on_grid(2, 3).geometry.covered == (1, 1)


def test_frames_are_in_seconds():
    head = AttentionGraph.from_dense(attention(5, 5)).at_times(0.5, start=1.0, prefix=1)
    starts, stops = head.geometry.coordinates().values()
    np.testing.assert_allclose(starts, [np.nan, 1.0, 1.5, 2.0, 2.5])
    np.testing.assert_allclose(stops - starts, [np.nan, 0.5, 0.5, 0.5, 0.5])
    assert head.tokens == ("class", "1 s", "1.5 s", "2 s", "2.5 s")
    assert head.geometry.token_at(2.49) == 3
    with pytest.raises(SelectionError, match="No token holds the query at 3 s"):
        head.geometry.token_at(3)


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0, "above 0"),
        (np.nan, "finite number"),
        ([0.0, 1.0], r"of times at which tokens begin, np\.column_stack\(\[begins, ends\]\)"),
        ([[0.0, 1.0]], "1 places, but 5 tokens: each token needs one, by NaN"),
        ([[0.0, 1.0]] * 4 + [[2.0, 1.0]], "Token 4 ends at 1 s, but begins at 2 s"),
        ([[0.0, 1.0]] * 4 + [[np.nan, 1.0]], "place of token 4"),
    ],
)
def test_times_that_cannot_be_are_refused(seconds, said):
    with pytest.raises(ShapeError, match=said):
        AttentionGraph.from_dense(attention(5, 5)).at_times(seconds)


def test_layouts_are_read_in_order_by_position_or_by_name():
    head = AttentionGraph.from_dense(attention(3, 3), tokens=["a", "b", "c"])
    places = np.array([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]])
    expected = Layout(places)
    assert head.with_layout(torch.tensor(places)).geometry == expected
    assert head.with_layout({2: (4, 5), 0: (0, 1), 1: (2, 3)}).geometry == expected
    assert head.with_layout({"c": (4, 5), "a": (0, 1), "b": (2, 3)}).geometry == expected
    drawn = nx.circular_layout(head.to_networkx())
    np.testing.assert_array_equal(head.with_layout(drawn).geometry.places[1], drawn[1])


@pytest.mark.parametrize(
    ("places", "said"),
    [
        (np.zeros((3, 3)), "Project it to two dimensions"),
        (np.zeros((2, 2)), "2 places, but 3 tokens"),
        (np.full((3, 2), np.inf), "place of token 0"),
        ({"a": (0, 1)}, "no place for the tokens 'b', 'c'"),
        ("spring", "must hold"),
    ],
)
def test_layouts_that_do_not_fit_are_refused(places, said):
    head = AttentionGraph.from_dense(attention(3, 3), tokens=["a", "b", "c"])
    with pytest.raises(ShapeError, match=said):
        head.with_layout(places)


def test_positions_without_a_place_are_named_also_where_tokens_repeat():
    head = AttentionGraph.from_dense(attention(4, 4), tokens=["a", "b", "a", "b"])
    with pytest.raises(ShapeError, match="no place for the positions 1, 3: give"):
        head.with_layout({0: (0, 1), 2: (1, 1)})
    with pytest.raises(ShapeError, match="give their places by position"):
        head.with_layout({"a": (0, 1), "b": (1, 1)} | {"c": (1, 1)})


def test_cross_attention_has_two_sides():
    head = cross_head(2, 6).on_grid(2, 3)
    assert len(head.geometry) == 6
    assert head.query_geometry is None
    both = head.at_times(1.0, side="query")
    assert (type(both.geometry), type(both.query_geometry)) == (Grid, Times)
    assert both.query_tokens == ("0 s", "1 s")
    with pytest.raises(SelectionError, match="Both the 6 keys and the 6 queries"):
        cross_head(6, 6).on_grid(2, 3)
    with pytest.raises(ShapeError, match="Neither keys nor queries fit"):
        cross_head(2, 6).on_grid(5, 5)
    with pytest.raises(SelectionError, match="side is 'key' or 'query'"):
        head.on_grid(2, 3, side="left")


def test_a_trace_places_the_stacks_that_fit_or_the_one_that_is_named():
    trace = whisper()
    gridded = trace.on_grid(2, 3)
    assert gridded["encoder"][0, 0].geometry is gridded["encoder"][0, 0].geometry
    assert len(gridded["cross"][0, 0].geometry) == 6
    assert gridded["decoder"][0, 0].geometry is None
    with pytest.raises(SelectionError, match="has the stacks"):
        trace.at_times(0.02)
    timed = trace.at_times(0.02, stack="encoder").at_times(0.02, stack="cross")
    assert timed["cross"][0, 0].query_geometry is None
    assert timed["cross"][0, 0].geometry == timed["encoder"][0, 0].geometry
    with pytest.raises(ShapeError, match=r"No stack of .* fits"):
        trace.on_grid(5, 5)
    with pytest.raises(SelectionError, match="No stack 'vision'"):
        trace.on_grid(2, 3, stack="vision")
    with pytest.raises(SelectionError, match="leave out stack"):
        trace["cross"].on_grid(2, 3, stack="vision")


def test_tokens_left_out_leave_their_places():
    head = picture_head()
    some = head.subgraph(["class", "1,2", 2])
    np.testing.assert_array_equal(some.geometry.cells, [-1, 1, 5])
    np.testing.assert_array_equal(without_tokens(head, [0, 3]).geometry.cells, [0, 1, 3, 4, 5])
    assert head.keep(gattn.TopK(2)).geometry == head.geometry
    assert head.without_self_loops().geometry == head.geometry


def test_merged_tokens_do_not_lie_anywhere():
    assert picture_head().merge([(1, 3)]).geometry is None
    head = cross_head(2, 6).on_grid(2, 3)
    assert head.merge([], query_spans=[(0, 2)]).geometry == head.geometry


PLACED = {
    "grid": lambda: picture_head(),
    "sizes": lambda: AttentionGraph.from_dense(attention(6, 6)).on_grid(
        2, 3, image_size=(20, 30), patch_size=(8, 9.5)
    ),
    "times": lambda: AttentionGraph.from_dense(attention(5, 5)).at_times(0.1, prefix=1),
    "layout": lambda: AttentionGraph.from_dense(attention(3, 3), tokens=list("abc")).with_layout(
        attention(3, 2)
    ),
    "cross": lambda: cross_head(2, 6).on_grid(2, 3).at_times(0.1, side="query"),
}


@pytest.mark.parametrize("suffix", ["gattn", "json", "graphml"])
@pytest.mark.parametrize("name", PLACED)
def test_files_keep_where_tokens_lie(tmp_path, name, suffix):
    head = PLACED[name]()
    path = tmp_path / f"head.{suffix}"
    head.save(path)
    assert_same_head(load(path), head)


def test_traces_keep_it_and_heads_share_it(tmp_path):
    trace = AttentionTrace.from_arrays(attention(2, 3, 7, 7)).on_grid(2, 3)
    trace.save(tmp_path / "trace.gattn")
    again = load(tmp_path / "trace.gattn")
    assert_same_trace(again, trace)
    assert len({id(head.geometry) for head in again.heads()}) == 1


def test_networks_say_where_nodes_lie():
    graph = picture_head().to_networkx()
    assert graph.nodes[6]["row"] == 1
    assert graph.nodes[6]["column"] == 2
    assert "row" not in graph.nodes[0]
    times = AttentionGraph.from_dense(attention(2, 2)).at_times(0.5).to_networkx()
    assert times.nodes[1]["start"] == 0.5


def test_results_bring_it_back_to_a_trace():
    trace = AttentionTrace.from_arrays(attention(2, 3, 7, 7)).on_grid(2, 3)
    rolled = rollout(trace, residual=0)
    assert rolled["key_row"].to_numpy()[1:].tolist() == [0, 0, 0, 1, 1, 1]
    assert AttentionTrace.from_arrays(rolled)[1, 0].geometry == trace[0, 0].geometry
    del rolled["key_row"]
    with pytest.raises(ShapeError, match="key_geometry cannot be read"):
        AttentionTrace.from_arrays(rolled)


def test_other_graphs_bring_their_layout_as_pos():
    graph = nx.DiGraph()
    graph.add_node("a", pos=(0.0, 1.0))
    graph.add_node("b", pos=(2.0, 3.0))
    graph.add_edge("a", "b", weight=0.5)
    assert AttentionGraph.from_networkx(graph).geometry == Layout([[0, 1], [2, 3]])
    del graph.nodes["b"]["pos"]
    assert AttentionGraph.from_networkx(graph).geometry is None


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"kind": "Sphere"}', '{"kind": ["Grid"]}', '{"kind": "Grid"}', 3]
)
def test_networks_with_damaged_geometry_are_refused(text):
    graph = picture_head().to_networkx()
    graph.graph["geometry"] = text
    with pytest.raises(gattn.errors.GraphError, match="geometry is not a geometry"):
        AttentionGraph.from_networkx(graph)


@pytest.mark.parametrize("change", [{"column": 7}, {"row": 0.5}, {"row": 9}, {"row": "up"}])
def test_networks_with_nodes_outside_of_the_grid_are_refused(change):
    graph = picture_head().to_networkx()
    graph.nodes[4].update(change)
    with pytest.raises(gattn.errors.GraphError, match="geometry is not a geometry"):
        AttentionGraph.from_networkx(graph)


def test_fields_are_checked():
    head = picture_head()
    with pytest.raises(ShapeError, match="geometry must have 7 entries, not 3"):
        replace(head, geometry=Layout(np.zeros((3, 2))))
    with pytest.raises(ShapeError, match="geometry must be a Grid, Times or Layout"):
        replace(head, geometry=(2, 3))
    with pytest.raises(ShapeError, match="query_geometry is for cross-attention"):
        replace(head, query_geometry=head.geometry)


def test_geometries_are_equal_if_their_places_are():
    assert Layout([[0, 1], [np.nan, np.nan]]) == Layout([[0, 1], [np.nan, np.nan]])
    assert Layout([[0, 1]]) != Layout([[0, 2]])
    assert Grid(1, 2, [0, 1]) != Grid(2, 1, [0, 1])
    assert Times([[0, 1]]) != Layout([[0, 1]])


def test_seconds_of_each_token_need_their_ends():
    with pytest.raises(ShapeError, match=r"begins and ends, \(tokens, 2\), not .* \(5,\)"):
        AttentionGraph.from_dense(attention(5, 5)).at_times(np.arange(5.0))
