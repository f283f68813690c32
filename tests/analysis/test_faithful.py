"""Faithfulness of rankings, against models whose attention is dense algebra of our own."""

import io
import re
from itertools import pairwise

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch
import xarray as xr
from dense_models import Dense
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import stats

import gattn
from gattn.analysis import (
    contributions,
    deletion_curve,
    insertion_curve,
    rank_agreement,
    routes,
)
from gattn.analysis.faithfulness.rankings import order
from gattn.errors import SelectionError, ShapeError
from gattn.heads.head import AttentionGraph
from gattn.heads.stack import Stack
from gattn.heads.trace import AttentionTrace

IDS = [5, 17, 42, 17, 8, 33]
QUIET = {"progress": False, "batch_size": 7}
TARGET = {"metric": "probability", "target": 7}
EAGER = dict.fromkeys(["gpt-oss", "gemma2", "bloom"], "eager")


def probability_without(lost, model, inputs, before=True):
    """The probability of token 7 after the text, without some pairs.

    ``lost`` is (layers, heads, queries, keys), layers in the order of calls; they are lost before
    the softmax, or after.
    """

    def fewer(call, scores):
        return scores.masked_fill(lost[call.layer], -torch.inf) if before else scores

    def zeroed(call, attention):
        return attention.masked_fill(lost[call.layer], 0.0)

    logits = Dense().run(model, inputs, fewer, zeroed)
    return float(logits[0, -1].double().softmax(-1)[7])


@pytest.fixture(scope="module")
def llama(tiny):
    return tiny("llama")


def drawn(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def edges_of(trace, stack=None):
    heads = trace.only_stack if stack is None else trace[stack]
    return [
        (head.layer, head.head, query, key)
        for place in sorted(heads)
        for head in [heads[place]]
        for query, key in zip(head.query.tolist(), head.key.tolist(), strict=True)
    ]


def by_hand(model, inputs, edges, shape, counts, *, insert=False, before=True):
    """Run the model without the first edges, or with nothing but them."""
    found = []
    for count in counts:
        lost = torch.zeros(shape, dtype=torch.bool)
        for edge in edges[count:] if insert else edges[:count]:
            lost[edge] = True
        found.append(probability_without(lost, model, inputs, before))
    return found


@pytest.mark.parametrize("name", ["llama", "gpt-oss"])
@pytest.mark.parametrize("renormalize", [True, False])
@pytest.mark.parametrize("insert", [False, True])
def test_edges_are_cut_and_given_back_from_the_top(tiny, name, renormalize, insert):
    model, ranking = tiny(name, EAGER.get(name, "sdpa")), drawn(2, 4, 6, 6)
    found = (insertion_curve if insert else deletion_curve)(
        ranking, IDS, model, **TARGET, steps=6, random=0, renormalize=renormalize, **QUIET
    )
    edges = edges_of(gattn.capture(IDS, model))
    edges.sort(key=lambda edge: -ranking[edge])
    counts = np.rint(np.linspace(0, 1, 7) * len(edges)).astype(int)
    inputs = {"input_ids": torch.tensor([IDS])}
    expected = by_hand(
        model, inputs, edges, ranking.shape, counts, insert=insert, before=renormalize
    )
    np.testing.assert_array_equal(found["count"], counts)
    np.testing.assert_allclose(found.index, np.linspace(0, 1, 7))
    np.testing.assert_allclose(found["ranking"], expected, rtol=1e-4, atol=1e-7)
    assert np.ptp(expected) > 1e-3
    steps = [(a + b) / 2 for a, b in pairwise(expected)]
    assert found.attrs["area"]["ranking"] == pytest.approx(np.mean(steps), rel=1e-3)


@pytest.mark.parametrize("renormalize", [True, False])
@pytest.mark.parametrize("curve", [deletion_curve, insertion_curve])
def test_tokens_are_cut_in_all_layers_and_heads(llama, curve, renormalize):
    ranking = drawn(6)
    found = curve(
        ranking, IDS, llama, **TARGET, steps=6, random=0, renormalize=renormalize, **QUIET
    )
    best, expected = np.argsort(-ranking).tolist(), []
    for count in range(7):
        lost = torch.zeros(2, 4, 6, 6, dtype=torch.bool)
        lost[..., best[:count] if curve is deletion_curve else best[count:]] = True
        inputs = {"input_ids": torch.tensor([IDS])}
        expected.append(probability_without(lost, llama, inputs, renormalize))
    np.testing.assert_allclose(found["ranking"], expected, rtol=1e-4)
    assert found.notes[0] == "6 tokens " + ("cut" if curve is deletion_curve else "restored")


def test_the_ends_are_the_plain_model_and_the_one_without_attention(llama):
    found = deletion_curve(drawn(2, 4, 6, 6), IDS, llama, **TARGET, steps=3, random=4, **QUIET)
    (row,) = gattn.effect(IDS, [gattn.Cut()], llama, **TARGET).itertuples()
    for name in ("ranking", "random", "random_low", "random_high"):
        assert found[name].iloc[0] == pytest.approx(row.plain, rel=1e-5)
        assert found[name].iloc[-1] == pytest.approx(row.edited, rel=1e-5)
    middle = found.iloc[1:-1]
    assert (middle["random_low"] < middle["random"]).all()
    assert (middle["random"] < middle["random_high"]).all()


def test_what_holds_attention_gives_the_same_curve(llama):
    trace = gattn.capture(IDS, llama)
    dense = np.zeros((2, 4, 6, 6))
    for head in trace.heads():
        dense[head.layer, head.head] = head.to_dense()
    table = pd.concat(
        head.to_pandas().assign(layer=head.layer, head=head.head) for head in trace.heads()
    )
    dims = ("layer", "head", "query", "key")
    rankings = {
        "trace": trace,
        "stack": trace.only_stack,
        "array": dense,
        "tensor": torch.tensor(dense),
        "attentions": tuple(torch.tensor(dense[:, None])),
        "labelled": xr.DataArray(dense, dims=dims),
        "cuts": table.assign(effect=-table["attention"].astype(float)),
    }
    found = deletion_curve(rankings, IDS, llama, **TARGET, steps=8, random=0, seed=3, **QUIET)
    # Queries that read a single key rank alike, so orders differ in the first 8 edges.
    later = found[found["count"] > 8]
    for name in rankings:
        np.testing.assert_allclose(later[name], later["trace"], rtol=1e-5)
    assert np.ptp(later["trace"]) > 1e-3


def test_an_array_without_heads_ranks_an_edge_alike_in_all_of_them(llama):
    ranking = xr.DataArray(drawn(2, 6, 6), dims=("layer", "query", "key"))
    found = deletion_curve(ranking, IDS, llama, **TARGET, steps=21 * 2, random=0, **QUIET)
    places = sorted(
        ((n, q, k) for n in range(2) for q in range(6) for k in range(q + 1)),
        key=lambda place: -float(ranking[place]),
    )
    edges = [(n, h, q, k) for n, q, k in places for h in range(4)]
    inputs = {"input_ids": torch.tensor([IDS])}
    expected = by_hand(llama, inputs, edges, (2, 4, 6, 6), found["count"])
    np.testing.assert_allclose(found["ranking"], expected, rtol=1e-4)


def test_a_selected_layer_or_head_and_a_single_head_are_cut_alone(llama):
    trace = gattn.capture(IDS, llama)
    ranking = xr.DataArray(drawn(2, 4, 6, 6), dims=("layer", "head", "query", "key"))
    ranking = ranking.assign_coords(layer=[0, 1], head=range(4))
    last = deletion_curve(ranking.sel(layer=1), IDS, llama, **TARGET, steps=1, random=0, **QUIET)
    one = deletion_curve(trace[1, 2], IDS, llama, **TARGET, steps=1, random=0, **QUIET)
    same = deletion_curve(
        ranking.sel(layer=1, head=2), IDS, llama, **TARGET, steps=1, random=0, **QUIET
    )
    cuts = [gattn.Cut(layer=1), gattn.Cut(layer=1, head=2)]
    expected = gattn.effect(IDS, cuts, llama, **TARGET)["edited"]
    found = [last["ranking"].iloc[-1], one["ranking"].iloc[-1], same["ranking"].iloc[-1]]
    np.testing.assert_allclose(found, expected.to_numpy()[[0, 1, 1]], rtol=1e-5)
    assert last["count"].iloc[-1] == 84
    assert one["count"].iloc[-1] == same["count"].iloc[-1] == 21


def test_edges_that_no_ranking_knows_stay(llama):
    few = gattn.capture(IDS, llama, keep=gattn.TopK(1))
    table = gattn.estimate(IDS, llama, target=7, other=3, keep=gattn.TopK(2), sample=0)
    found = deletion_curve(
        {"few": few, "more": table}, IDS, llama, **TARGET, steps=4, random=0, **QUIET
    )
    assert found["count"].iloc[-1] == len(table) == 2 * 4 * (1 + 5 * 2)
    one = deletion_curve({"few": few}, IDS, llama, **TARGET, steps=1, random=0, **QUIET)
    assert one["count"].iloc[-1] == sum(head.graph.num_edges for head in few.heads()) == 48
    lost = torch.zeros(2, 4, 6, 6, dtype=torch.bool)
    lost[tuple(zip(*edges_of(few), strict=True))] = True
    expected = probability_without(lost, llama, {"input_ids": torch.tensor([IDS])})
    assert one["few"].iloc[-1] == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("stack", ["encoder", "decoder", "cross"])
def test_stacks_are_named(tiny, stack):
    model = tiny("bart")
    inputs = {"input_ids": torch.tensor([IDS]), "decoder_input_ids": torch.tensor([[2, 9, 30]])}
    trace = gattn.capture(inputs, model)
    found = deletion_curve(
        {"trace": trace}, inputs, model, **TARGET, stack=stack, steps=2, random=0, **QUIET
    )
    (row,) = gattn.effect(inputs, [gattn.Cut(stack=stack)], model, **TARGET).itertuples()
    np.testing.assert_allclose(found["trace"].iloc[[0, -1]], [row.plain, row.edited], rtol=1e-4)
    assert found["count"].iloc[-1] == len(edges_of(trace, stack))
    with pytest.raises(SelectionError, match="name one"):
        deletion_curve(trace, inputs, model, **TARGET, **QUIET)


@pytest.mark.parametrize("name", ["gemma2", "bloom"])
def test_windows_softcaps_and_models_that_do_not_route(tiny, name):
    model = tiny(name, EAGER[name])
    edges = edges_of(gattn.capture(IDS, model))
    generator = np.random.default_rng(1)
    chosen = [edges[n] for n in generator.choice(len(edges), 9, replace=False)]
    ranking = np.zeros((2, 4, 6, 6))
    ranking[tuple(zip(*chosen, strict=True))] = 1
    share = 9 / len(edges)
    found = deletion_curve(ranking, IDS, model, **TARGET, steps=[0, share], random=0, **QUIET)
    cuts = [gattn.Cut(*place) for place in chosen]
    (row,) = gattn.effect(IDS, [cuts], model, **TARGET).itertuples()
    np.testing.assert_allclose(found["ranking"], [row.plain, row.edited], rtol=1e-4)


def test_within_edited_the_edited_model_is_studied(llama):
    ranking = drawn(2, 4, 6, 6)
    inputs = {"input_ids": torch.tensor([IDS])}
    with gattn.edited(llama, gattn.Cut(layer=0, head=1, key=0)):
        found = deletion_curve(ranking, IDS, llama, **TARGET, steps=4, random=0, **QUIET)
        edges = edges_of(gattn.capture(IDS, llama))
    assert len(edges) == 2 * 4 * 21 - 6
    edges.sort(key=lambda edge: -ranking[edge])
    first = [(0, 1, query, 0) for query in range(6)]
    expected = by_hand(
        llama, inputs, first + edges, ranking.shape, [6 + count for count in found["count"]]
    )
    np.testing.assert_allclose(found["ranking"], expected, rtol=1e-4)


@pytest.fixture(scope="module")
def planted(tiny):
    """One layer, whose head 2 alone reaches the answer."""
    model = tiny("gpt2", n_layer=1)
    block = model.transformer.h[0]
    with torch.no_grad():
        block.mlp.c_proj.weight.zero_()
        block.attn.c_proj.weight[:16].zero_()
        block.attn.c_proj.weight[24:].zero_()
    return model


def test_only_what_reaches_the_answer_matters(planted):
    trace = gattn.capture(IDS, planted)
    right, wrong = np.zeros((2, 1, 4, 6, 6))
    right[0, 2, 5] = trace[0, 2].to_dense()[5] + 1
    wrong[0, 0] = 1
    shares = [0, 6 / 84, 21 / 84, 78 / 84, 1]
    rankings = {"right": right, "wrong": wrong}
    found = deletion_curve(rankings, IDS, planted, **TARGET, steps=shares, random=0, **QUIET)
    plain, cut = found["right"].iloc[0], found["right"].iloc[-1]
    assert abs(plain - cut) > 1e-3
    np.testing.assert_allclose(found["right"], [plain, cut, cut, cut, cut], rtol=1e-5)
    np.testing.assert_allclose(found["wrong"].iloc[:3], plain, rtol=1e-5)
    given_back = insertion_curve(rankings, IDS, planted, **TARGET, steps=shares, random=0, **QUIET)
    np.testing.assert_allclose(given_back["right"], [cut, plain, plain, plain, plain], rtol=1e-5)


def test_exact_effects_agree_with_themselves(planted):
    edges = edges_of(gattn.capture(IDS, planted))
    cuts = [gattn.Cut(*place) for place in edges]
    effects = gattn.effect(IDS, cuts, planted, **TARGET, progress=False)
    sizes = np.zeros((1, 4, 6, 6))
    sizes[tuple(zip(*edges, strict=True))] = effects["effect"].abs()
    rankings = {"effects": effects, "sizes": sizes, "attention": gattn.capture(IDS, planted)}
    found = rank_agreement(rankings, IDS, planted, **TARGET, sample=500, progress=False)
    known = rank_agreement(rankings, IDS, planted, effects=effects)
    assert (found["number"] == len(edges)).all()
    # Effects that are 0 but for rounding come in another order in other batches.
    assert found.loc["effects", "correlation"] > 0.3
    np.testing.assert_allclose(known.loc[["effects", "sizes"], "correlation"], 1)
    assert known.loc["effects", "signed_correlation"] == pytest.approx(1)
    attention = [rankings["attention"][0, h].to_dense()[q, k] for _, h, q, k in edges]
    expected = stats.spearmanr(attention, effects["effect"].abs())
    row = known.loc["attention"]
    assert row["correlation"] == pytest.approx(expected.statistic)
    assert row["p_value"] == pytest.approx(expected.pvalue)
    signed = stats.spearmanr(attention, -effects["effect"]).statistic
    assert row["signed_correlation"] == pytest.approx(signed)
    assert row["low"] < row["correlation"] < row["high"]


def test_a_sample_is_of_single_cuts(llama):
    ranking = drawn(2, 4, 6, 6)
    found = rank_agreement(
        ranking, IDS, llama, **TARGET, sample=40, seed=5, renormalize=False, progress=False
    )
    edges = edges_of(gattn.capture(IDS, llama))
    some = np.sort(np.random.default_rng(5).choice(len(edges), 40, replace=False))
    cuts = [gattn.Cut(*edges[n], renormalize=False) for n in some]
    effects = gattn.effect(IDS, cuts, llama, **TARGET, progress=False)["effect"]
    values = [ranking[edges[n]] for n in some]
    expected = stats.spearmanr(np.abs(values), effects.abs()).statistic
    assert found["correlation"].item() == pytest.approx(expected, abs=1e-3)
    expected = stats.spearmanr(values, -effects).statistic
    assert found["signed_correlation"].item() == pytest.approx(expected, abs=1e-3)
    assert found["number"].item() == 40
    assert found.notes == ["effects of 40 of 168 edges"]


def test_tokens_agree_with_their_effects(llama):
    cuts = [gattn.Cut(key=token) for token in range(6)]
    effects = gattn.effect(IDS, cuts, llama, metric="kl", progress=False)
    rankings = {"own": effects["effect"].to_numpy(), "reverse": -effects["effect"] + 9}
    for known in (effects, effects.iloc[::-1], None):
        found = rank_agreement(rankings, IDS, llama, effects=known, progress=False)
        np.testing.assert_allclose(found["correlation"], [1, -1], atol=1e-12)
        assert found["signed_correlation"].isna().all()  # A divergence has no sign.
    axis = xr.DataArray(effects["effect"], dims="key", coords={"key": range(6)})
    found = rank_agreement(axis[::-1], IDS, llama, effects=effects)
    assert found["correlation"].item() == pytest.approx(1)


def test_the_interval_covers_the_truth_about_as_often_as_it_says():
    from gattn.analysis.faithfulness.agreement import _interval

    generator = np.random.default_rng(0)
    rho, hits = 0.6, 0
    truth = 6 / np.pi * np.arcsin(rho / 2)  # Spearman's, of a normal distribution
    for _ in range(60):
        x = generator.normal(size=(2, 50))
        low, high = _interval(x[0], rho * x[0] + 0.8 * x[1], generator)
        hits += low < truth < high
    assert 50 <= hits <= 60


@settings(max_examples=50)
@given(hnp.arrays(np.float64, st.integers(1, 30), elements=st.sampled_from([0, 1, 2, np.nan])))
def test_an_order_falls_and_ends_with_what_is_not_ranked(scores):
    found = order(scores, np.arange(len(scores)), np.random.default_rng(0))
    assert sorted(found) == list(range(len(scores)))
    ranked = scores[found]
    known = ranked[~np.isnan(ranked)]
    assert (np.diff(known) <= 0).all()
    assert np.isnan(ranked[len(known) :]).all()


def test_ties_come_in_random_order():
    firsts = {
        int(order(np.ones(9), np.arange(9), np.random.default_rng(seed))[0]) for seed in range(50)
    }
    assert len(firsts) == 9


def test_orders_do_not_depend_on_batches(llama):
    options = TARGET | {"steps": 5, "random": 2, "progress": False}
    ranking = drawn(2, 4, 6, 6)
    one = deletion_curve(ranking, IDS, llama, **options, batch_size=1)
    pd.testing.assert_frame_equal(one, deletion_curve(ranking, IDS, llama, **options), rtol=1e-4)


def test_an_estimate_of_the_time_is_printed_first(llama, capfd, monkeypatch):
    monkeypatch.setattr("gattn.progress._PATIENCE", 0.0)
    deletion_curve(drawn(2, 4, 6, 6), IDS, llama, **TARGET, steps=3, random=1, batch_size=2)
    said = capfd.readouterr().err
    assert re.search(r"effects: 5 x edit, about \d+ s; fewer: steps=, random=", said)
    deletion_curve(drawn(6), IDS, llama, **TARGET, **QUIET)
    assert not capfd.readouterr().err


def test_curves_draw_themselves(llama):
    rankings = {"one": drawn(2, 4, 6, 6), "$a_b$": drawn(2, 4, 6, 6, seed=1)}
    found = insertion_curve(rankings, IDS, llama, **TARGET, steps=3, random=2, **QUIET)
    ax = found.draw()
    names = [text.get_text() for text in ax.get_legend().get_texts()]
    assert names == ["one", "$a_b$", "random orders: mean, range"]
    np.testing.assert_allclose(ax.get_lines()[0].get_ydata(), found["one"])
    assert ax.get_xlabel() == "share of the edges restored"
    assert not ax.get_legend().get_texts()[1].get_parse_math()
    ax.figure.savefig(io.BytesIO())
    assert type(found[["one"]]).__name__ == "Curves"
    with pytest.raises(SelectionError, match="nothing to draw"):
        found[["count"]].draw()
    plt.close("all")


def test_rankings_that_do_not_fit_are_refused(llama):
    edges, tokens = drawn(2, 4, 6, 6), drawn(6)

    def refused(error, match, ranking, **options):
        with pytest.raises(error, match=match):
            deletion_curve(ranking, IDS, llama, **TARGET | QUIET | options)

    refused(SelectionError, "There is no ranking", {})
    refused(SelectionError, "'b' ranks tokens", {"a": edges, "b": tokens})
    refused(SelectionError, "'a' ranks 5 tokens, but the text has 6", {"a": tokens[:5]})
    refused(SelectionError, "of 5 queries and 5 keys", edges[..., :5, :5])
    refused(ShapeError, "without named axes", edges[0])
    refused(ShapeError, "select one layer", xr.DataArray(tokens, dims="query"))
    refused(SelectionError, "another name", {"random": edges})
    refused(SelectionError, "the columns layer", pd.DataFrame({"layer": [0]}))
    refused(SelectionError, "steps is", edges, steps=[0, 2])
    refused(SelectionError, "steps must be", edges, steps=0)
    refused(SelectionError, "random must be", edges, random=-1)
    refused(TypeError, "no option 'metrics': .* metric, position", edges, metrics="kl")
    other = gattn.capture(IDS[:4], llama)
    refused(SelectionError, "of 4 queries and 4 keys", other)
    moved = AttentionTrace({"decoder": Stack("decoder", {(7, 0): gattn.capture(IDS, llama)[0, 0]})})
    refused(SelectionError, "ranks none of the edges", moved)
    refused(SelectionError, "target", edges, target=None)
    with pytest.raises(SelectionError, match="sample must be"):
        rank_agreement(edges, IDS, llama, **TARGET, sample=2)
    effects = gattn.effect(IDS, [gattn.Cut(0, 0, 1, 0)], llama, **TARGET)
    with pytest.raises(SelectionError, match="There are 1 effects"):
        rank_agreement(edges, IDS, llama, effects=effects)
    with pytest.raises(SelectionError, match="effects is a table"):
        rank_agreement(edges, IDS, llama, effects=tokens)


TEXT = "The river tall green lamp river tall green"
OTHER = "A cat sat on the mat and was"
CUT = {"metric": "probability", "target": " lamp", "steps": 3, "random": 0, "progress": False}


def other_rankings():
    trace = gattn.capture(OTHER)
    edges = contributions(OTHER, progress=False)
    routed = routes(OTHER, progress=False)
    row = gattn.analysis.rollout(trace).sel(layer=3, query=8)
    return {
        "trace": trace,
        "stack": trace.only_stack,
        "head": trace[1, 1],
        "array": edges,
        "keys alone": edges.drop_vars("query_token"),
        "routes": routed,
        "edges of routes": routed.attention_edges(),
        "estimate": gattn.estimate(OTHER, sample=0, target=" lamp", other=" river", progress=False),
        "tokens": row,
        "series": pd.Series(row.to_numpy(), index=trace.tokens),
    }


def test_rankings_of_another_text_are_refused():
    assert len(gattn.capture(TEXT).tokens) == len(gattn.capture(OTHER).tokens)
    found = "token 1 is 'A' there, and 'The' in the text"
    for name, ranking in other_rankings().items():
        # The routes pass by the first words.
        first = "token . is '.*' there" if name == "edges of routes" else found
        with pytest.raises(SelectionError, match=f"'{name}' ranks other tokens .*: {first}"):
            deletion_curve({name: ranking}, TEXT, **CUT)
        deletion_curve({name: ranking}, OTHER, **CUT)
    known = gattn.estimate(OTHER, sample=0, target=" lamp", other=" river", progress=False)
    known["effect"] = known["estimate"]
    with pytest.raises(SelectionError, match=f"'effects' ranks other tokens .*: {found}"):
        rank_agreement(gattn.capture(TEXT), TEXT, effects=known)
    longer = gattn.capture("The river tall green lamp river tall green lamp")
    table = longer[1, 1].to_pandas().drop(columns=["query_token", "key_token"])
    table = table.assign(layer=1, head=1, strength=1.0)
    with pytest.raises(SelectionError, match=r"ranks edges of query 9, but the text has 0 \.\. 8"):
        deletion_curve(table, TEXT, **CUT)
    with pytest.raises(SelectionError, match="of 10 queries and 10 keys, but the text has 9 and 9"):
        deletion_curve(routes(TEXT + " lamp", progress=False), TEXT, **CUT)


def test_rankings_that_carry_no_tokens_are_of_any_text():
    trace = gattn.capture(TEXT)
    dense = AttentionGraph.from_dense(trace[1, 1].to_dense(), layer=1, head=1)
    row = gattn.analysis.rollout(np.stack([dense.to_dense()])).isel(layer=-1, query=-1)
    assert list(row["key_token"].to_numpy()[:2]) == ["0", "1"]
    for ranking in (dense, dense.to_pandas().assign(layer=1, head=1, strength=1.0), row):
        deletion_curve(ranking, TEXT, **CUT)


@pytest.mark.parametrize("name", ["positions", "levels", "xarray"])
def test_numbers_of_tokens_go_by_their_index(llama, name):
    values = drawn(6)
    mixed = [3, 0, 5, 1, 4, 2]
    index = pd.Index(mixed)
    if name == "levels":
        index = pd.MultiIndex.from_arrays([list("abcdef"), mixed], names=["letter", "query"])
    ranking = pd.Series(values[mixed], index=index)
    if name == "xarray":
        ranking = xr.DataArray(values[mixed], dims="token", coords={"token": mixed})
    options = TARGET | QUIET | {"steps": 6, "random": 0}
    expected = deletion_curve(values, IDS, llama, **options)["ranking"]
    wrong = deletion_curve(values[mixed], IDS, llama, **options)["ranking"]
    assert np.abs(wrong - expected).max() > 1e-3
    found = deletion_curve(ranking, IDS, llama, **options)["ranking"]
    np.testing.assert_array_equal(found, expected)
    if name == "positions":
        found = deletion_curve(ranking.sort_values(), IDS, llama, **options)["ranking"]
        np.testing.assert_array_equal(found, expected)


def test_edges_go_by_the_labels_of_their_axes(llama):
    dims = ("layer", "head", "query", "key")
    ranking = xr.DataArray(drawn(2, 4, 6, 6), dims=dims, coords={"query": range(6)})
    ranking = ranking.assign_coords(key=range(6), key_token=("key", list(map(str, IDS))))
    mixed = ranking[..., [3, 0, 5, 1, 4, 2], [5, 3, 4, 0, 1, 2]]
    options = TARGET | QUIET | {"steps": 6, "random": 0}
    expected, found = (deletion_curve(one, IDS, llama, **options) for one in (ranking, mixed))
    np.testing.assert_array_equal(found["ranking"], expected["ranking"])
    with pytest.raises(SelectionError, match=r"indexed by 1, 2, 3, 4, \.\.\., which are not"):
        deletion_curve(ranking.assign_coords(key=range(1, 7)), IDS, llama, **options)


def test_an_index_that_does_not_fit_is_refused(llama):
    values = drawn(6)
    levels = pd.MultiIndex.from_arrays([range(6), range(6)], names=["a", "b"])
    for index, message in {
        "other": ([1, 2, 3, 4, 5, 6], "indexed by 1, 2, 3, 4, ..., which are not the positions"),
        "twice": ([0, 1, 2, 3, 4, 4], "are not the positions 0 .. 5"),
        "mixed": ([0, 1, 2, 3, 4, "a"], "are not the positions 0 .. 5"),
        "texts": (list("abcdef"), "token 0 is 'a' there, and '5' in the text"),
        "levels": (levels, "of which none is position, token, query, key"),
    }.values():
        with pytest.raises(SelectionError, match=message):
            deletion_curve(pd.Series(values, index=index), IDS, llama, **TARGET | QUIET)


def test_numbers_that_rank_no_tokens_are_refused(llama):
    values = np.array([True, False] * 3)
    for ranking in (
        values,
        values.tolist(),
        [1.0, 2.0, 3.0, 4.0, 5.0, True],
        torch.tensor(values),
        pd.Series(values),
        pd.Series([True, None] * 3, dtype="boolean"),
        xr.DataArray(values, dims="key"),
    ):
        with pytest.raises(SelectionError, match="holds True and False"):
            deletion_curve(ranking, IDS, llama, **TARGET | QUIET)
    for ranking in (np.array(list("abcdef")), pd.Series(list("abcdef"))):
        with pytest.raises(SelectionError, match="must hold one number per token"):
            deletion_curve(ranking, IDS, llama, **TARGET | QUIET)
    for ranking in ([float("nan")] * 6, pd.Series([None] * 6, dtype="Float64")):
        with pytest.raises(SelectionError, match="ranks none of the tokens"):
            deletion_curve({"a": ranking, "b": drawn(6)}, IDS, llama, **TARGET | QUIET)


def test_effects_that_are_told_twice_are_refused(llama):
    for cuts, ranking, place in (
        ([gattn.Cut(key=n) for n in [0, 1, 2, 1]], drawn(6), "key 1"),
        (
            [gattn.Cut(0, 1, n, 0) for n in [0, 1, 2, 2]],
            drawn(2, 4, 6, 6),
            "layer 0, head 1, query 2, key 0",
        ),
    ):
        effects = gattn.effect(IDS, cuts, llama, **TARGET, progress=False)
        with pytest.raises(SelectionError, match=f"several rows for {place}: keep one"):
            rank_agreement(ranking, IDS, llama, effects=effects)
        once = effects.drop_duplicates(["layer", "head", "query", "key"])
        assert rank_agreement(ranking, IDS, llama, effects=once)["number"].item() == 3


@pytest.mark.parametrize("options", [{"steps": "a"}, {"steps": None}, {"steps": [float("nan")]}])
def test_options_that_are_none_are_refused(llama, options):
    with pytest.raises(SelectionError, match="steps is a number of steps, or shares"):
        deletion_curve(drawn(6), IDS, llama, **TARGET | QUIET | options)
    with pytest.raises(SelectionError, match="seed must be a whole number ≥ 0, not -1"):
        deletion_curve(drawn(6), IDS, llama, **TARGET | QUIET, seed=-1)
    with pytest.raises(SelectionError, match="seed must be a whole number ≥ 0, not 'a'"):
        rank_agreement(drawn(6), IDS, llama, **TARGET, seed="a")


def test_names_that_begin_with_an_underscore_are_in_the_legend(llama):
    rankings = {"_hidden": drawn(6), "$a_1$": -drawn(6)}
    ax = deletion_curve(rankings, IDS, llama, **TARGET, steps=2, random=1, **QUIET).draw()
    texts = ax.get_legend().get_texts()
    names = [text.get_text() for text in texts]
    assert names == ["_hidden", "$a_1$", "random orders: mean, range"]
    inks = [line.get_color() for line in ax.get_legend().get_lines()]
    assert inks == [line.get_color() for line in ax.get_lines()]


def test_routes_rank_edges_by_their_strength():
    text = "The river tall green lamp river tall green"
    found = routes(text)
    table = found.attention_edges()
    for ranking in (found, table):
        one = deletion_curve(ranking, text, metric="probability", target=" lamp", random=0, steps=5)
        assert one["count"].iloc[-1] == len(table)
        best = table.sort_values("strength", ascending=False)
        cuts = [
            [gattn.Cut(row.layer, row.head, row.query, row.key) for row in best[:n].itertuples()]
            for n in one["count"].iloc[1:-1]
        ]
        expected = gattn.effect(text, cuts, metric="probability", target=" lamp")["edited"]
        np.testing.assert_allclose(one["ranking"].iloc[1:-1], expected, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("metric", ["loss", "kl", "probability"])
def test_tables_rank_first_what_the_answer_needs(llama, metric):
    options = {"metric": metric} | ({"target": 7} if metric == "probability" else {})
    table = gattn.estimate(IDS, llama, sample=10_000, progress=False, **options)
    rankings = {
        "estimate": table,
        "effect": table.assign(estimate=table["effect"]),
        "reversed": table.assign(estimate=-table["effect"]),
    }
    curves = deletion_curve(
        rankings, IDS, llama, steps=[0.02, 0.05], random=0, progress=False, **options
    )
    worse = curves if metric != "probability" else -curves
    assert (worse["effect"] > worse["reversed"]).all()
    assert worse["estimate"].iloc[-1] > worse["reversed"].iloc[-1]
    found = rank_agreement({"estimate": table}, IDS, llama, effects=table)
    if metric != "kl":
        assert found["signed_correlation"].item() > 0.5
