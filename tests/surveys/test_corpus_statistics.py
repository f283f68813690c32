"""Means over a corpus and their bootstrapped intervals."""

import tracemalloc

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import gattn
from gattn.errors import SelectionError, ShapeError
from gattn.surveys.ask import resampling, statistics
from gattn.surveys.ask.statistics import HeadStatistics, head_statistics

HOSTILE = "in\x00duct\u202eion\n'\"; DROP TABLE heads; -- $x_1$"


def rows(values, score="induction", stack="decoder"):
    """One row per text and head of layer 0, from an array (texts, heads)."""
    texts, heads = np.indices(np.shape(values))
    return pd.DataFrame(
        {
            "text_id": texts.ravel(),
            "stack": stack,
            "layer": 0,
            "head": heads.ravel(),
            score: np.ravel(values),
        }
    )


def skewed(texts, heads, seed=0):
    return np.random.default_rng(seed).lognormal(0, 1, (texts, heads))


def with_gaps(values, share=0.2, seed=1):
    gaps = np.random.default_rng(seed).random(values.shape) < share
    return np.where(gaps, np.nan, values)


def bca_by_hand(values, confidence, resamples, seed):
    """Efron's interval of one head, a resample and a text left out at a time."""
    random = np.random.default_rng(seed)
    drawn = [random.integers(len(values), size=len(values)) for _ in range(resamples)]
    found = np.array([np.nanmean(values[some]) for some in drawn])
    middle = np.nanmean(values)
    bias = stats.norm.ppf(np.mean(found < middle))
    known = values[~np.isnan(values)]
    left = np.array([np.delete(known, i).mean() for i in range(len(known))])
    away = left.mean() - left
    skew = (away**3).sum() / (6 * (away**2).sum() ** 1.5)
    ends = []
    for tail in ((1 - confidence) / 2, (1 + confidence) / 2):
        reach = bias + stats.norm.ppf(tail)
        ends.append(np.percentile(found, 100 * stats.norm.cdf(bias + reach / (1 - skew * reach))))
    return ends


def test_each_row_is_the_mean_and_spread_of_the_texts_that_have_the_score():
    values = with_gaps(skewed(30, 4))
    found = head_statistics(rows(values), "induction")
    assert found.index.names == ["stack", "layer", "head"]
    assert found.index.tolist() == [("decoder", 0, head) for head in range(4)]
    np.testing.assert_allclose(found["mean"], np.nanmean(values, 0))
    np.testing.assert_allclose(found["spread"], np.nanstd(values, 0, ddof=1))
    assert found["texts"].tolist() == (~np.isnan(values)).sum(0).tolist()
    assert len(set(found["texts"])) > 1
    assert (found["low"] < found["mean"]).all()
    assert (found["mean"] < found["high"]).all()
    assert isinstance(found, HeadStatistics)
    assert isinstance(found.head(2), HeadStatistics)
    assert found.computed_from == "30 texts"
    assert found.notes == ["mean over texts, with its 95 % interval"]


@pytest.mark.parametrize("confidence", [0.5, 0.95])
def test_the_interval_is_efrons_computed_by_hand(confidence):
    values = np.column_stack([skewed(25, 1), with_gaps(skewed(25, 2, seed=3)), -skewed(25, 1)])
    found = head_statistics(rows(values), "induction", confidence=confidence, resamples=300, seed=5)
    expected = [bca_by_hand(column, confidence, 300, 5) for column in values.T]
    np.testing.assert_allclose(found[["low", "high"]], expected, rtol=1e-10)


def test_the_interval_is_scipys_within_what_chance_does():
    values = with_gaps(skewed(80, 3))
    found = head_statistics(rows(values), "induction", resamples=20_000)
    for column, row in zip(values.T, found.itertuples(), strict=True):
        known = column[~np.isnan(column)]
        theirs = stats.bootstrap(
            (known,), np.mean, n_resamples=20_000, random_state=1, batch=1000, method="BCa"
        )
        low, high = theirs.confidence_interval
        within = 0.1 * theirs.standard_error
        assert abs(row.low - low) < within
        assert abs(row.high - high) < within


@pytest.mark.parametrize(("confidence", "least", "most"), [(0.9, 0.87, 0.93), (0.5, 0.45, 0.55)])
def test_intervals_hold_the_true_mean_as_often_as_they_say(confidence, least, most):
    values = np.random.default_rng(7).gamma(3, 1, (60, 1500))
    found = head_statistics(rows(values), "induction", confidence=confidence, resamples=500)
    covered = ((found["low"] <= 3) & (found["high"] >= 3)).mean()
    assert least < covered < most


def test_heads_share_resamples_so_that_one_head_does_not_move_another():
    values = skewed(40, 3)
    together = head_statistics(rows(values), "induction", resamples=200)
    alone = head_statistics(rows(values[:, :1]), "induction", resamples=200)
    np.testing.assert_allclose(together.iloc[0], alone.iloc[0], rtol=1e-12)
    doubled = head_statistics(rows(np.tile(values[:, :1], 2)), "induction", resamples=200)
    assert doubled["low"].nunique() == 1


def test_the_seed_decides_and_the_order_of_rows_does_not():
    table = rows(with_gaps(skewed(40, 3)))
    one = head_statistics(table, "induction", resamples=200)
    pd.testing.assert_frame_equal(
        one, head_statistics(table.sample(frac=1, random_state=0), "induction", resamples=200)
    )
    other = head_statistics(table, "induction", resamples=200, seed=1)
    assert (one["low"] != other["low"]).all()


def test_a_single_text_has_a_mean_and_no_interval():
    (row,) = head_statistics(rows([[0.25]]), "induction").to_dict("records")
    assert (row["mean"], row["texts"]) == (0.25, 1)
    assert np.isnan([row["spread"], row["low"], row["high"]]).all()


def test_the_interval_of_two_texts_ends_at_them():
    (row,) = head_statistics(rows([[0.1], [0.4]]), "induction").to_dict("records")
    np.testing.assert_allclose([row["low"], row["mean"], row["high"]], [0.1, 0.25, 0.4])


def test_a_constant_score_is_a_point():
    found = head_statistics(rows(np.full((7, 1), 0.1)), "induction")
    assert found[["mean", "spread", "low", "high"]].iloc[0].tolist() == [0.1, 0, 0.1, 0.1]


def test_a_score_that_no_text_has_is_nan_and_leaves_the_others_alone():
    values = skewed(20, 2)
    values[:, 0] = np.nan
    found = head_statistics(rows(values), "induction", resamples=200)
    assert found.iloc[0].isna().tolist() == [True] * 4 + [False]
    assert found["texts"].tolist() == [0, 20]
    assert found.iloc[1].notna().all()


def test_resamples_without_any_text_of_a_head_do_not_count():
    values = skewed(40, 2)
    values[2:, 0] = np.nan
    found = head_statistics(rows(values), "induction", resamples=500).iloc[0]
    np.testing.assert_allclose([found["low"], found["high"]], np.sort(values[:2, 0]))


def test_no_rows_give_no_rows():
    found = head_statistics(rows(np.empty((0, 1))), "induction")
    assert found.columns.tolist() == ["mean", "spread", "low", "high", "texts"]
    assert len(found) == 0


def test_infinite_scores_are_left_out_and_said():
    values = skewed(10, 1)
    expected = head_statistics(rows(values[1:]), "induction")["mean"]
    values[0] = np.inf
    found = head_statistics(rows(values), "induction")
    np.testing.assert_allclose(found["mean"], expected)
    assert found.notes[1] == "infinite scores left out: 1"


def test_head_tables_of_texts_one_below_the_other_are_taken_as_they_are():
    texts = ["The dog chased the cat", "A walk in the green river"]
    tables = [gattn.analysis.head_table(gattn.capture(text)) for text in texts]
    heads = pd.concat([table.assign(text_id=n) for n, table in enumerate(tables)])
    found = head_statistics(heads, "entropy")
    expected = (tables[0]["entropy"] + tables[1]["entropy"]) / 2
    np.testing.assert_allclose(found["mean"], expected)
    assert found.index.equals(expected.index)


@pytest.mark.parametrize("kind", ["category", "string", "object"])
def test_stacks_of_any_type_are_sorted_by_name(kind):
    table = pd.concat([rows([[1.0], [2.0]], stack=name) for name in ("encoder", "cross")])
    stack = table["stack"].astype(kind)
    if kind == "category":
        stack = stack.cat.set_categories(["encoder", "decoder", "cross"])
    table.loc[table["stack"] == "cross", "induction"] += 10
    found = head_statistics(table.assign(stack=stack), "induction")
    assert found["mean"].to_dict() == {("cross", 0, 0): 11.5, ("encoder", 0, 0): 1.5}


@pytest.mark.parametrize("kind", ["Float64", "float32", "Int64", "double[pyarrow]"])
def test_numbers_of_any_type_count_and_missing_ones_do_not(kind):
    table = rows([[1.0], [2.0], [6.0]])
    table["induction"] = table["induction"].astype(kind)
    if kind != "float32":
        table.loc[2, "induction"] = pd.NA
    found = head_statistics(table, "induction").iloc[0]
    expected = (3.0, 3) if kind == "float32" else (1.5, 2)
    assert (found["mean"], found["texts"]) == expected


def test_a_score_may_have_any_name():
    found = head_statistics(rows(skewed(5, 1), score=HOSTILE), HOSTILE)
    assert found.attrs["name"] == HOSTILE
    with pytest.raises(SelectionError, match="DROP TABLE"):
        head_statistics(rows(skewed(5, 1), score=HOSTILE), "induction")


def test_a_table_is_read_in_pieces(monkeypatch):
    table = pd.concat([rows(skewed(9, 3), stack=name) for name in ("encoder", "cross")])
    whole = head_statistics(table, "induction", resamples=100)
    monkeypatch.setattr(statistics, "_ROWS", 5)
    pieces = head_statistics(table, "induction", resamples=100)
    pd.testing.assert_frame_equal(pieces, whole)
    expected = [(stack, 0, head) for stack in ("encoder", "cross") for head in range(3)]
    assert list(pieces.index) == expected


@pytest.mark.parametrize("score", ["layer", "text_id", "missing"])
def test_what_is_no_score_is_refused_with_the_columns_there_are(score):
    with pytest.raises(SelectionError, match=f"'{score}'.*'induction'"):
        head_statistics(rows(skewed(3, 1)), score)


def test_tables_without_text_id_or_with_words_are_refused():
    table = rows(skewed(3, 1))
    with pytest.raises(SelectionError, match="text_id"):
        head_statistics(table.drop(columns="text_id"), "induction")
    with pytest.raises(SelectionError, match="choose a column of numbers"):
        head_statistics(table.assign(label="previous token"), "label")


def test_a_text_that_has_a_head_twice_is_refused():
    table = rows(skewed(3, 2))
    with pytest.raises(SelectionError, match=r"'text_id': 2, .*'head': 1"):
        head_statistics(pd.concat([table, table.tail(1)]), "induction")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"confidence": 95}, "between 0 and 1"),
        ({"confidence": 1.0}, "between 0 and 1"),
        ({"resamples": 10}, "100 resamples"),
    ],
)
def test_impossible_intervals_are_refused(options, says):
    with pytest.raises(ShapeError, match=says):
        head_statistics(rows(skewed(3, 1)), "induction", **options)


def test_resamples_come_in_blocks_of_bounded_memory(monkeypatch):
    values = with_gaps(skewed(2000, 5))
    options = {"confidence": 0.95, "resamples": 501, "seed": 0}
    whole = resampling.mean_intervals(values, **options)
    monkeypatch.setattr(resampling, "_WEIGHTS", 20_000)
    tracemalloc.start()
    try:
        blocks = resampling.mean_intervals(values, **options)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    np.testing.assert_allclose(blocks, whole, rtol=1e-12)
    assert peak < 8 * values.size * 8 < 2000 * 501 * 8 / 4
