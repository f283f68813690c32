import dataclasses
import math

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.spatial.distance import jensenshannon
from scipy.stats import entropy

import gattn
from gattn import AttentionGraph, AttentionTrace, TokenGraph, TopK
from gattn.analysis.heads.compare import compare, compare_head, difference
from gattn.analysis.heads.divergences import FARTHEST, dropped_distance
from gattn.drawing.canvas.colours import colour_map
from gattn.errors import SelectionError, ShapeError
from gattn.heads.stack import Stack

TEXT = "The dog chased the cat, and the cat chased the"


def causal(size, seed, dtype=np.float64, **attributes):
    rows = np.tril(np.random.default_rng(seed).exponential(size=(size, size)) ** 2)
    attention = (rows / rows.sum(1, keepdims=True)).astype(dtype)
    attributes = {"tokens": [f"t{i}" for i in range(size)]} | attributes
    return AttentionGraph.from_dense(attention, TokenGraph.causal(size), **attributes)


def head_of(matrix, **attributes):
    graph = TokenGraph.complete(len(matrix))
    return AttentionGraph.from_dense(np.array(matrix, dtype=float), graph, **attributes)


def trace_of(*heads):
    return AttentionTrace({"decoder": Stack("decoder", {(2, h): x for h, x in enumerate(heads)})})


def dense_distance(before, after):
    """Scipy's distance of dense rows, with what is left of 1 as one more column."""
    rows = [
        np.column_stack([a, np.clip(1 - a.sum(1), 0, None)])
        for a in (before.to_dense().astype(float), after.to_dense().astype(float))
    ]
    return np.mean([jensenshannon(p, q) for p, q in zip(*rows, strict=True)])


def test_the_distance_is_the_jensen_shannon_distance():
    for size in (1, 2, 9, 40):
        one, other = causal(size, 0), causal(size, 1)
        found = compare(trace_of(one), trace_of(other)).distance.item()
        rows = zip(one.to_dense(), other.to_dense(), strict=True)
        assert found == pytest.approx(np.mean([jensenshannon(p, q) for p, q in rows]), abs=1e-7)
        assert found == pytest.approx(compare_head(other, one)["distance"], abs=1e-12)


def test_equal_heads_have_no_distance_and_no_changed_edge():
    head = causal(7, 0, np.float32)
    row = compare_head(head, causal(7, 0, np.float32))
    assert row["distance"] == row["edge_change"] == 0
    assert row["query"] is row["key"] is row["query_token"] is row["key_token"] is None


def test_heads_with_nothing_in_common_are_farthest():
    one, other = head_of([[1, 0], [0, 1]]), head_of([[0, 1], [1, 0]])
    assert compare_head(one, other)["distance"] == pytest.approx(math.sqrt(math.log(2)))
    assert pytest.approx(math.sqrt(math.log(2))) == FARTHEST


def test_attention_to_nothing_is_an_outcome():
    whole, half, none = (head_of(np.eye(3) * share) for share in (1, 0.5, 0))
    assert compare_head(whole, none)["distance"] == pytest.approx(FARTHEST)
    assert compare_head(none, none)["distance"] == 0
    expected = jensenshannon([1, 0], [0.5, 0.5])
    assert compare_head(whole, half)["distance"] == pytest.approx(expected)


def test_a_sink_takes_what_is_left():
    matrix, other = np.full((2, 2), 0.3), np.full((2, 2), 0.1)
    one = dataclasses.replace(head_of(matrix), sink=np.full(2, 0.4))
    two = dataclasses.replace(head_of(other), sink=np.full(2, 0.8))
    expected = jensenshannon([0.3, 0.3, 0.4], [0.1, 0.1, 0.8])
    assert compare_head(one, two)["distance"] == pytest.approx(expected)


def test_attention_beyond_one_is_divided_by_its_sum():
    one, other = head_of([[0.9, 0.6], [2, 1]]), head_of([[0.5, 0.5], [0.5, 0.25]])
    expected = [jensenshannon([0.6, 0.4], [0.5, 0.5]), jensenshannon([2, 1, 0], [0.5, 0.25, 0.25])]
    expected[1] = jensenshannon([2 / 3, 1 / 3, 0], [0.5, 0.25, 0.25])
    assert compare_head(one, other)["distance"] == pytest.approx(np.mean(expected))


def test_rounding_in_single_precision_is_no_distance():
    one, other = causal(60, 0), causal(60, 0, np.float32)
    assert compare_head(one, other)["distance"] < 1e-6


def test_kept_edges_may_differ():
    one, other = causal(9, 0).keep(TopK(2)), causal(9, 1).keep(TopK(3))
    row = compare_head(one, other)
    assert row["distance"] == pytest.approx(dense_distance(one, other), abs=1e-7)
    changes = other.to_dense() - one.to_dense()
    place = np.unravel_index(np.abs(changes).argmax(), changes.shape)
    assert (row["query"], row["key"]) == place
    assert row["edge_change"] == changes[place]


def test_the_table_has_a_row_for_each_head():
    befores, afters = (
        [causal(8, seed, layer=2, head=h) for h, seed in enumerate(seeds)]
        for seeds in ((0, 1, 2), (3, 1, 4))
    )
    table = compare(trace_of(*befores), trace_of(*afters))
    assert list(table.index) == [("decoder", 2, 0), ("decoder", 2, 1), ("decoder", 2, 2)]
    for number, (one, other) in enumerate(zip(befores, afters, strict=True)):
        row = table.iloc[number]
        for name, head in (("before", one), ("after", other)):
            mean = entropy(head.to_dense(), axis=1).mean()
            assert row[f"entropy_{name}"] == pytest.approx(mean)
        changes = other.to_dense() - one.to_dense()
        assert row.edge_change == pytest.approx(changes.flat[np.abs(changes).argmax()])
        if number != 1:
            assert changes[row["query"], row["key"]] == pytest.approx(row.edge_change)
            tokens = (f"t{row['query']}", f"t{row['key']}")
            assert (row.query_token, row.key_token) == tokens
    assert table["query"].isna().tolist() == [False, True, False]


def test_cross_attention_names_queries_and_keys():
    attention = np.array([[0.5, 0.5, 0.0], [0.0, 0.1, 0.9]])
    graph = TokenGraph.bipartite(2, 3)
    names = {"tokens": ["a", "b", "c"], "query_tokens": ["x", "y"]}
    one = AttentionGraph.from_dense(attention, graph, **names)
    other = AttentionGraph.from_dense(attention[:, ::-1].copy(), graph, **names)
    row = compare_head(one, other)
    assert (row["query_token"], row["key_token"], row["edge_change"]) == ("y", "a", 0.9)
    assert row["distance"] == pytest.approx(dense_distance(one, other))


def test_merged_tokens_are_named_by_their_positions():
    one, other = causal(6, 0).subgraph([1, 3, 5]), causal(6, 1).subgraph([1, 3, 5])
    row = compare_head(one, other)
    assert {row["query"], row["key"]} <= {1, 3, 5}
    assert row["query_token"] == f"t{row['query']}"


def test_the_difference_is_a_graph_with_signed_attention():
    one, other = causal(6, 0).keep(TopK(2)), causal(6, 1, sink=np.arange(6) / 9)
    change = difference(one, other)
    np.testing.assert_array_equal(change.to_dense(), other.to_dense() - one.to_dense())
    np.testing.assert_array_equal(change.sink, other.sink)
    np.testing.assert_array_equal(difference(other, one).sink, -other.sink)
    assert change.graph.mask().tolist() == (one.graph.mask() | other.graph.mask()).tolist()
    assert change.labels() == one.labels()
    weights = {(j, i): a for j, i, a in change.to_networkx().edges(data="weight")}
    assert weights[0, 1] == pytest.approx(other.to_dense()[1, 0] - one.to_dense()[1, 0])


def test_difference_forgets_what_is_not_attention():
    head = dataclasses.replace(causal(3, 0), score=np.zeros(6), value_norm=np.zeros(6))
    assert set(difference(head, head).edge_values) == {"attention"}


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (causal(5, 0), "4 and 5 tokens.*of the same tokenizer"),
        (causal(4, 0, tokens=["t0", "t1", "x", "t3"]), "Token 2 is 't2' before and 'x' after"),
    ],
)
def test_other_tokens_are_refused(other, said):
    with pytest.raises(SelectionError, match=said):
        compare(trace_of(causal(4, 0)), trace_of(other))


def test_other_heads_are_refused():
    one, two = trace_of(causal(4, 0)), trace_of(causal(4, 0), causal(4, 1))
    with pytest.raises(SelectionError, match="Only the trace after has head 1 of layer 2"):
        compare(one, two)
    with pytest.raises(SelectionError, match="Only the trace before has head 1 of layer 2"):
        compare(two, one)
    renamed = AttentionTrace({"encoder": Stack("encoder", dict(one["decoder"]))})
    with pytest.raises(SelectionError, match="decoder stack"):
        compare(one, renamed)


def test_negative_attention_is_refused():
    with pytest.raises(ShapeError, match=">= 0"):
        compare_head(causal(2, 0), head_of([[1, -1], [0, 1]], tokens=["t0", "t1"]))


def test_empty_traces_compare_to_an_empty_table():
    assert len(compare(trace_of(), trace_of())) == 0


@pytest.fixture(scope="module")
def embedded():
    return gattn.load_model()


@pytest.mark.parametrize(
    "edit",
    [
        gattn.Cut(layer=1, head=1),
        gattn.Cut(layer=1, key=4, renormalize=False),
        gattn.Scale(0.5, layer=1, head=[0, 2]),
        gattn.Swap(layer=1, weight=gattn.SquaredDistance()),
        gattn.Swap(layer=1, normalizer=gattn.Sigmoid()),
        gattn.Swap(layer=1, normalizer=gattn.Softmax(sink=0.0)),
    ],
    ids=["cut", "zeroed", "scaled", "swapped", "sigmoid", "sink"],
)
def test_an_edit_of_a_live_model(edit, embedded):
    model, tokenizer = embedded
    before = gattn.capture(TEXT, model, tokenizer)
    with gattn.edited(model, edit, tokenizer=tokenizer):
        after = gattn.capture(TEXT, model, tokenizer)
    table = compare(before, after).droplevel("stack")
    assert (table.distance[0] == 0).all()
    edited = edit.heads(4)
    assert (table.distance[1].drop(edited) == 0).all()
    assert table.distance[1].loc[edited].mean() > 0.01
    assert (table.distance[2] > 0).all()
    for place, head in before.only_stack.items():
        one, other = head.to_dense().astype(float), after[place].to_dense().astype(float)
        rows = []
        for p, q in zip(one, other, strict=True):
            sides = [[*x, 1 - x.sum() if x.sum() < 1 - 1e-5 else 0.0] for x in (p, q)]
            with np.errstate(invalid="ignore"):  # scipy takes the root of -1e-17
                rows.append(np.nan_to_num(jensenshannon(*sides)))
        assert table.distance[place] == pytest.approx(np.mean(rows), abs=1e-6)


def test_arrays_and_lists_of_graphs_are_compared_like_traces():
    befores, afters = (
        [causal(8, seed, head=h) for h, seed in enumerate(s)] for s in ((0, 1), (2, 1))
    )
    expected = compare(
        AttentionTrace({"": Stack("", {(0, h): x for h, x in enumerate(befores)})}),
        AttentionTrace({"": Stack("", {(0, h): x for h, x in enumerate(afters)})}),
    )
    pd.testing.assert_frame_equal(compare(befores, afters), expected)
    arrays = [np.stack([x.to_dense() for x in some]) for some in (befores, afters)]
    found = compare(arrays[0], torch.from_numpy(arrays[1]))
    names = ["distance", "entropy_before", "entropy_after", "edge_change", "query", "key"]
    pd.testing.assert_frame_equal(found[names], expected[names], rtol=1e-12)
    assert compare(befores, arrays[1]).distance.tolist() == pytest.approx(
        expected.distance.tolist()
    )


def test_two_weight_functions_on_the_same_queries_and_keys(randn):
    query, key, graph = randn(3, 7, 4), randn(3, 7, 4), gattn.TokenGraph.causal(7)
    dot = gattn.attention_graphs(query, key, graph)
    near = gattn.attention_graphs(query, key, graph, weight=gattn.SquaredDistance())
    table = compare(dot, near)
    scores = (query @ key.transpose(-1, -2) / 2, -torch.cdist(query, key).square())
    mask = torch.ones(7, 7).tril().bool()
    rows = [score.masked_fill(~mask, -torch.inf).softmax(-1).numpy() for score in scores]
    for head in range(3):
        pairs = zip(rows[0][head], rows[1][head], strict=True)
        with np.errstate(invalid="ignore"):
            expected = np.mean([np.nan_to_num(jensenshannon(p, q)) for p, q in pairs])
        assert table.distance["", 0, head] == pytest.approx(expected, abs=1e-7)


def test_the_table_says_what_it_is_and_draws_its_numbers():
    one, other = trace_of(causal(6, 0, model="m")), trace_of(causal(6, 1, model="m").keep(TopK(2)))
    table = compare(one, other)
    assert table.computed_from == "m, 1 head, 6 tokens and m, 1 head, 6 tokens, kept by TopK(2)"
    assert compare(one, one).notes == []
    texts = [text.get_text() for text in table.draw().get_xticklabels()]
    assert texts == ["distance", "entropy\nbefore", "entropy\nafter", "edge\nchange"]


def test_a_head_that_lost_all_has_no_entropy():
    row = compare_head(head_of(np.eye(3)), head_of(np.zeros((3, 3))))
    assert row["entropy_before"] == 0
    assert math.isnan(row["entropy_after"])


@pytest.mark.parametrize("keep", [TopK(1), TopK(3), gattn.Threshold(0.2), gattn.TopMass(0.95)])
def test_distances_are_no_further_from_those_of_all_edges_than_the_notes_say(keep):
    for seed in range(12):
        one, other = causal(9, seed), causal(9, seed + (seed % 3) * 100)
        kept, lesser = trace_of(one.keep(keep)), trace_of(other.keep(keep))
        whole = compare(trace_of(one), trace_of(other)).distance.item()
        for before, after in ((kept, lesser), (kept, trace_of(other))):
            table = compare(before, after)
            (note,) = table.notes
            bound = float(note.split("at most ")[1].split()[0])
            assert abs(table.distance.item() - whole) <= bound + 5e-4


def test_what_edges_moved_away_from_is_as_far_as_is_said():
    head = causal(9, 0)
    kept = head.keep(TopK(2))
    assert compare_head(head, kept)["distance"] == pytest.approx(dropped_distance(kept), abs=1e-9)


def test_a_change_is_drawn_around_zero():
    rows = np.array([[1.0, 0.0], [0.5, 0.5]])
    heads = [[1.0, 0.0], [0.0, 1.0], [0.5, 0.5], [0.75, 0.25]]
    before = [AttentionGraph.from_dense(rows, layer=0, head=n) for n in range(4)]
    after = [AttentionGraph.from_dense(np.array([[1.0, 0.0], row]), layer=0, head=n)
             for n, row in enumerate(heads)]  # fmt: skip
    table = compare(before, after)
    table["edge_change"] = [-1.0, 1.0, 0.0, -0.5]
    ax = table.draw()
    place = [text.get_text() for text in ax.get_xticklabels()].index("edge\nchange")
    painted = ax.images[0].get_array()[:, place]
    colours = colour_map(None, is_signed=True, is_area=True)
    np.testing.assert_allclose(painted, colours([0.0, 1.0, 0.5, 0.25]))
    light = painted[:, :3].mean(1)
    assert light[2] == light.max()


def test_a_head_alone_is_compared_with_the_only_stack():
    trace = gattn.capture("The dog chased the cat", layers=[2], heads=[0])
    for before, after in ((trace, trace[2, 0]), (trace[2, 0], trace)):
        assert compare(before, after)["distance"].tolist() == [0]


def test_what_was_compared_is_said_once_if_only_edits_differ():
    text = "The dog chased the cat"
    model, tokenizer = gattn.load_model()
    before = gattn.capture(text, model, tokenizer)
    with gattn.edited(model, gattn.Cut(layer=1, head=1)):
        after = gattn.capture(text, model, tokenizer)
    for other, said in ((before, ""), (after, ", after: edited by Cut(layer=1, head=1)")):
        found = gattn.analysis.compare(before, other).computed_from
        assert found.count("embedded") == 1
        assert found.endswith(f"tokens{said}")
