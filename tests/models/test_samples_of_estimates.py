"""What estimates are checked with: exact effects of samples and of sets; and their tables."""

import numpy as np
import pytest
from effects_by_hand import (
    IDS,
    PLACE,
    TOKENS,
    cutting,
    cutting_together,
    dense_logits,
    difference,
    double,
    estimates,
)
from scipy import stats

import gattn
from gattn import Cut, TopK
from gattn.errors import ContractError, EditError, SelectionError
from gattn.models.effects.sampling import _correlations


@pytest.fixture(scope="module")
def llama(tiny):
    return tiny("llama")


@pytest.mark.parametrize("renormalize", [True, False])
def test_the_largest_estimates_are_cut_together(tiny, renormalize):
    model = double(tiny, "llama")
    found = estimates(model, sample=5, renormalize=renormalize)
    order = np.argsort(-found["estimate"].abs().to_numpy(), kind="stable")
    plain = difference(dense_logits(model, {"input_ids": IDS}))
    far = []
    for share, told in zip((0.01, 0.05, 0.2), found.attrs["sets"], strict=True):
        some = found.iloc[order[: max(round(share * len(found)), 1)]]
        cuts = [(*row, renormalize) for row in some[PLACE].itertuples(index=False)]
        effect = difference(dense_logits(model, {"input_ids": IDS}, cutting_together(cuts))) - plain
        assert told["share"] == share
        assert told["edges"] == len(cuts)
        assert told["effect"] == pytest.approx(effect, abs=1e-9)
        assert told["estimate"] == pytest.approx(some["estimate"].sum(), abs=1e-12)
        if abs(told["estimate"] - effect) > 0.2 * abs(effect):
            says = f"{effect:.3g}, not {told['estimate']:.3g}".replace("-", "−")
            what = f"the largest {100 * share:.0f} % of all {len(found):,} edges"
            far = [f"{what} changes the metric by {says}"]
    assert [note.rpartition("cutting ")[2] for note in found.attrs["notes"]] == far
    assert abs(effect) > 1e-3


def test_a_sample_is_of_the_cut_that_was_asked_for(tiny):
    model = double(tiny, "llama")
    found = estimates(model, sample=10, renormalize=False)
    assert found["effect"].notna().sum() == 10
    for place in found[found["sampled"]].to_dict("records"):
        cut = (*(place[name] for name in PLACE), False)
        edited = difference(dense_logits(model, {"input_ids": IDS}, cutting(cut)))
        plain = difference(dense_logits(model, {"input_ids": IDS}))
        assert place["effect"] == pytest.approx(edited - plain, abs=1e-9)


def test_a_sample_has_its_exact_effects(tiny):
    model = double(tiny, "llama")
    found = estimates(model, sample=30, seed=3)
    sampled = found[found["sampled"]]
    assert len(sampled) == 30
    for place in found[found["effect"].notna()].to_dict("records"):
        cut = (*(place[name] for name in PLACE), True)
        edited = difference(dense_logits(model, {"input_ids": IDS}, cutting(cut)))
        plain = difference(dense_logits(model, {"input_ids": IDS}))
        assert place["effect"] == pytest.approx(edited - plain, abs=1e-9)
    pairs = sampled["estimate"], sampled["effect"]
    assert found.attrs["correlation"] == pytest.approx(stats.pearsonr(*pairs).statistic)
    assert found.attrs["rank_correlation"] == pytest.approx(stats.spearmanr(*pairs).statistic)
    sizes = stats.spearmanr(*map(np.abs, pairs)).statistic
    assert found.attrs["size_correlation"] == pytest.approx(sizes)
    assert sizes != pytest.approx(found.attrs["rank_correlation"])
    only = (found["query"] == 0) & (found["key"] == 0)
    assert (found["effect"].notna() == found["sampled"] | only).all()
    assert found["effect"].notna().sum() > 30
    pd_testing_equal(estimates(model, sample=30, seed=3), found)
    other = estimates(model, sample=30, seed=4)
    assert (other["sampled"] != found["sampled"]).any()


def pd_testing_equal(one, other):
    assert one.equals(other)
    assert one.attrs == other.attrs


def test_estimates_of_faint_edges_come_near_their_effects(tiny):
    found = estimates(double(tiny, "llama"), sample=10_000)
    faint = found[(found["attention"] < 1e-2) & (found["estimate"].abs() > 1e-5)]
    assert found["sampled"].all()
    assert len(faint) > 10
    assert stats.pearsonr(faint["estimate"], faint["effect"]).statistic > 0.999


def test_large_estimates_are_drawn(tiny):
    model = double(tiny, "llama")
    ranks = []
    for seed in range(12):
        found = estimates(model, sample=4, seed=seed)
        sizes = found["estimate"].abs().rank(pct=True)
        ranks += sizes[found["sampled"]].tolist()
    # Half of the draws are even, with a mean rank of one half.
    assert 0.6 < np.mean(ranks) < 0.9
    assert min(ranks) < 0.25


def test_a_table_names_its_edges(tokenizer, tiny):
    model = tiny("llama")
    text = "the dog chased the cat"
    found = gattn.estimate(text, model, tokenizer, **TOKENS, sample=0, keep=TopK(2), layers=[1])
    trace = gattn.capture(text, model, tokenizer, keep=TopK(2), layers=[1])
    assert list(found) == [
        *("stack", "layer", "head", "query", "key", "query_token", "key_token"),
        *("attention", "estimate", "effect", "sampled"),
    ]
    for (layer, head), graph in trace.stacks["decoder"].items():
        rows = found[(found["layer"] == layer) & (found["head"] == head)]
        np.testing.assert_array_equal(rows["query"], graph.query)
        np.testing.assert_array_equal(rows["key"], graph.key)
        np.testing.assert_array_equal(rows["attention"], graph.attention)
        assert rows["key_token"].tolist() == [graph.tokens[key] for key in graph.key]
        assert rows["query_token"].tolist() == [graph.tokens[query] for query in graph.query]
    assert len(found) == sum(graph.graph.num_edges for graph in trace.heads())
    assert found.attrs["notes"] == [
        "no effect was measured; that of many edges together is not the sum of estimates"
    ]
    assert found["effect"].isna().all()
    assert np.isnan(found.attrs["correlation"])


def test_a_function_of_the_logits_is_estimated(tiny):
    model = double(tiny, "llama")
    expected = estimates(model)

    def metric(logits):
        return logits[-1, 7] - logits[-1, 11]

    options = {"metric": metric, "target": None, "other": None}
    found = estimates(model, **options)
    np.testing.assert_allclose(found["estimate"], expected["estimate"])
    with pytest.raises(ContractError, match="without a gradient"):
        estimates(model, **options | {"metric": lambda logits: logits[-1, 7].item()})


def test_what_cannot_be_estimated_is_refused(llama):
    with pytest.raises(SelectionError, match=r"second order.*leave out steps"):
        estimates(llama, metric="kl", target=None, other=None, steps=2)
    with pytest.raises(SelectionError, match="steps must be a whole number"):
        estimates(llama, steps=0)
    with pytest.raises(SelectionError, match="pass other="):
        estimates(llama, metric="logit_difference", other=None)
    with pytest.raises(SelectionError, match="sample"):
        estimates(llama, sample=-1)
    with pytest.raises(SelectionError, match="head 4"):
        estimates(llama, heads=[4])
    with pytest.raises(SelectionError, match="layer 2"):
        estimates(llama, layers=[2])
    with gattn.edited(llama, Cut(layer=0)), pytest.raises(EditError, match="is edited"):
        estimates(llama)


def test_layers_in_front_of_an_edited_one_are_estimated(tiny):
    model = double(tiny, "llama")
    cut = ("decoder", 0, 1, 5, 5, True)
    with gattn.edited(model, Cut(*cut[1:5])):
        found = estimates(model, layers=[1], sample=4)
    plain = difference(dense_logits(model, {"input_ids": IDS}, cutting(cut)))
    for place in found[found["sampled"]].to_dict("records"):
        both = cutting(cut, (*(place[name] for name in PLACE), True))
        edited = difference(dense_logits(model, {"input_ids": IDS}, both))
        assert place["effect"] == pytest.approx(edited - plain, abs=1e-9)


def test_correlations_with_signs_are_told_where_all_sizes_are_the_same():
    found = _correlations(np.array([1.0, -1.0, 1.0]), np.array([2.0, -2.0, 2.0]))
    assert found["correlation"] == pytest.approx(1)
    assert found["rank_correlation"] == pytest.approx(1)
    assert np.isnan(found["size_correlation"])
