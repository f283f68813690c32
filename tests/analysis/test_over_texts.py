"""Means over texts against NumPy and pandas, and texts without tokens against cut matrices."""

import dataclasses
import math

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import gattn
from gattn import All, AttentionGraph, AttentionTrace, TokenGraph, TopK, TopMass
from gattn.analysis import compare, head_distances, head_table, over_texts, without_tokens
from gattn.analysis.reading.results import Table, array
from gattn.errors import SelectionError
from gattn.heads.stack import Stack
from gattn.heads.steps import Without

TEXTS = ["The dog chased the cat.", "Anna has a red ball, and Tom has a blue book.", "Hello there!"]


def table_of(values, **facts):
    rows = {"layer": range(len(values)), "head": 0, "a": values[:, 0], "b": values[:, 1]}
    rows |= {"said": "word", "is_it": True, "query": 3}
    return Table.of(rows, name="toy", computed_from="a text", index=["layer", "head"], **facts)


@settings(max_examples=40)
@given(st.integers(0, 10_000), st.integers(1, 7), st.floats(0, 0.9))
def test_mean_and_spread_are_those_of_the_numbers_that_are_there(seed, count, missing):
    generator = np.random.default_rng(seed)
    values = generator.normal(1e3, 1, size=(count, 3, 2))
    values[generator.random(values.shape) < missing] = np.nan
    found = over_texts(table_of(one) for one in values)
    frames = pd.concat([pd.DataFrame(one) for one in values]).groupby(level=0)
    np.testing.assert_allclose(found.mean.to_numpy(), frames.mean().to_numpy(), rtol=1e-12)
    np.testing.assert_allclose(found.spread.to_numpy(), frames.std().to_numpy(), atol=1e-9)
    assert found.count == count
    assert list(found.mean.columns) == list(found.spread.columns) == ["a", "b"]
    assert found.mean.index.names == ["layer", "head"]
    assert found.mean.computed_from == f"{count} texts, the first one: a text"


def test_arrays_with_the_same_axes(randn):
    values = randn(4, 2, 3).numpy()
    results = [
        array(one, {"layer": [0, 1], "token": [0, 1, 2]}, name="x", computed_from="a text",
              tokens={"token": list(text)})
        for one, text in zip(values, ("abc", "abd", "xyz", "abc"), strict=True)
    ]  # fmt: skip
    found = over_texts(results)
    np.testing.assert_allclose(found.mean, values.mean(0), atol=1e-14)
    np.testing.assert_allclose(found.spread, values.std(0, ddof=1), atol=1e-14)
    assert type(found.mean) is type(results[0])
    assert "token_token" not in found.mean.coords
    assert found.mean.notes == ["mean"]
    (caption,) = found.draw().texts
    assert "the first one: a text" in caption.get_text().replace("\n", " ")


def test_results_are_read_one_by_one():
    alive = []

    def results():
        for n in range(5):
            one = table_of(np.full((2, 2), float(n)))
            alive.append(n)
            yield one
            assert alive == list(range(n + 1))

    assert over_texts(results()).mean.a.tolist() == [2, 2]


def test_notes_of_texts_are_told():
    one, other = table_of(np.ones((1, 2))), table_of(np.ones((1, 2)), notes=["half is missing"])
    assert over_texts([one, other]).mean.notes == ["mean", "of a text: half is missing"]
    assert over_texts([one]).spread.notes == ["sample standard deviation"]
    assert over_texts([one]).spread.isna().all(axis=None)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (table_of(np.ones((3, 2))), "Result 1 has other rows than the first one, 3 and 2"),
        (table_of(np.ones((2, 2))).drop(columns="b"), "columns than the first one, such as 'b'"),
        (array(np.ones(2), {"layer": [0, 1]}, name="x", computed_from=""), "is no Table"),
    ],
)  # fmt: skip
def test_other_results_are_refused(other, said):
    with pytest.raises(SelectionError, match=said):
        over_texts([table_of(np.ones((2, 2))), other])


def test_texts_of_other_lengths_have_no_axis_of_tokens_in_common():
    results = [
        array(np.ones((2, n)), {"layer": [0, 1], "query": range(n)}, name="x", computed_from="")
        for n in (3, 4)
    ]
    with pytest.raises(SelectionError, match=r"of length 4 and 3: .* as in result.mean\('query'\)"):
        over_texts(results)
    found = over_texts(result.mean("query") for result in results)
    assert found.mean.to_numpy().tolist() == [1, 1]
    with pytest.raises(SelectionError, match="axes"):
        over_texts([results[0], results[0].mean("query")])


def test_no_results_and_no_tables_are_refused():
    with pytest.raises(SelectionError, match="no results"):
        over_texts([])
    with pytest.raises(SelectionError, match="tables or arrays, one per text, not float"):
        over_texts([1.0])


@pytest.fixture(scope="module")
def embedded():
    return gattn.load_model()


def test_head_tables_of_many_texts(embedded):
    found = over_texts(
        head_table(trace) for trace in gattn.capture_many(TEXTS, *embedded, progress=False)
    )
    single = [head_table(gattn.capture(text, *embedded)) for text in TEXTS]
    for name in ("entropy", "induction", "edges"):
        values = pd.DataFrame([one[name].to_numpy() for one in single])  # NaN does not count
        np.testing.assert_allclose(found.mean[name], values.mean(), rtol=1e-5)
        np.testing.assert_allclose(found.spread[name], values.std(), rtol=1e-4, atol=1e-9)
    assert found.mean.label["decoder", 1, 1].startswith("previous token")
    assert "label" not in found.spread
    assert found.draw() is not None


def test_distances_and_comparisons_of_many_texts(embedded):
    traces = [gattn.capture(text, *embedded) for text in TEXTS]
    mean = over_texts(head_distances(trace, progress=False) for trace in traces).mean
    expected = np.mean([head_distances(trace).to_numpy() for trace in traces], 0)
    np.testing.assert_allclose(mean, expected, atol=1e-12)
    tables = over_texts(compare(trace, trace) for trace in traces)
    assert list(tables.mean.columns) == [
        "distance",
        "entropy_before",
        "entropy_after",
        "edge_change",
    ]
    assert (tables.mean.distance == 0).all()


# Without tokens


def causal(size, seed, **attributes):
    rows = np.tril(np.random.default_rng(seed).exponential(size=(size, size)) ** 2)
    rows /= rows.sum(1, keepdims=True)
    attributes = {"tokens": [f"t{i}" for i in range(size)]} | attributes
    return AttentionGraph.from_dense(rows, TokenGraph.causal(size), **attributes)


def cut(matrix, stays):
    """Cut rows and columns, and let rows sum to 1 again where anything is left."""
    part = matrix[np.ix_(stays, stays)]
    mass = part.sum(1, keepdims=True)
    return np.divide(part, mass, out=np.zeros_like(part), where=mass > 0)


@pytest.mark.parametrize(
    ("which", "stays"),
    [
        ("first", [1, 2, 3, 4, 5]),
        ("special", [1, 2, 4, 5]),
        ([0, 4], [1, 2, 3, 5]),
        (["t1", 5], [0, 2, 3, 4]),
        ([], [0, 1, 2, 3, 4, 5]),
    ],
)
def test_what_stays_is_renormalized(which, stays):
    head = causal(6, 0, words=(None, 0, 1, None, 2, 3), layer=1, head=2)
    found = without_tokens(head, which)
    np.testing.assert_allclose(found.to_dense(), cut(head.to_dense(), stays), atol=1e-15)
    assert found.tokens == tuple(f"t{i}" for i in stays)
    assert found.node_positions.tolist() == stays
    assert (found.layer, found.head) == (1, 2)
    np.testing.assert_allclose(found.total_mass, found.kept_mass)
    assert (found.dropped_edges == 0).all()


def test_a_query_that_gave_all_away_has_no_attention():
    matrix = np.array([[1.0, 0, 0], [1, 0, 0], [0.5, 0.25, 0.25]])
    found = without_tokens(AttentionGraph.from_dense(matrix, TokenGraph.causal(3)), "first")
    assert found.to_dense().tolist() == [[0, 0], [0.5, 0.5]]
    assert found.total_mass.tolist() == [0, 1]
    assert found.share_kept == 1


def test_the_sink_outside_goes_too():
    head = causal(5, 1)
    matrix = head.to_dense() * 0.3
    sunk = AttentionGraph.from_dense(matrix, TokenGraph.causal(5), sink=np.full(5, 0.7))
    found = without_tokens(sunk, [])
    assert found.sink is None
    np.testing.assert_allclose(found.to_dense(), head.to_dense(), atol=1e-14)


@pytest.mark.parametrize("keep", [TopK(2), TopMass(0.8), gattn.Threshold(0.1)])
def test_attention_of_kept_edges_is_at_least_what_is_given(keep):
    for seed in range(10):
        head = causal(8, seed)
        found = without_tokens(head.keep(keep), [0, 3])
        whole = cut(head.to_dense(), [1, 2, 4, 5, 6, 7])
        given = found.to_dense()
        assert (given <= whole + 1e-12).all()
        assert (found.dropped_edges >= 0).all()
        rows = found.total_mass > 0
        assert (whole - given <= (1 - found.kept_mass)[:, None] + 1e-12)[rows].all()


def test_lengths_are_scaled_and_scores_stay():
    head = causal(5, 2)
    head = dataclasses.replace(head, score=np.log(head.attention), contribution=3 * head.attention)
    found = without_tokens(head, "first")
    np.testing.assert_allclose(found.contribution, 3 * found.attention)
    matrix = np.full((5, 5), -np.inf)
    matrix[head.query, head.key] = head.score
    again = torch.from_numpy(matrix[1:, 1:]).softmax(-1)
    np.testing.assert_allclose(found.to_dense(), again, atol=1e-14)
    np.testing.assert_array_equal(found.score, matrix[1:, 1:][found.query, found.key])


def test_cross_attention_loses_keys_alone():
    matrix = np.array([[0.5, 0.3, 0.2], [0.0, 0.1, 0.9]])
    names = {"tokens": ["a", "b", "c"], "query_tokens": ["x", "y"], "words": (None, 0, 1)}
    head = AttentionGraph.from_dense(matrix, TokenGraph.bipartite(2, 3), **names)
    for which in ("special", "first", ["a"]):
        found = without_tokens(head, which)
        np.testing.assert_allclose(found.to_dense(), [[0.6, 0.4], [0.1, 0.9]])
        assert (found.tokens, found.query_tokens) == (("b", "c"), ("x", "y"))


def test_traces_stacks_and_arrays():
    heads = {(0, h): causal(5, h) for h in range(2)}
    trace = AttentionTrace({"decoder": Stack("decoder", heads)}, "m", generated=2)
    found = without_tokens(trace, [0, 4])
    assert isinstance(found, AttentionTrace)
    assert (found.generated, found.model, found.tokens) == (1, "m", ["t1", "t2", "t3"])
    stack = without_tokens(trace.only_stack, [0, 4])
    arrays = without_tokens(np.stack([head.to_dense() for head in heads.values()]), [0, 4])
    assert isinstance(stack, Stack) and isinstance(arrays, Stack)  # noqa: PT018
    for place, head in heads.items():
        expected = cut(head.to_dense(), [1, 2, 3])
        for some in (found["decoder"], stack, arrays):
            np.testing.assert_allclose(some[place].to_dense(), expected, atol=1e-15)


def test_padding_of_arrays_is_cut():
    real = causal(4, 3).to_dense()
    padded = np.full((6, 6), 1 / 6)
    padded[:4, :4], padded[:4, 4:] = real * 0.8, 0.1
    found = without_tokens(padded, [4, 5])
    np.testing.assert_allclose(found[0, 0].to_dense(), real, atol=1e-14)


def test_special_tokens_of_the_embedded_model(embedded):
    trace = gattn.capture(TEXTS[0], *embedded)
    found = without_tokens(trace, "special")
    assert found.tokens == trace.tokens[1:]
    assert found.logits is None
    for place, head in trace.only_stack.items():
        stays = list(range(1, len(trace.tokens)))
        np.testing.assert_allclose(found[place].to_dense(), cut(head.to_dense(), stays), rtol=1e-5)
    before, after = head_table(trace), head_table(found)
    assert (after.first_token == 0).all() and (after.special_tokens == 0).all()  # noqa: PT018
    assert before.first_token.max() > 0.8


def test_tokens_that_are_not_there_are_refused(embedded):
    head = causal(4, 0)
    with pytest.raises(SelectionError, match="not known which tokens are special"):
        without_tokens(head, "special")
    with pytest.raises(SelectionError, match=r"token must be .* here 0 \.\. 3"):
        without_tokens(head, [4])
    with pytest.raises(SelectionError, match="'special', 'first', or positions"):
        without_tokens(head, "padding")
    two = AttentionTrace({name: Stack(name, {(0, 0): head}) for name in ("encoder", "decoder")})
    with pytest.raises(SelectionError, match="name one"):
        without_tokens(two, [1])
    assert len(without_tokens(two, "first")) == 2
    assert not math.isnan(without_tokens(two, "first")["encoder"][0, 0].share_kept)


def test_leaving_out_tokens_is_told_and_leaves_some():
    trace = gattn.capture("The dog chased the cat")
    assert without_tokens(trace, "special")[0, 0].kept_by == (All(), Without("special"))
    assert without_tokens(trace, [0, 3])[0, 0].kept_by == (All(), Without(2))
    assert without_tokens(trace, [3])[0, 0].kept_by == (All(), Without(1))
    assert without_tokens(trace, "first")[0, 0].kept_by == (All(), Without("first"))
    with pytest.raises(SelectionError, match="none of 6 are left"):
        without_tokens(trace, range(6))
