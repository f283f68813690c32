"""The head table against loops over small matrices, and against heads made for one thing."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st

import gattn
from gattn.analysis.heads.head_labels import head_labels
from gattn.analysis.heads.head_table import head_table
from gattn.analysis.heads.summed.even_attention import EVEN_SCORES, even_scores
from gattn.analysis.heads.summed.head_scores import SCORES, scores
from gattn.analysis.heads.summed.nodes import is_punctuation
from gattn.analysis.heads.summed.of_edges import mean_entropy, sums_of_edges
from gattn.analysis.reading.heads import by_place
from gattn.attention import attention_graphs
from gattn.drawing.canvas.colours import colour_map
from gattn.errors import SelectionError, ShapeError
from gattn.graph.token_graph import TokenGraph
from gattn.heads.head import AttentionGraph
from gattn.heads.stack import Stack
from gattn.heads.trace import AttentionTrace
from gattn.keep import Threshold, TopK, TopMass
from gattn.normalizers import Softmax

TOKENS = ("a", "b", "a", "b", "b", "a")
OF_TOKENS = ("same_token", "duplicate_token", "induction", "punctuation")
OF_REPEATS = ("duplicate_token", "induction")


def describe(head):
    """The scores of one head."""
    return {name: value.item() for name, value in scores(sums_of_edges(head)).items()}


def even(head):
    """What even attention would have."""
    return {name: value.item() for name, value in even_scores(sums_of_edges(head)).items()}


def by_loops(matrix, tokens=None, words=None, keys=None):
    """All the numbers of one self-attention matrix, in plain loops."""
    size = len(matrix)
    total = sum(matrix[i][j] for i in range(size) for j in range(size))
    rows = [i for i in range(size) if sum(matrix[i]) > 0]
    found = dict.fromkeys(SCORES, 0.0)
    for i in rows:
        mass = sum(matrix[i])
        found["edges"] += sum(x > 0 for x in matrix[i]) / len(rows)
        found["confidence"] += max(matrix[i]) / len(rows)
        held = count = 0
        for one in sorted(matrix[i], reverse=True):
            if held < 0.9 - 1e-9:
                held, count = held + one / mass, count + 1
        found["edges_for_90"] += count / len(rows)
        for j in range(size):
            one = matrix[i][j]
            if one > 0:
                found["entropy"] -= one / mass * math.log(one / mass) / len(rows)
            found["first_token"] += one * (j == 0) / len(rows)
            found["mean_distance"] += one * abs(i - j) / total
            found["locality"] += one * (abs(i - j) <= 2) / total
            if tokens:
                found["same_token"] += one * (tokens[j] == tokens[i]) / total
                found["punctuation"] += one * (not tokens[j].isalnum()) / total
            if words:
                found["special_tokens"] += one * (words[j] is None) / total
    for name, step in (("previous_token", -1), ("next_token", 1)):
        pairs = [(i, i + step) for i in rows if i + step in (range(size) if keys is None else keys)]
        found[name] = sum(matrix[i][j] for i, j in pairs) / len(pairs) if pairs else math.nan
    if tokens:
        found |= repeats_by_loops(matrix, tokens, rows)
    found |= {"sink_mass": found["first_token"], "outside_sink": math.nan, "kept": 1.0}
    if not tokens:
        found |= dict.fromkeys(OF_TOKENS, math.nan)
    if not words:
        found["special_tokens"] = math.nan
    return found


def repeats_by_loops(matrix, tokens, rows):
    """Means over the queries whose token came before, as the field defines them."""
    again = {
        i: [j for j in range(i) if tokens[j] == tokens[i]] for i in rows if tokens[i] in tokens[:i]
    }
    earlier = [sum(matrix[i][j] for j in places) for i, places in again.items()]
    after = [sum(matrix[i][j + 1] for j in places) for i, places in again.items()]
    return {
        "duplicate_token": sum(earlier) / len(earlier) if earlier else math.nan,
        "induction": sum(after) / len(after) if after else math.nan,
    }


def same(expected):
    return pytest.approx(expected, abs=1e-12, nan_ok=True)


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
    assert found == same(by_loops(matrix, TOKENS))


def test_rows_without_attention_do_not_count():
    matrix = random_matrix(0, causal=True)
    matrix[[1, 4]] = 0.0
    found = describe(AttentionGraph.from_dense(matrix, tokens=TOKENS))
    assert found == same(by_loops(matrix, TOKENS))


def test_no_attention_at_all_has_no_scores():
    for size in (0, 3):
        found = describe(AttentionGraph.from_dense(np.zeros((size, size))))
        assert found == same(dict.fromkeys(SCORES, math.nan) | {"kept": 1.0})


def one_key(keys, tokens=TOKENS):
    """A causal head whose query i gives all it has to ``keys[i]``."""
    matrix = np.zeros((len(keys), len(keys)))
    matrix[np.arange(len(keys)), keys] = 1.0
    return describe(AttentionGraph.from_dense(matrix, tokens=tokens))


def test_a_head_on_the_previous_token():
    found = one_key([0, 0, 1, 2, 3, 4])
    assert found["previous_token"] == 1.0  # the first token has none before it
    assert found["next_token"] == 0.0
    assert found["mean_distance"] == pytest.approx(5 / 6)
    assert found["entropy"] == 0.0


def test_a_head_on_the_first_token():
    found = one_key([0] * 6)
    assert found["first_token"] == 1.0
    assert found["previous_token"] == pytest.approx(1 / 5)
    assert found["mean_distance"] == pytest.approx(15 / 6)


def test_a_head_on_the_next_token():
    matrix = np.zeros((5, 5))
    matrix[np.arange(4), np.arange(1, 5)] = 1.0
    matrix[4, 0] = 1.0
    found = describe(AttentionGraph.from_dense(matrix))
    assert found["next_token"] == 1.0  # the last token has none after it
    assert found["previous_token"] == 0.0
    alone = describe(AttentionGraph.from_dense(np.ones((1, 1))))
    assert math.isnan(alone["previous_token"])
    assert math.isnan(alone["next_token"])


def test_a_head_on_what_followed_the_same_token():
    tokens = (*"xyzw", *"xyzw")
    # The second saying looks one behind the first: 4 -> 1, 5 -> 2, 6 -> 3, 7 -> 4.
    found = one_key([0, 0, 0, 0, 1, 2, 3, 4], tokens)
    assert found["induction"] == 1.0
    assert found["duplicate_token"] == 0.0
    duplicates = one_key([0, 0, 0, 0, 0, 1, 2, 3], tokens)
    assert duplicates["induction"] == 0.0
    assert duplicates["duplicate_token"] == 1.0
    half = one_key([0, 0, 0, 0, 1, 2, 0, 0], tokens)
    assert half["induction"] == 0.5
    others = one_key([0, 0, 0, 0, 1, 2, 3, 4], tuple("abcdefgh"))
    assert math.isnan(others["induction"])  # no token came before
    assert math.isnan(others["duplicate_token"])


def test_an_even_head_has_the_entropy_of_its_neighbourhoods():
    matrix = np.tril(np.ones((4, 4)))
    matrix /= matrix.sum(1, keepdims=True)
    found = describe(AttentionGraph.from_dense(matrix))
    assert found["entropy"] == pytest.approx(sum(map(math.log, [1, 2, 3, 4])) / 4)


def test_what_was_dropped_is_told_and_the_rest_is_read():
    matrix = random_matrix(1, causal=True)
    kept = AttentionGraph.from_dense(matrix, tokens=TOKENS).keep(TopK(2))
    told = {"kept": kept.to_dense().sum() / 6, "edges": 21 / 6}
    assert describe(kept) == same(by_loops(kept.to_dense(), TOKENS) | told)
    assert describe(kept)["kept"] < 1


def test_positions_are_those_in_the_text(randn):
    matrix = random_matrix(2, causal=True)
    head = AttentionGraph.from_dense(matrix, tokens=TOKENS).subgraph([0, 1, 3, 4])
    found = describe(head)
    part = np.zeros_like(matrix)
    places = np.ix_([0, 1, 3, 4], [0, 1, 3, 4])
    part[places] = matrix[places]
    expected = by_loops(part, TOKENS, keys=[0, 1, 3, 4])
    for name in ("mean_distance", "previous_token", "first_token"):
        assert found[name] == pytest.approx(expected[name], abs=1e-12), name


def test_a_step_of_decoding_stands_at_the_end(randn):
    query, key = randn(1, 2, 3), randn(1, 6, 3)
    graph = TokenGraph.causal(2, num_keys=6, query_offset=4)
    (head,) = attention_graphs(query, key, graph, tokens=TOKENS)
    matrix = np.zeros((6, 6))
    matrix[4:] = head.to_dense()
    assert describe(head) == same(by_loops(matrix, TOKENS))


def test_a_sink_outside_is_no_first_token(randn):
    (head,) = attention_graphs(
        randn(1, 6, 3), randn(1, 6, 3), TokenGraph.causal(6), normalizer=Softmax(sink=1.0)
    )
    found = describe(head)
    assert found["first_token"] == pytest.approx(head.to_dense()[:, 0].mean())
    expected = by_loops(head.to_dense())
    outside = head.sink.mean()
    told = {"outside_sink": outside, "sink_mass": found["first_token"] + outside}
    assert outside > 0.1
    assert found == same(expected | told)


def test_cross_attention_has_no_distances():
    graph = TokenGraph.bipartite(2, 3)
    matrix = np.array([[0.5, 0.5, 0.0], [0.25, 0.25, 0.5]])
    found = describe(AttentionGraph.from_dense(matrix, graph))
    assert found["entropy"] == pytest.approx((math.log(2) + 1.5 * math.log(2)) / 2)
    assert found["kept"] == 1.0
    assert (found["confidence"], found["edges"], found["edges_for_90"]) == (0.5, 3, 2.5)
    for name in ("mean_distance", "previous_token", "first_token", "sink_mass", "locality"):
        assert math.isnan(found[name])
    named = AttentionGraph.from_dense(matrix, graph, tokens=["a", ",", "b"], words=[0, 1, None])
    found = describe(named)
    assert found["punctuation"] == pytest.approx(0.75 / 2)
    assert found["special_tokens"] == pytest.approx(0.5 / 2)
    assert math.isnan(found["induction"])


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
        "entropy", "mean_distance", "previous_token", "next_token", "first_token", "same_token",
        "duplicate_token", "induction", "sink_mass", "confidence", "edges", "edges_for_90",
        "locality", "punctuation", "special_tokens", "kept",
        *(f"even_{name}" for name in EVEN_SCORES if name != "outside_sink"), "label",
    ]  # fmt: skip
    for place, head in heads.items():
        row = table.loc[("decoder", *place), :"kept"].to_dict()
        expected = by_loops(head.to_dense())
        del expected["outside_sink"]
        assert row == same(expected)
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


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_punctuation_and_special_tokens(seed):
    tokens, words = ("<s>", "a", ",", "b", "...", "a"), (None, 0, 1, 2, 3, 4)
    matrix = random_matrix(seed, causal=False)
    found = describe(AttentionGraph.from_dense(matrix, tokens=tokens, words=words))
    expected = by_loops(matrix, ("s", *tokens[1:]), words)
    assert found == same(expected)
    assert found["punctuation"] > 0.01 < found["special_tokens"]


@pytest.mark.parametrize(
    ("token", "expected"),
    [(",", True), (" ...", True), ("$", True), ("。", True), ("##s", False), ("", False)],
)
def test_punctuation_is_told_by_its_characters(token, expected):
    assert is_punctuation(token) is expected
    assert not is_punctuation(token + "7")


@settings(max_examples=40)
@given(st.integers(0, 10_000), st.integers(1, 30), st.booleans())
def test_edges_for_90_are_those_of_top_mass(seed, size, is_even):
    rows = np.tril(np.random.default_rng(seed).exponential(size=(size, size)) ** 4)
    rows = np.tril(np.ones((size, size))) if is_even else rows
    rows[np.random.default_rng(seed).random(size) < 0.2] = 0
    head = AttentionGraph.from_dense(rows, graph=TokenGraph.causal(size))
    found = describe(head)["edges_for_90"]
    degree = head.keep(TopMass(0.9)).graph.in_degree.numpy()
    filled = rows.sum(1) > 0
    assert not filled.any() or found == pytest.approx(degree[filled].mean())


@pytest.mark.parametrize("keep", [Threshold(0.05), Threshold(0.3), TopK(1), TopMass(0.7)])
def test_shares_are_no_further_from_those_of_all_edges_than_was_dropped(keep):
    names = ["locality", "special_tokens", "same_token"]
    means = dict.fromkeys(OF_REPEATS, 4) | {"previous_token": 5, "next_token": 5}
    words = (None, 0, 1, 2, 3, 4)
    for seed in range(20):
        matrix = random_matrix(seed, causal=bool(seed % 2))
        head = AttentionGraph.from_dense(matrix, tokens=TOKENS, words=words)
        whole, part = describe(head), describe(head.keep(keep))
        assert part["kept"] < 1
        for name in names:
            assert abs(whole[name] - part[name]) <= 1 - part["kept"] + 1e-12, name
        for name, queries in means.items():  # means over some of 6 queries
            lacking = whole[name] - part[name]
            assert -1e-12 <= lacking <= (1 - part["kept"]) * 6 / queries + 1e-12, name


def test_what_was_dropped_is_in_the_notes():
    head = AttentionGraph.from_dense(random_matrix(0, True), tokens=TOKENS)
    assert head_table(head).notes == []
    kept = head.keep(TopK(2))
    (note,) = head_table(kept).notes
    assert note.startswith(f"{(1 - kept.share_kept) * 100:.2f} % of the attention was not kept")
    assert "kept by TopK(2)" in head_table(kept).computed_from


def test_all_that_holds_attention_gives_the_same_table():
    values = np.stack([[random_matrix(3 * n + h, True) for h in range(3)] for n in range(2)])
    heads = {
        (n, h): AttentionGraph.from_dense(values[n, h], layer=n, head=h)
        for n in range(2)
        for h in range(3)
    }
    expected = head_table(AttentionTrace({"": Stack("", heads)}))
    layers = tuple(torch.from_numpy(layer)[None] for layer in values)
    labelled = xr.DataArray(values, dims=("layer", "head", "query", "key"))
    for given_as in (values, torch.from_numpy(values), layers, labelled, list(heads.values())):
        pd.testing.assert_frame_equal(head_table(given_as), expected, atol=1e-12)
    one = head_table(heads[1, 2])
    assert list(one.index) == [("", 1, 2)]
    pd.testing.assert_frame_equal(one, expected.loc[[("", 1, 2)]])


def test_graphs_of_several_texts_have_no_table():
    head = AttentionGraph.from_dense(random_matrix(0, True), head=1)
    assert list(by_place([head])) == [("", 0, 1)]
    with pytest.raises(SelectionError, match="2 graphs are of 1 heads"):
        head_table([head, head])


def test_the_entropy_alone():
    for matrix in (random_matrix(0, True), random_matrix(1, False) * [[0.0], *[[0.5]] * 5]):
        head = AttentionGraph.from_dense(matrix)
        assert mean_entropy(head) == pytest.approx(describe(head)["entropy"], abs=1e-15)
    assert math.isnan(mean_entropy(AttentionGraph.from_dense(np.zeros((2, 2)))))


# Labels


def label_of(keys, tokens=TOKENS, share=1.0):
    """What a head is called whose query i gives `share` to ``keys[i]``, the rest to all alike."""
    size = len(keys)
    matrix = np.tril(np.ones((size, size)))
    matrix *= (1 - share) / matrix.sum(1, keepdims=True)
    matrix[np.arange(size), keys] += share
    graph = TokenGraph.causal(size)
    return head_table(AttentionGraph.from_dense(matrix, graph, tokens=tokens)).label.item()


def test_labels_say_what_heads_do():
    letters = tuple("abcdefghijklmnopqrst")
    before = [max(n - 1, 0) for n in range(20)]
    assert label_of(before, letters) == "previous token, 1.00"
    assert label_of([0] * 20, letters) == "first token (sink), 1.00"
    assert label_of(range(20), letters) == "same token, 1.00"
    fours = letters[:5] * 4
    earlier, after = ([n - back if n > 4 else n for n in range(20)] for back in (5, 4))
    assert label_of(earlier, fours) == "duplicate token, 1.00"
    assert label_of(after, fours) == "induction, 1.00"
    assert label_of([max(n - 2, 0) for n in range(20)], letters) == "nearby tokens, 1.00"
    assert label_of(before, letters, share=0.0) == "even"
    assert label_of([n // 2 for n in range(20)], letters) == "mixed"


def test_even_attention_is_even_at_any_length():
    for size in (1, 2, 4, 8, 16, 64):
        assert label_of([0] * size, tuple(map(str, range(size))), share=0.0) == "even"


LETTERS = tuple("abcdefghijklmnopqrst")
BEFORE = np.maximum(np.arange(20) - 1, 0)
EARLIER = np.where(np.arange(20) > 4, np.arange(20) - 5, np.arange(20))
PLANTED = {
    "previous token": (BEFORE, LETTERS),
    "next token": (np.minimum(np.arange(20) + 1, 19), LETTERS),
    "first token (sink)": (np.zeros(20, int), LETTERS),
    "same token": (np.arange(20), LETTERS),
    "duplicate token": (EARLIER, LETTERS[:5] * 4),
    "induction": (EARLIER + (np.arange(20) > 4), LETTERS[:5] * 4),
    "nearby tokens": (np.maximum(np.arange(20) - 2, 0), LETTERS),
    "punctuation": (np.arange(20) // 4 * 4, (",", *"abc") * 5),
    "special tokens": (np.arange(20) // 4 * 4, ("<s>", *"abc") * 5),
    "mixed": (np.arange(20) // 2, LETTERS),
}


@pytest.mark.parametrize("name", PLANTED)
def test_planted_heads_are_told_however_few_edges_they_have(name):
    keys, tokens = PLANTED[name]
    words = tuple(None if token == "<s>" else n for n, token in enumerate(tokens))
    hard = np.zeros((20, 20))
    hard[np.arange(20), keys] = 1.0
    allowed = np.tri(20) if name != "next token" else np.ones((20, 20))
    soft = 0.95 * hard + 0.05 * allowed / allowed.sum(1, keepdims=True)
    graph = TokenGraph.causal(20) if name != "next token" else TokenGraph.complete(20)
    facts = {"tokens": tokens, "words": words}
    heads = [
        AttentionGraph.from_dense(hard, **facts),
        AttentionGraph.from_dense(hard, graph, **facts),
        AttentionGraph.from_dense(hard + 1e-12 * allowed, **facts),
        AttentionGraph.from_dense(soft, **facts),
        AttentionGraph.from_dense(soft, graph, **facts),
        AttentionGraph.from_dense(soft, graph, **facts).keep(TopK(1)),
        AttentionGraph.from_dense(soft, graph, **facts).keep(Threshold(0.1)),
    ]
    labels = [head_table(head).label.item() for head in heads]
    assert {label.rpartition(",")[0] or label for label in labels} == {name}


def test_narrow_windows_have_labels():
    matrix = 0.99 * np.eye(20, k=-1) + 0.01 * np.eye(20)
    matrix[0, 0] = 1
    for graph in (None, TokenGraph.window(20, 2)):
        head = AttentionGraph.from_dense(matrix, graph)
        assert head_table(head).label.item() == "previous token, 0.99"


@pytest.mark.parametrize("is_array", [True, False])
@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize(
    "tokens",
    [("a",) * 12, tuple("ab" * 10), ("<s>", "The", "dog"), ("a", ",") * 8, tuple("abcdefgh" * 3)],
)
def test_even_heads_have_no_pattern(tokens, is_causal, is_array):
    size = len(tokens)
    matrix = np.tri(size) if is_causal else np.ones((size, size))
    matrix /= matrix.sum(1, keepdims=True)
    graph = TokenGraph.causal(size) if is_causal else TokenGraph.complete(size)
    words = tuple(None if token == "<s>" else n for n, token in enumerate(tokens))
    given = None if is_array else graph
    head = AttentionGraph.from_dense(matrix, given, tokens=tokens, words=words)
    assert head_table(head).label.item() == "even"


@pytest.mark.parametrize(
    "graph",
    [
        TokenGraph.causal(12),
        TokenGraph.complete(12),
        TokenGraph.window(12, 1),
        TokenGraph.window(12, 3),
        TokenGraph.documents([0] * 5 + [1] * 7, causal=True),
        TokenGraph.causal(4, num_keys=12, query_offset=8),
        TokenGraph.bipartite(3, 12),
    ],
)
@pytest.mark.parametrize("sink", [None, 0.0])
def test_scores_of_even_attention_are_those_of_an_even_head(graph, sink):
    tokens = ("<s>", "a", ",", "b", "a", ",", "a", "a", "b", "c", ",", "b")
    words = tuple(None if token == "<s>" else n for n, token in enumerate(tokens))
    (head,) = attention_graphs(
        torch.zeros(1, graph.num_queries, 2),
        torch.zeros(1, 12, 2),
        graph,
        normalizer=Softmax(sink=sink) if sink is not None else Softmax(),
        tokens=tokens,
    )
    head = replace(head, words=words)
    found, expected = describe(head), even(head)
    assert len(expected) == (3 if graph.is_bipartite else 10 + (sink is not None))
    for name, value in expected.items():
        assert value == pytest.approx(found[name], abs=1e-6), name
    assert head_table(head).label.item() == "even"


def test_labels_come_from_scores_alone():
    row = {"edges": 30.0, "edges_for_90": 5.0, "previous_token": 0.1, "locality": 0.2}
    more = [
        row,
        row | {"special_tokens": 0.7},
        row | {"punctuation": 0.61},
        row | {"outside_sink": 0.4, "first_token": 0.35},
        row | {"same_token": 0.6, "duplicate_token": 0.4},
        row | {"same_token": 0.6, "duplicate_token": 0.3},
        row | {"induction": 0.73, "first_token": 0.63, "previous_token": 0.34},
        row | {"induction": 0.73, "even_induction": 0.7, "first_token": 0.63},
        row | {"edges": math.nan},
        row | {"previous_token": 0.33},
        row | {"locality": 1.0, "even_locality": 1 - 1e-16},  # all keys are near
    ]
    assert head_labels(pd.DataFrame(more)).tolist() == [
        "mixed", "special tokens, 0.70", "punctuation, 0.61",
        "sink outside of the text, 0.40; first token (sink), 0.35", "duplicate token, 0.40",
        "same token, 0.60", "induction, 0.73; previous token, 0.34", "first token (sink), 0.63",
        "no attention", "mixed", "mixed",
    ]  # fmt: skip


def test_labels_of_the_embedded_model():
    """Its card says which heads are which, measured on random tokens said twice."""
    model, tokenizer = gattn.load_model()
    said = torch.randint(1, 2560, (50,), generator=torch.Generator().manual_seed(1))
    tokens = torch.cat([torch.tensor([tokenizer.bos_token_id]), said, said])
    labels = head_table(gattn.capture(tokens, model, tokenizer)).label.loc["decoder"]
    words = labels.str.partition(",")[0]
    assert words[1, 1] == words[2, 2] == "previous token"
    assert words[2, 0] == words[2, 1] == "induction"
    assert words[1, 0] == words[1, 2] == words[1, 3] == "first token (sink)"
    assert words[0, 0] == words[0, 1] == "same token"


def test_induction_is_that_of_the_field_on_random_tokens_said_twice():
    """The mean of the diagonal from the second saying to what followed in the first."""
    model, tokenizer = gattn.load_model()
    count = 40
    said = torch.randperm(2500, generator=torch.Generator().manual_seed(0))[:count] + 20
    tokens = torch.cat([torch.tensor([tokenizer.bos_token_id]), said, said])
    trace = gattn.capture(tokens, model, tokenizer)
    assert len(set(trace.tokens)) == count + 1
    table = head_table(trace)
    for (layer, head), graph in trace["decoder"].items():
        matrix = torch.from_numpy(graph.to_dense()).double()
        after = matrix.diagonal(1 - count)[-count:].mean()
        earlier = matrix.diagonal(-count)[-count:].mean()
        row = table.loc["decoder", layer, head]
        assert row.induction == pytest.approx(float(after), abs=1e-6)
        assert row.duplicate_token == pytest.approx(float(earlier), abs=1e-6)
    assert table.induction.loc["decoder", 2, 0:1].min() > 0.6


def test_the_heads_that_the_pictures_call_induction_heads_are_labelled_so():
    text = "The river tall green lamp river tall green lamp river tall green"
    labels = gattn.capture(text).summary().label.loc["decoder"]
    for head in (0, 1):
        assert labels[2, head].startswith("induction, ")
        assert "; first token (sink), " in labels[2, head]
    assert labels[1, 1].startswith("previous token, ")


def test_a_head_may_have_two_labels():
    eight = tuple("abcdefgh")
    keys = [0] * 8 + [1, 2, 3]
    assert label_of(keys, (*eight, *"abc")) == "induction, 1.00; first token (sink), 0.73"
    assert label_of([0] * 16, eight * 2) == "first token (sink), 1.00"


def test_plain_patterns_are_not_taken_for_specific_ones():
    twos = tuple("ab") * 6  # what followed the same token is the previous token
    before = [max(n - 1, 0) for n in range(12)]
    assert label_of(before, twos) == "previous token, 1.00"
    # the first token is an earlier one of the same text
    assert label_of([0] * 12, ("a", *"bcda" * 3)[:12]) == "first token (sink), 1.00"
    pairs = tuple("aabbccddeeff")  # what followed the same token is the token itself
    assert label_of(range(12), pairs) == "same token, 1.00"


def test_a_text_without_repeats_has_no_induction():
    table = gattn.capture("A tall green lamp").summary()
    assert table[list(OF_REPEATS)].isna().all(axis=None)
    assert not table.label.str.contains("induction|duplicate").any()
    with pytest.raises(SelectionError, match="'induction'"):
        gattn.capture("A tall green lamp").draw(sort="induction")


def test_labels_of_anything_else_are_refused():
    trace = gattn.capture("The dog chased the cat")
    for thing, message in [
        (trace, r"head_labels\(trace.summary\(\)\), not AttentionTrace"),
        (trace.summary().label, "not Series"),
        (trace.summary()[["induction"]], "'edges' is not there"),
    ]:
        with pytest.raises(SelectionError, match=message):
            head_labels(thing)


# Pictures


def test_the_picture_has_scores_that_differ_and_labels():
    table = gattn.capture("The dog chased the cat, and the cat chased the dog").summary()
    ax = table.draw()
    (beside,) = ax.child_axes
    assert [text.get_text() for text in beside.get_yticklabels()] == table.label.tolist()
    names = [text.get_text().replace("\n", " ") for text in ax.get_xticklabels()]
    names = [name.removesuffix(" %").replace(" ", "_") for name in names]
    assert names == [name for name in table.loc[:, :"kept"] if table[name].nunique() > 1]
    assert "kept" not in names
    place = names.index("first_token")
    colours = colour_map(None, is_signed=False, is_area=True)
    painted = ax.images[0].get_array()[:, place]
    np.testing.assert_allclose(painted, colours(table.first_token.to_numpy()))
    rows = [text.get_text() for text in ax.get_yticklabels()]
    assert rows[:5] == ["0.0", "0.1", "0.2", "0.3", "1.0"]


def test_a_part_of_the_table_draws_itself_too():
    table = head_table(np.stack([random_matrix(seed, True) for seed in range(4)])[None])
    part = table.loc["", 0:0, 1:2]
    ax = part.draw(columns=["entropy", "locality"])
    assert [text.get_text() for text in ax.get_xticklabels()] == ["entropy", "locality"]
    assert head_table(np.eye(3)).draw() is not None


@pytest.mark.parametrize(
    ("noun", "located"),
    [
        ("token", lambda trace: trace),
        ("patch", lambda trace: trace.on_grid(2, 3)),
        ("node", lambda trace: trace.with_layout(np.eye(6)[:, :2])),
    ],
)
def test_labels_name_patches_and_nodes_as_such(noun, located):
    before = np.eye(6)[[0, 0, 1, 2, 3, 4]]
    first = np.zeros((6, 6))
    first[:, 0] = 1
    near = (abs(np.subtract.outer(range(6), range(6))) <= 2) & ~np.eye(6, dtype=bool)
    heads = [before, first, np.eye(6), near / near.sum(1, keepdims=True)]
    trace = AttentionTrace.from_arrays(np.array(heads)[None], tokens=list("abcdef"))
    table = head_table(located(trace), progress=False)
    several = {"patch": "patches"}.get(noun, f"{noun}s")
    begins = [f"previous {noun}, 1.00", f"first {noun} (sink), 1.00", f"same {noun}, 1.00"]
    assert [label[: len(begin)] for label, begin in zip(table["label"], begins, strict=False)] == (
        begins
    )
    assert not {"token", "patch", "node"} - {noun} & set(" ".join(table["label"]).split())
    assert table["label"].iloc[3] in (f"nearby {several}, 1.00", "mixed", "even")
    assert head_labels(table).tolist() == table["label"].tolist()
    mean = gattn.analysis.over_texts([table, table]).mean
    assert mean["label"].tolist() == table["label"].tolist()
