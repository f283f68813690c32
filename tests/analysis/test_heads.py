"""The head table against loops over small matrices, and against heads made for one thing."""

import math

import numpy as np
import pytest
import torch

from gattn.analysis.heads import describe, head_table
from gattn.attention import attention_graphs
from gattn.errors import ShapeError
from gattn.graph import TokenGraph
from gattn.head import AttentionGraph
from gattn.keep import TopK
from gattn.normalizers import Softmax
from gattn.trace import AttentionTrace, Stack

TOKENS = ("a", "b", "a", "b", "b", "a")


def by_loops(matrix, tokens):
    """All the numbers of one self-attention matrix, in plain loops."""
    size = len(matrix)
    total = sum(matrix[i][j] for i in range(size) for j in range(size))
    rows = [i for i in range(size) if sum(matrix[i]) > 0]
    entropy = distance = previous = first = induction = 0.0
    for i in rows:
        mass = sum(matrix[i])
        for j in range(size):
            one = matrix[i][j]
            if one > 0:
                entropy -= one / mass * math.log(one / mass)
            distance += one * abs(i - j)
            previous += one * (j == i - 1)
            first += one * (j == 0)
            induction += one * (0 < j <= i and tokens[j - 1] == tokens[i])
    return {
        "entropy": entropy / len(rows),
        "mean_distance": distance / total,
        "previous_token": previous / total,
        "first_token": first / len(rows),
        "induction": induction / total,
        "kept": 1.0,
    }


def random_matrix(seed, causal):
    generator = np.random.default_rng(seed)
    matrix = generator.random((6, 6)) ** 3
    matrix = np.tril(matrix) if causal else matrix
    return matrix / matrix.sum(1, keepdims=True)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_it_is_what_plain_loops_give(seed, causal):
    matrix = random_matrix(seed, causal)
    found = describe(AttentionGraph.from_dense(matrix, tokens=TOKENS))
    assert found == pytest.approx(by_loops(matrix, TOKENS), abs=1e-12)


def test_rows_without_attention_do_not_count():
    matrix = random_matrix(0, causal=True)
    matrix[[1, 4]] = 0.0
    found = describe(AttentionGraph.from_dense(matrix, tokens=TOKENS))
    assert found == pytest.approx(by_loops(matrix, TOKENS), abs=1e-12)


def test_no_attention_at_all_gives_zeros():
    found = describe(AttentionGraph.from_dense(np.zeros((3, 3))))
    assert found == {
        "entropy": 0.0,
        "mean_distance": 0.0,
        "previous_token": 0.0,
        "first_token": 0.0,
        "induction": 0.0,
        "kept": 1.0,
    }


def one_key(keys, tokens=TOKENS):
    """A causal head whose query i gives all it has to ``keys[i]``."""
    matrix = np.zeros((len(keys), len(keys)))
    matrix[np.arange(len(keys)), keys] = 1.0
    return describe(AttentionGraph.from_dense(matrix, tokens=tokens))


def test_a_head_on_the_previous_token():
    found = one_key([0, 0, 1, 2, 3, 4])
    assert found["previous_token"] == pytest.approx(5 / 6)
    assert found["mean_distance"] == pytest.approx(5 / 6)
    assert found["entropy"] == 0.0


def test_a_head_on_the_first_token():
    found = one_key([0] * 6)
    assert found["first_token"] == 1.0
    assert found["previous_token"] == pytest.approx(1 / 6)
    assert found["mean_distance"] == pytest.approx(15 / 6)


def test_a_head_on_what_followed_the_same_token():
    tokens = (*"xyzw", *"xyzw")
    # The second saying looks one behind the first: 4 -> 1, 5 -> 2, 6 -> 3, 7 -> 4.
    found = one_key([0, 0, 0, 0, 1, 2, 3, 4], tokens)
    assert found["induction"] == pytest.approx(4 / 8)
    others = one_key([0, 0, 0, 0, 1, 2, 3, 4], tuple("abcdefgh"))
    assert others["induction"] == 0.0
    duplicates = one_key([0, 0, 0, 0, 0, 1, 2, 3], tokens)
    assert duplicates["induction"] == 0.0


def test_an_even_head_has_the_entropy_of_its_neighbourhoods():
    matrix = np.tril(np.ones((4, 4)))
    matrix /= matrix.sum(1, keepdims=True)
    found = describe(AttentionGraph.from_dense(matrix))
    assert found["entropy"] == pytest.approx(sum(map(math.log, [1, 2, 3, 4])) / 4)


def test_what_was_dropped_is_told_and_the_rest_is_read():
    matrix = random_matrix(1, causal=True)
    kept = AttentionGraph.from_dense(matrix, tokens=TOKENS).keep(TopK(2))
    expected = by_loops(kept.to_dense(), TOKENS) | {"kept": kept.to_dense().sum() / 6}
    assert describe(kept) == pytest.approx(expected, abs=1e-12)
    assert describe(kept)["kept"] < 1


def test_positions_are_those_in_the_text(randn):
    matrix = random_matrix(2, causal=True)
    head = AttentionGraph.from_dense(matrix, tokens=TOKENS).subgraph([0, 1, 3, 4])
    found = describe(head)
    part = np.zeros_like(matrix)
    places = np.ix_([0, 1, 3, 4], [0, 1, 3, 4])
    part[places] = matrix[places]
    expected = by_loops(part, TOKENS)
    for name in ("mean_distance", "previous_token", "first_token"):
        assert found[name] == pytest.approx(expected[name], abs=1e-12), name


def test_a_step_of_decoding_stands_at_the_end(randn):
    query, key = randn(1, 2, 3), randn(1, 6, 3)
    graph = TokenGraph.causal(2, num_keys=6, query_offset=4)
    (head,) = attention_graphs(query, key, graph, tokens=TOKENS)
    matrix = np.zeros((6, 6))
    matrix[4:] = head.to_dense()
    assert describe(head) == pytest.approx(by_loops(matrix, TOKENS), abs=1e-12)


def test_a_sink_outside_is_no_first_token(randn):
    (head,) = attention_graphs(
        randn(1, 6, 3), randn(1, 6, 3), TokenGraph.causal(6), normalizer=Softmax(sink=1.0)
    )
    found = describe(head)
    assert found["first_token"] == pytest.approx(head.to_dense()[:, 0].mean())
    expected = by_loops(head.to_dense(), [str(i) for i in range(6)])
    assert found == pytest.approx(expected, abs=1e-12)


def test_cross_attention_has_no_distances():
    graph = TokenGraph.bipartite(2, 3)
    matrix = np.array([[0.5, 0.5, 0.0], [0.25, 0.25, 0.5]])
    found = describe(AttentionGraph.from_dense(matrix, graph))
    assert found["entropy"] == pytest.approx((math.log(2) + 1.5 * math.log(2)) / 2)
    assert found["kept"] == 1.0
    for name in ("mean_distance", "previous_token", "first_token", "induction"):
        assert math.isnan(found[name])


def test_negative_attention_is_refused():
    matrix = np.array([[1.0, 0.0], [-0.5, 1.5]])
    with pytest.raises(ShapeError, match="attention >= 0"):
        describe(AttentionGraph.from_dense(matrix))


def test_the_table_has_a_row_a_head():
    heads = {
        (layer, head): AttentionGraph.from_dense(random_matrix(3 * layer + head, True))
        for layer in (1, 0)
        for head in (0, 1, 2)
    }
    cross = AttentionGraph.from_dense(np.full((2, 3), 1 / 3), TokenGraph.bipartite(2, 3))
    trace = AttentionTrace(
        {"decoder": Stack("decoder", heads), "cross": Stack("cross", {(0, 0): cross})}, "made up"
    )
    table = head_table(trace)
    assert table.index.names == ["stack", "layer", "head"]
    assert list(table.index) == [("decoder", i, h) for i in (0, 1) for h in (0, 1, 2)] + [
        ("cross", 0, 0)
    ]
    assert list(table.columns) == [
        "entropy", "mean_distance", "previous_token", "first_token", "induction", "kept",
    ]  # fmt: skip
    for place, head in heads.items():
        row = table.loc[("decoder", *place)].to_dict()
        assert row == pytest.approx(by_loops(head.to_dense(), "012345"), abs=1e-12)
    assert table.loc[("cross", 0, 0), "entropy"] == pytest.approx(math.log(3))


def test_grouped_queries_have_a_column_of_their_key_value_heads():
    heads = {
        (0, head): AttentionGraph.from_dense(random_matrix(head, True), key_value_head=head // 2)
        for head in range(4)
    }
    cross = AttentionGraph.from_dense(np.full((2, 3), 1 / 3), TokenGraph.bipartite(2, 3))
    stacks = {"decoder": Stack("decoder", heads), "cross": Stack("cross", {(0, 0): cross})}
    column = head_table(AttentionTrace(stacks))["key_value_head"]
    assert column.loc["decoder"].tolist() == [0, 0, 1, 1]
    assert column.loc["cross"].isna().all()
    assert "key_value_head" not in head_table(AttentionTrace({"cross": stacks["cross"]}))


def test_an_empty_trace_is_an_empty_table():
    table = head_table(AttentionTrace({}, "none"))
    assert len(table) == 0
    assert table.index.names == ["stack", "layer", "head"]


def test_float32_attention_is_added_in_float64():
    size = 3000
    keys = torch.arange(size)
    graph = TokenGraph.from_edge_index(torch.stack([keys, torch.zeros_like(keys)]), size)
    attention = np.full(size, 1 / size, dtype=np.float32)
    attention[0] = 0.5
    mass = np.zeros(size, np.float32)
    head = AttentionGraph(graph, attention, mass, graph.in_degree.numpy())
    wide = attention.astype(np.float64)
    expected = (wide * np.arange(size)).sum() / wide.sum()
    assert describe(head)["mean_distance"] == pytest.approx(expected, rel=1e-12)
