"""Attention graphs against dense matrices."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import networkx as nx
import numpy as np
import pytest
import scipy.sparse
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gattn.errors import CaptureError, GraphError, OptionError, SelectionError, ShapeError
from gattn.graph.token_graph import TokenGraph
from gattn.heads.head import AttentionGraph
from gattn.heads.steps import Merged
from gattn.keep import All, Threshold, TopK, TopMass

TOKENS = ("the", " cat", " saw", " the", " dog")


def causal_attention(n: int = 5, seed: int = 0) -> np.ndarray:
    scores = torch.randn(n, n, generator=torch.Generator().manual_seed(seed)).double()
    future = torch.ones(n, n, dtype=torch.bool).triu(1)
    return scores.masked_fill(future, -torch.inf).softmax(-1).numpy()


def causal_head(**attributes) -> AttentionGraph:
    return AttentionGraph.from_dense(
        causal_attention(), TokenGraph.causal(5), tokens=TOKENS, **attributes
    )


def test_a_dense_matrix_comes_back_in_every_form() -> None:
    A, head = causal_attention(), causal_head()
    np.testing.assert_array_equal(head.to_dense(), A)
    np.testing.assert_array_equal(head.to_scipy().toarray(), A)
    table = head.to_pandas()
    np.testing.assert_array_equal(A[table["query"], table["key"]], table["attention"])
    assert table["query_token"].tolist() == [TOKENS[i] for i in table["query"]]
    assert table["key_token"].tolist() == [TOKENS[j] for j in table["key"]]
    np.testing.assert_array_equal(nx.to_numpy_array(head.to_networkx(), nodelist=range(5)).T, A)


def test_the_edges_of_a_matrix_are_its_non_zero_entries() -> None:
    head = AttentionGraph.from_dense(np.array([[0.0, 1.0], [-0.5, 0.0]]))
    assert head.graph.edge_index.tolist() == [[1, 0], [0, 1]]
    assert head.total_mass.tolist() == [1.0, 0.5]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_the_dtype_of_the_attention_is_kept(dtype: type) -> None:
    head = AttentionGraph.from_dense(causal_attention().astype(dtype)).keep(TopK(2)).merge([(0, 2)])
    for values in (head.attention, head.total_mass, head.kept_mass, head.to_dense()):
        assert values.dtype == dtype


@pytest.mark.parametrize("keep", [All(), Threshold(0.2), TopK(2), TopMass(0.8)])
def test_what_is_dropped_is_counted(keep) -> None:
    A, head = causal_attention(), causal_head().keep(keep)
    mask = keep.select(torch.from_numpy(A), torch.ones(5, 5, dtype=torch.bool).tril()).numpy()
    np.testing.assert_array_equal(head.to_dense(), np.where(mask, A, 0))
    np.testing.assert_allclose(head.kept_mass, (A * mask).sum(1))
    np.testing.assert_allclose(head.total_mass, np.ones(5))
    np.testing.assert_array_equal(head.total_edges, [1, 2, 3, 4, 5])
    np.testing.assert_array_equal(head.dropped_edges, [1, 2, 3, 4, 5] - mask.sum(1))
    assert head.share_kept == pytest.approx((A * mask).sum() / 5)
    assert head.kept_by == (keep,)


def test_keeps_follow_each_other_and_say_so() -> None:
    head = causal_head().keep(TopK(3)).keep(Threshold(0.1))
    assert head.kept_by == (TopK(3), Threshold(0.1))
    np.testing.assert_allclose(head.total_mass, np.ones(5))


def test_signed_attention_is_ranked_and_counted_by_size() -> None:
    head = AttentionGraph.from_dense(np.array([[0.5, -2.0], [1.0, 0.25]])).keep(TopK(1))
    assert head.to_dense().tolist() == [[0.0, -2.0], [1.0, 0.0]]
    assert head.kept_mass.tolist() == [2.0, 1.0]
    assert head.share_kept == pytest.approx(3 / 3.75)


def test_scores_stay_with_their_edges() -> None:
    A = causal_attention()
    graph = TokenGraph.causal(5)
    key, query = graph.edge_index.numpy()
    head = AttentionGraph.from_dense(A, graph, score=np.log(A[query, key]))
    for part in (head.keep(TopK(2)), head.without_self_loops(), head.subgraph([1, 3, 4])):
        np.testing.assert_allclose(np.exp(part.score), part.attention)
    assert head.merge([(0, 2)]).score is None


def with_lengths() -> tuple[AttentionGraph, np.ndarray, np.ndarray]:
    """A head and the dense matrices ‖A_ij v_j W‖ and ‖A_ij v_j‖, vector by vector."""
    A, draw = causal_attention(), np.random.default_rng(0)
    v, W = draw.normal(size=(5, 3)), draw.normal(size=(3, 7))
    carried = [[np.linalg.norm(A[i, j] * v[j]) for j in range(5)] for i in range(5)]
    added = [[np.linalg.norm(A[i, j] * v[j] @ W) for j in range(5)] for i in range(5)]
    contribution, value_norm = np.array(added), np.array(carried)
    i, j = np.tril_indices(5)
    lengths = {"contribution": contribution[i, j], "value_norm": value_norm[i, j]}
    return causal_head(**lengths), contribution, value_norm


@pytest.mark.parametrize(
    "part",
    [
        lambda head: head,
        lambda head: head.keep(TopK(2)),
        lambda head: head.keep(Threshold(0.1)).keep(TopMass(0.5)),
        lambda head: head.without_self_loops(),
        lambda head: head.subgraph([1, 3, 4]),
        lambda head: head.subgraph(["the"]).keep(TopK(1)),
    ],
)
def test_contributions_and_value_norms_stay_with_their_edges(part) -> None:
    head, contribution, value_norm = with_lengths()
    kept = part(head)
    places = kept.node_positions[kept.query], kept.node_positions[kept.key]
    np.testing.assert_array_equal(kept.contribution, contribution[places])
    np.testing.assert_array_equal(kept.value_norm, value_norm[places])
    table = kept.to_pandas()
    places = table["query"].to_numpy(), table["key"].to_numpy()
    np.testing.assert_array_equal(table["contribution"], contribution[places])
    np.testing.assert_array_equal(table["value_norm"], value_norm[places])


def test_only_what_is_stored_is_among_the_values_of_edges() -> None:
    assert list(causal_head().edge_values) == ["attention"]
    assert "contribution" not in causal_head().to_pandas()
    head = with_lengths()[0]
    assert list(head.edge_values) == ["attention", "contribution", "value_norm"]
    assert all(values is getattr(head, name) for name, values in head.edge_values.items())


def test_merging_drops_lengths_for_a_sum_is_shorter_than_its_parts() -> None:
    merged = with_lengths()[0].merge([(0, 2)])
    assert list(merged.edge_values) == ["attention"]
    assert merged.contribution is None
    assert merged.value_norm is None


@pytest.mark.parametrize("name", ["contribution", "value_norm"])
def test_lengths_are_at_least_zero_and_finite(name: str) -> None:
    values = np.zeros(15)
    assert getattr(causal_head(**{name: values}), name) is values
    for value, reason in [(-0.5, "lengths are at least 0"), (np.nan, "NaN"), (np.inf, "infinity")]:
        values = np.zeros(15)
        values[7] = value
        with pytest.raises(CaptureError, match=f"{name} of query 3 to key 1 is {value}.*{reason}"):
            causal_head(**{name: values})
    with pytest.raises(ShapeError, match=f"{name} must have 15 entries, not 14"):
        causal_head(**{name: np.zeros(14)})


def test_a_key_value_head_stays_with_its_head_and_is_told() -> None:
    head = causal_head(layer=0, head=5, key_value_head=1)
    assert head.place() == ["layer 0", "head 5", "key-value head 1"]
    assert repr(head).startswith("AttentionGraph(layer 0, head 5, key-value head 1, 5 tokens, ")
    for part in (head.keep(TopK(1)), head.subgraph([0]), head.merge([(0, 2)])):
        assert part.key_value_head == 1
    assert causal_head(head=3).place() == ["head 3"]


def test_without_self_loops_a_causal_head_is_a_dag() -> None:
    head = causal_head()
    assert not nx.is_directed_acyclic_graph(head.to_networkx())
    bare = head.without_self_loops()
    assert nx.is_directed_acyclic_graph(bare.to_networkx())
    assert nx.utils.graphs_equal(
        nx.DiGraph(bare.to_networkx().edges), nx.DiGraph(head.to_networkx(self_loops=False).edges)
    )
    np.testing.assert_array_equal(bare.to_dense(), np.tril(causal_attention(), -1))
    assert bare.dropped_edges.tolist() == [1] * 5


def test_self_loops_of_a_decoding_step_stand_at_its_offset() -> None:
    graph = TokenGraph.causal(2, num_keys=5, query_offset=3)
    head = AttentionGraph.from_dense(causal_attention()[3:], graph, tokens=TOKENS)
    bare = head.without_self_loops()
    np.testing.assert_array_equal(bare.to_dense(), np.tril(causal_attention(), -1)[3:])
    assert head.query_labels() == [" the", " dog"]
    assert head.node_ids() == ([0, 1, 2, 3, 4], [3, 4])


def test_subgraphs_keep_positions_and_count_the_rest_as_dropped() -> None:
    part = causal_head(words=(0, 1, 2, 3, 4)).subgraph([4, "the"])
    assert part.node_positions.tolist() == [0, 3, 4]
    assert part.tokens == ("the", " the", " dog")
    assert part.words == (0, 3, 4)
    np.testing.assert_array_equal(part.to_dense(), causal_attention()[np.ix_([0, 3, 4], [0, 3, 4])])
    assert part.dropped_edges.tolist() == [0, 2, 2]
    assert part.subgraph([3]).node_positions.tolist() == [3]
    assert part.to_pandas()["key"].tolist() == [0, 0, 3, 0, 3, 4]


def test_subgraph_of_a_decoding_step_gives_every_token_a_row() -> None:
    graph = TokenGraph.causal(1, num_keys=5, query_offset=4)
    head = AttentionGraph.from_dense(causal_attention()[4:], graph, tokens=TOKENS)
    part = head.subgraph([2, 4])
    np.testing.assert_array_equal(part.to_dense()[1], causal_attention()[4, [2, 4]])
    assert part.total_edges.tolist() == [0, 5]


def test_subgraph_of_cross_attention_chooses_on_both_sides() -> None:
    A = np.arange(1.0, 7).reshape(2, 3)
    head = AttentionGraph.from_dense(
        A, TokenGraph.bipartite(2, 3), tokens=("a", "b", "c"), query_tokens=("x", "b")
    )
    part = head.subgraph(["a", "b"])
    assert (part.tokens, part.query_tokens) == (("a", "b"), ("b",))
    assert part.to_dense().tolist() == [[4.0, 5.0]]


def test_queries_of_cross_attention_keep_their_positions_too() -> None:
    A = np.arange(1.0, 7).reshape(2, 3)
    part = AttentionGraph.from_dense(A, TokenGraph.bipartite(2, 3)).subgraph([1])
    assert part.node_ids() == ([1], [1])
    assert part.query_labels() == ["1"]
    assert part.to_pandas()[["query", "key"]].to_numpy().tolist() == [[1, 1]]
    assert part.subgraph([1]).to_dense().tolist() == [[5.0]]
    with pytest.raises(SelectionError, match=r"token must be .* not 0"):
        part.subgraph([0])


def test_a_missing_token_is_named_with_those_there_are() -> None:
    with pytest.raises(SelectionError, match=r"No token 'owl'; the 5 tokens are 'the', ' cat'"):
        causal_head().subgraph(["owl"])
    with pytest.raises(SelectionError, match=r"token must be .* not 7"):
        causal_head().subgraph([0, 7])
    for nodes in ([[0]], 3):
        with pytest.raises(SelectionError, match="position"):
            causal_head().subgraph(nodes)
    assert causal_head().subgraph("the").node_positions.tolist() == [0, 3]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_attention_that_is_not_finite_is_refused_and_its_edge_named(value: float) -> None:
    A = causal_attention()
    A[3, 1] = value
    with pytest.raises(CaptureError, match=r"attention of query 3 to key 1 is -?(nan|inf)"):
        AttentionGraph.from_dense(A, TokenGraph.causal(5))
    with pytest.raises(CaptureError, match="sink of query 2 is"):
        causal_head(sink=np.array([0, 0, value, 0, 0]))


def test_a_score_may_be_infinite_but_not_nan() -> None:
    score = np.zeros(15)
    score[[3, 4]] = -np.inf, np.inf
    assert causal_head(score=score).score is score
    with pytest.raises(CaptureError, match="score of query 2 to key 1 is nan"):
        causal_head(score=np.where(np.isinf(score) & (score > 0), np.nan, score))


@pytest.mark.parametrize("place", ["1", 1.0, True, [1], -1])
def test_a_place_in_the_model_is_a_whole_number(place: object) -> None:
    for name in ("layer", "head", "key_value_head"):
        with pytest.raises(ShapeError, match=f"{name} must be a whole number ≥ 0"):
            causal_head(**{name: place})


@pytest.mark.parametrize("kind", [np.int64, np.uint8, torch.tensor])
def test_numbers_of_any_library_are_taken(kind: Any) -> None:
    head = causal_head(layer=kind(1), head=kind(0), generated=kind(2))
    assert head.place() == ["layer 1", "head 0"]
    assert [type(one) for one in (head.layer, head.head, head.generated)] == [int] * 3
    for wrong in (-1, 6, 1.0, True):
        with pytest.raises(ShapeError, match="generated must be a whole number from 0 to 5"):
            causal_head(generated=wrong)


@pytest.mark.parametrize("keep", [3, TopK, "TopK(3)", None])
def test_what_is_no_keep_is_refused(keep: object) -> None:
    with pytest.raises(GraphError, match=r"A keep says which edges stay.*TopK\(k\)"):
        causal_head().keep(keep)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_tensors_are_read_without_their_gradients(dtype: torch.dtype) -> None:
    A = torch.tensor(causal_attention(), dtype=dtype).requires_grad_()
    head = AttentionGraph.from_dense(A, TokenGraph.causal(5))
    np.testing.assert_array_equal(head.to_dense(), A.detach().to(torch.float64))


@st.composite
def matrices_with_spans(draw):
    size = draw(st.integers(1, 7))
    rows = st.lists(st.integers(0, 8), min_size=size, max_size=size)
    A = np.array(draw(st.lists(rows, min_size=size, max_size=size)), dtype=float) / 8
    cuts = sorted(draw(st.sets(st.integers(1, max(size - 1, 1)))) & set(range(1, size)))
    bounds = [0, *cuts, size]
    return A, list(pairwise(bounds))


@given(matrices_with_spans())
@settings(max_examples=40)
def test_merging_sums_columns_and_averages_rows(case) -> None:
    A, spans = case
    M = np.zeros((len(spans), len(A)))
    for group, (start, stop) in enumerate(spans):
        M[group, start:stop] = 1
    merged = AttentionGraph.from_dense(A).merge(spans)
    expected = (M / M.sum(1, keepdims=True)) @ A @ M.T
    np.testing.assert_allclose(merged.to_dense(), expected)
    np.testing.assert_allclose(merged.total_mass, expected.sum(1))
    assert (merged.dropped_edges == 0).all()


def test_merging_words_joins_texts_and_leaves_special_tokens_alone() -> None:
    head = AttentionGraph.from_dense(
        causal_attention(6),
        tokens=("<s>", "un", "believ", "able", " cat", "</s>"),
        words=(None, 0, 0, 0, 1, None),
        sink=np.arange(6.0),
    ).merge_words()
    assert head.tokens == ("<s>", "unbelievable", " cat", "</s>")
    assert head.words == (None, 0, 1, None)
    np.testing.assert_allclose(head.kept_mass, np.ones(4))
    np.testing.assert_allclose(head.sink, [0, 2, 4, 5])


def test_two_special_tokens_side_by_side_stay_two() -> None:
    words = (None, None, 0, 0, 1)
    merged = causal_head(words=words).merge_words()
    assert merged.tokens == ("the", " cat", "saw the", " dog")


def test_dropped_edges_survive_merging() -> None:
    head = causal_head().keep(TopK(1)).merge([(0, 2), (2, 5)])
    assert head.dropped_edges.sum() == 10


@pytest.mark.parametrize("spans", [[(0, 2), (1, 3)], [(2, 2)], [(4, 6)], [(-1, 2)]])
def test_spans_that_do_not_fit_are_refused(spans) -> None:
    with pytest.raises(SelectionError, match="half-open, not overlap"):
        causal_head().merge(spans)


def test_merging_needs_words_and_two_sides_for_two_kinds_of_spans() -> None:
    with pytest.raises(SelectionError, match="does not know which tokens form a word"):
        causal_head().merge_words()
    with pytest.raises(SelectionError, match="query_spans are for bipartite graphs"):
        causal_head().merge([(0, 2)], [(0, 2)])
    cross = AttentionGraph.from_dense(np.ones((2, 3)), TokenGraph.bipartite(2, 3))
    assert cross.without_self_loops() is cross


def test_merging_cross_attention_sums_keys_and_averages_queries() -> None:
    A = np.arange(1.0, 13).reshape(3, 4)
    head = AttentionGraph.from_dense(
        A,
        TokenGraph.bipartite(3, 4),
        tokens=("a", "b", "c", "d"),
        query_tokens=("x", "y", "z"),
        words=(0, 0, 1, None),
    )
    merged = head.merge([(1, 3)], query_spans=[(0, 2)])
    assert (merged.tokens, merged.query_tokens) == (("a", "b c", "d"), ("xy", "z"))
    assert merged.graph.is_bipartite
    rows = np.stack([A[:2].mean(0), A[2]])
    expected = np.stack([rows[:, 0], rows[:, 1] + rows[:, 2], rows[:, 3]], axis=1)
    np.testing.assert_allclose(merged.to_dense(), expected)
    np.testing.assert_allclose(merged.total_mass, expected.sum(1))
    assert (merged.dropped_edges == 0).all()
    assert head.merge_words().tokens == ("ab", "c", "d")
    assert head.merge_words().query_tokens == ("x", "y", "z")


def test_labels_are_tokens_or_positions() -> None:
    bare = AttentionGraph.from_dense(causal_attention())
    assert bare.labels() == ["0", "1", "2", "3", "4"]
    assert bare.subgraph([1, 4]).labels() == ["1", "4"]
    assert causal_head().labels() == list(TOKENS)


def test_shapes_that_do_not_fit_are_named() -> None:
    with pytest.raises(ShapeError, match="tokens must have 5 entries, not 2"):
        AttentionGraph.from_dense(causal_attention(), tokens=("a", "b"))
    with pytest.raises(ShapeError, match=r"integers or floats .* not bool \(2, 2\)"):
        AttentionGraph.from_dense(np.ones((2, 2), dtype=bool))
    with pytest.raises(ShapeError, match=r"attention is \(5, 5\), but the token graph has 4"):
        AttentionGraph.from_dense(causal_attention(), TokenGraph.causal(4))


def test_integers_are_attention_too() -> None:
    head = AttentionGraph.from_dense([[1, 0], [2, 3]])
    assert head.attention.dtype == np.float64
    assert head.to_dense().tolist() == [[1, 0], [2, 3]]


def test_a_field_that_does_not_exist_is_named() -> None:
    pairs = {"key_tokens": ["a", "b"]}
    matrix = scipy.sparse.csr_array([[1.0, 0.0], [0.3, 0.7]])
    for read in (
        lambda: AttentionGraph.from_scipy(matrix, **pairs),
        lambda: AttentionGraph.from_dense(matrix.todense(), **pairs),
        lambda: AttentionGraph.from_edges([[0], [0]], [1.0], ["a"], **pairs),
    ):
        with pytest.raises(OptionError, match="no option key_tokens=: tokens= are the texts"):
            read()


def test_an_empty_head_has_every_form() -> None:
    head = AttentionGraph.from_dense(np.zeros((0, 0)))
    assert head.share_kept == 1.0
    assert head.to_dense().shape == (0, 0)
    assert len(head.to_pandas()) == len(head.to_networkx()) == 0
    assert head.keep(TopK(2)).merge([]).subgraph([]).graph.num_edges == 0


def test_repr_says_what_was_kept() -> None:
    head = causal_head(layer=1, head=3).keep(TopK(1))
    text = repr(head)
    assert text.startswith("AttentionGraph(layer 1, head 3, 5 tokens, 5 edges, keep=TopK(1), ")
    assert f"{head.share_kept * 100:.1f} % of the attention" in text


def test_a_merged_head_says_so_where_edges_were_dropped():
    matrix = np.array([[0.6, 0.25, 0.15], [0.5, 0.3, 0.2], [0.4, 0.3, 0.3]])
    head = AttentionGraph.from_dense(matrix)
    assert head.merge([(0, 2)]).kept_by == (All(),)
    part = head.keep(Threshold(0.2)).merge([(0, 2)])
    assert part.kept_by == (Threshold(0.2), Merged())


def test_generated_tokens_stay_counted_in_parts_and_merged_heads() -> None:
    head = causal_head(generated=2)
    assert [head.subgraph(nodes).generated for nodes in ([0, 1], [2, 3], [0, 3, 4])] == [0, 1, 2]
    assert [head.merge([span]).generated for span in ((0, 2), (2, 4), (3, 5))] == [2, 1, 1]
    network = head.to_networkx()
    assert [node for node, is_new in network.nodes.data("generated") if is_new] == [3, 4]
    assert AttentionGraph.from_networkx(network.subgraph([0, 1, 4])).generated == 1


def test_generated_tokens_of_cross_attention_are_queries() -> None:
    head = AttentionGraph.from_dense(np.ones((3, 4)), TokenGraph.bipartite(3, 4), generated=2)
    assert head.subgraph([0, 2]).generated == 1
    assert head.merge([(0, 4)], [(1, 3)]).generated == 1
    again = AttentionGraph.from_networkx(head.to_networkx())
    assert again.generated == 2


@pytest.mark.parametrize("generated", [-1, 6, True, 1.0, "2"])
def test_generated_is_a_number_of_tokens(generated: object) -> None:
    with pytest.raises(ShapeError, match=f"generated must .* from 0 to 5, not {generated!r}"):
        causal_head(generated=generated)


def test_a_negative_mass_is_refused() -> None:
    head = causal_head()
    with pytest.raises(CaptureError, match="at least 0"):
        replace(head, total_mass=-head.total_mass)


def test_long_doubles_are_refused() -> None:
    if np.dtype(np.longdouble).itemsize > 8:
        head = causal_head()
        with pytest.raises(ShapeError, match="floats of 16, 32 or 64 bits"):
            replace(head, attention=head.attention.astype(np.longdouble))
        with pytest.raises(ShapeError, match="floats of up to 64 bits"):
            AttentionGraph.from_dense(np.eye(2, dtype=np.longdouble))


def test_a_dense_matrix_that_is_not_square_is_cross_attention():
    matrix = np.random.default_rng(0).dirichlet(np.ones(4), size=6)
    head = AttentionGraph.from_dense(matrix, tokens=list("wxyz"), query_tokens=list("abcdef"))
    assert head.graph.is_bipartite
    assert (head.tokens, head.query_tokens) == (tuple("wxyz"), tuple("abcdef"))
    np.testing.assert_array_equal(head.to_dense(), matrix)
    square = AttentionGraph.from_dense(matrix[:4], tokens=list("wxyz"), query_tokens=list("abcd"))
    assert square.graph.is_bipartite
    with pytest.raises(ShapeError, match="4"):
        AttentionGraph.from_dense(matrix, tokens=list("abcdef"))


def test_repr_of_cross_attention_counts_queries_and_keys() -> None:
    cross = AttentionGraph.from_dense(
        np.full((3, 5), 0.2), TokenGraph.bipartite(3, 5), layer=1, head=2
    )
    assert repr(cross).startswith(
        "AttentionGraph(cross-attention, layer 1, head 2, 3 queries, 5 keys, 15 edges, "
    )
    one = AttentionGraph.from_dense(np.ones((1, 1)), TokenGraph.bipartite(1, 1))
    assert repr(one).startswith("AttentionGraph(1 query, 1 key, 1 edges, ")
