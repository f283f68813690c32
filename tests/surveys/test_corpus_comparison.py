"""Two surveys of the same texts, compared head by head."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from gattn.errors import SelectionError
from gattn.surveys.ask.comparison import HeadComparison, compare_heads
from gattn.surveys.ask.statistics import head_statistics

SCORE = "induction"


def rows(values, first=0):
    """One row per text and head of layer 2, from an array (texts, heads)."""
    texts, heads = np.indices(np.shape(values))
    return pd.DataFrame(
        {
            "text_id": texts.ravel() + first,
            "stack": "decoder",
            "layer": 2,
            "head": heads.ravel(),
            SCORE: np.ravel(values),
        }
    )


@pytest.fixture
def runs():
    """Scores of 60 texts and 5 heads before and after: the last head does not change."""
    random = np.random.default_rng(0)
    before = random.random((60, 5))
    after = before + random.normal([0.3, 0.05, 0, -0.02, 0], 0.1, (60, 5))
    after[:, 4] = before[:, 4]
    before[::7, 1] = after[::11, 1] = np.nan
    return before, after


def rejected_by_holm(p, alpha):
    """Holm's procedure as he gives it: step down from the smallest p until one is too large."""
    rejected, left = set(), len(p)
    for head in sorted(range(len(p)), key=p.__getitem__):
        if p[head] > alpha / left:
            break
        rejected.add(head)
        left -= 1
    return rejected


@pytest.mark.parametrize(
    ("test", "oracle"),
    [
        ("wilcoxon", lambda one, other: stats.wilcoxon(other, one).pvalue),
        ("t", lambda one, other: stats.ttest_rel(other, one).pvalue),
    ],
)
def test_each_head_is_tested_as_scipy_does_on_the_texts_of_both(runs, test, oracle):
    before, after = runs
    shuffled = rows(after).sample(frac=1, random_state=0)
    found = compare_heads(rows(before), shuffled, SCORE, test=test)
    assert isinstance(found, HeadComparison)
    for head, row in enumerate(found.itertuples()):
        both = ~np.isnan(before[:, head] + after[:, head])
        one, other = before[both, head], after[both, head]
        assert row.texts == both.sum()
        expected = 1 if head == 4 else oracle(one, other)
        np.testing.assert_allclose(row.p, expected, rtol=1e-9)
        means = one.mean(), other.mean(), (other - one).mean()
        np.testing.assert_allclose((row.before, row.after, row.difference), means, atol=1e-15)
        if head < 4:
            effect = (other - one).mean() / (other - one).std(ddof=1)
            np.testing.assert_allclose(row.effect_size, effect)
    assert found["texts"].tolist() == [60, 46, 60, 60, 60]


def test_the_interval_is_that_of_the_mean_of_the_differences(runs):
    before, after = runs
    found = compare_heads(rows(before), rows(after), SCORE, resamples=300, seed=3)
    alone = head_statistics(rows(after - before), SCORE, resamples=300, seed=3)
    np.testing.assert_array_equal(found[["low", "high"]], alone[["low", "high"]])
    turned = compare_heads(rows(after), rows(before), SCORE, resamples=300, seed=3)
    np.testing.assert_allclose(turned["difference"], -found["difference"])


def test_a_head_that_changed_nowhere_differs_by_nothing_and_p_is_1(runs):
    for test in ("wilcoxon", "t"):
        found = compare_heads(rows(runs[0]), rows(runs[0]), SCORE, test=test, correction="fdr")
        assert (found[["p", "p_corrected"]] == 1).all(axis=None)
        assert (found[["difference", "low", "high", "effect_size"]] == 0).all(axis=None)


def test_a_change_that_is_the_same_in_all_texts_is_a_point_of_infinite_effect():
    before = np.arange(12.0)[:, None]
    found = compare_heads(rows(before), rows(before + 2), SCORE, test="t").iloc[0]
    assert found[["difference", "low", "high"]].tolist() == [2, 2, 2]
    assert (found["effect_size"], found["p"]) == (np.inf, 0)
    down = compare_heads(rows(before), rows(before - 2), SCORE).iloc[0]
    assert down["effect_size"] == -np.inf
    assert down["p"] == pytest.approx(2 / 2**12)


def test_texts_that_change_alike_but_for_rounding_have_an_infinite_effect():
    before = np.random.default_rng(0).random((40, 1))
    after = before + 0.3
    assert len(np.unique(after - before)) > 1
    assert compare_heads(rows(before), rows(after), SCORE).iloc[0]["effect_size"] == np.inf


def test_a_head_that_differs_in_one_text_alone_of_many_is_no_finding():
    before = np.zeros((70, 1))
    after = before.copy()
    after[0] = 1
    assert compare_heads(rows(before), rows(after), SCORE).iloc[0]["p"] > 0.3


def test_holms_correction_rejects_what_his_procedure_rejects(runs):
    random = np.random.default_rng(2)
    before = random.random((25, 12))
    after = before + random.normal(np.linspace(0, 0.25, 12), 0.2, before.shape)
    found = compare_heads(rows(before), rows(after), SCORE)
    p, corrected = found["p"].to_numpy(), found["p_corrected"].to_numpy()
    sizes = set()
    for alpha in [0.001, 0.01, 0.05, 0.1, 0.3, 0.6, 0.99]:
        rejected = rejected_by_holm(p, alpha)
        assert rejected == set(np.flatnonzero(corrected <= alpha))
        sizes.add(len(rejected))
    assert len(sizes) > 3


def test_the_false_discovery_rate_is_that_of_benjamini_and_hochberg(runs):
    found = compare_heads(rows(runs[0]), rows(runs[1]), SCORE, correction="fdr")
    expected = stats.false_discovery_control(found["p"])
    np.testing.assert_allclose(found["p_corrected"], expected)
    holm = compare_heads(rows(runs[0]), rows(runs[1]), SCORE)
    assert (holm["p_corrected"] >= found["p_corrected"]).all()
    assert (holm["p_corrected"] > found["p_corrected"]).any()
    assert holm.notes[1] == "Wilcoxon's signed-rank test, Holm's correction for 5 heads"


@pytest.mark.slow
def test_among_heads_that_differ_by_chance_alone_holm_seldom_finds_any():
    """Signs of differences change at random, text by text: no head differs, heads correlate."""
    random = np.random.default_rng(4)
    change = random.normal(size=(30, 15)) + random.normal(size=(30, 1))
    runs, found, uncorrected = 300, 0, 0
    for _ in range(runs):
        signed = change * random.choice([-1, 1], (30, 1))
        result = compare_heads(
            rows(np.zeros_like(signed)), rows(signed), SCORE, test="t", resamples=100
        )
        found += (result["p_corrected"] < 0.05).any()
        uncorrected += (result["p"] < 0.05).any()
    assert found / runs < 0.05 + 2 * (0.05 * 0.95 / runs) ** 0.5
    assert uncorrected / runs > 0.15


def test_heads_without_two_texts_are_not_tested_and_do_not_count_as_tests(runs):
    before, after = runs
    before[1:, 0] = np.nan
    before[:, 1] = np.nan
    found = compare_heads(rows(before), rows(after), SCORE)
    assert found["p"].isna().tolist() == [True, True, False, False, False]
    assert found["p_corrected"].isna().tolist() == found["p"].isna().tolist()
    alone = compare_heads(rows(before[:, 2:]), rows(after[:, 2:]), SCORE)
    np.testing.assert_array_equal(found["p_corrected"][2:], alone["p_corrected"])
    assert found.notes[1].endswith("for 3 heads")
    assert found["texts"].tolist()[:2] == [1, 0]
    assert found[["before", "after", "difference"]].iloc[1].isna().all()


def test_texts_of_one_survey_alone_are_left_out_and_counted(runs):
    before, after = runs
    found = compare_heads(rows(before[:50]), rows(after[20:], first=20), SCORE, resamples=200)
    expected = compare_heads(
        rows(before[20:50], first=20), rows(after[20:50], first=20), SCORE, resamples=200
    )
    pd.testing.assert_frame_equal(found, expected)
    assert found.computed_from == "after − before, 30 texts"
    assert found.notes[2] == "texts left out: 20 only before, 10 only after"
    assert len(expected.notes) == 2


def test_texts_are_not_paired_by_their_order(runs):
    before, after = runs
    with pytest.raises(SelectionError, match="No text is in both surveys, of 60 and 60"):
        compare_heads(rows(before), rows(after, first=60), SCORE)


def test_other_heads_are_refused_and_named(runs):
    before, after = runs
    with pytest.raises(SelectionError, match=r"only before has decoder 2\.3, decoder 2\.4\."):
        compare_heads(rows(before), rows(after[:, :3]), SCORE)
    many = np.zeros((2, 20))
    with pytest.raises(SelectionError, match=r"only after has .*decoder 2\.12 and 7 more\."):
        compare_heads(rows(before), rows(many), SCORE)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"test": "u\x00"}, "test must be one of 'wilcoxon', 't'"),
        ({"correction": "none"}, "correction must be one of 'holm', 'fdr'"),
    ],
)
def test_unknown_tests_and_corrections_are_refused_with_those_there_are(runs, options, says):
    with pytest.raises(SelectionError, match=says):
        compare_heads(rows(runs[0]), rows(runs[1]), SCORE, **options)
