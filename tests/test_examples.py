import json
import runpy
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

import gattn

FEW_STEPS = "10"  # of those that train longer as scripts
EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("plot_*.py"))


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """Run every example once in a folder of its own, and keep its variables and pictures."""
    results = {}
    with pytest.MonkeyPatch.context() as patch:
        for path in EXAMPLES:
            folder = tmp_path_factory.mktemp(path.stem)
            patch.chdir(folder)
            plt.switch_backend("agg")
            patch.setattr(sys, "argv", [str(path), FEW_STEPS])
            names = runpy.run_path(str(path))
            plt.close("all")
            results[path.stem.removeprefix("plot_")] = (names, folder)
    return results


def test_every_example_draws_a_picture(ran):
    assert len(ran) == len(EXAMPLES) >= 6
    for name, (_, folder) in ran.items():
        pictures = list(folder.glob("*.png"))
        assert pictures, name
        assert all(picture.stat().st_size > 10_000 for picture in pictures), name


def test_pool_beats_badminton_prints_the_known_numbers(ran):
    names, _ = ran["pool_beats_badminton"]
    x = names["x"]
    known = [[0.31, 0.14, 0.30], [0.14, 0.31, 0.15], [0.30, 0.15, 0.31]]
    np.testing.assert_allclose(names["head"].score.reshape(3, 3), x @ x.T, atol=1e-12)
    np.testing.assert_allclose((x @ x.T).round(2), known)
    known = [[0.38, 0.22, 0.16, 0.14], [0.35, 0.25, 0.17, 0.13], [0.38, 0.22, 0.17, 0.13]]
    np.testing.assert_array_equal(names["output"].round(2), known)


def test_a_model_of_ones_own_needs_the_edges_that_it_reads(ran):
    names, _ = ran["your_own_model"]
    attention, effects = names["trace"][0, 0].to_dense(), names["effects"]["effect"].to_numpy()
    mirrored = np.eye(8)[::-1]
    assert attention[mirrored == 1].min() > 0.9
    assert effects.reshape(8, 8)[mirrored == 1].min() > 0.5
    assert np.abs(effects.reshape(8, 8)[mirrored == 0]).max() < 0.1
    assert (names["said"], names["cut"][2] != "t") == ("retupmoc", True)


def test_a_toy_translation_needs_the_words_that_it_translates(ran):
    names, _ = ran["toy_translation"]
    assert names["said"] == names["translation"]
    assert names["needed"] == ["cat", "red", "sees", "dog", "small"]
    lost = names["lost"].numpy()
    assert np.sort(lost, axis=1)[:, -2].max() < 0.05


def test_queries_of_the_song_are_the_printed_ones(ran):
    names, _ = ran["song_ideas_step_by_step"]
    np.testing.assert_allclose(names["steps"]["q"].loc["List"], [1.01, 0.36, -0.74, -0.09])
    assert (names["steps"].head.kept_mass > 1 - 1e-12).all()


def test_matrices_learn_to_read_the_flagged_token(ran):
    names, _ = ran["learning_queries_and_keys"]
    flag = names["flag"]
    assert names["before"].to_dense()[:, flag].mean() < 0.3
    assert names["after"].to_dense()[:, flag].mean() > 0.8
    assert names["last"] < 0.05 * names["first"]


def test_a_cut_friendship_is_a_club_without_it(ran):
    names, _ = ran["karate_club"]
    both_ways, friends = names["data"].edge_index, names["friends"]
    for network, found in ((names["gat"], names["needs"]), (names["ours"], names["also"])):
        whole = names["likelihood"](network, both_ways)
        assert len(found) == friends.shape[1] == 78
        for friend, effect in zip(friends.T, found.effect, strict=True):
            rest = ~torch.isin(both_ways, friend).all(0)
            assert int(rest.sum()) == 154
            without = names["likelihood"](network, both_ways[:, rest]) - whole
            assert effect == pytest.approx(float(without), abs=1e-5)
    assert names["right"][names["others"]].sum() > 15
    same = names["compared"].corr("spearman")["GATConv"]
    assert abs(same["attention"]) < 0.2
    assert same["GraphAttention"] > 0.2


def test_weight_functions_differ_on_the_same_layer(ran):
    names, _ = ran["five_weight_functions"]
    assert len(names["weights"]) == 5


def test_the_roof_reads_the_roof(ran):
    names, _ = ran["image_attention"]
    assert names["is_red"].sum() == 9
    shares = {name: round(100 * share) for name, share in names["shares"].items()}
    assert shares == {"colour": 100, "place": 77, "rollout": 92}


def test_grouped_heads_are_those_of_the_model_with_each_key_value_head_twice(ran):
    names, _ = ran["grouped_query_heads"]
    model, size = names["model"], names["config"].head_dim
    twice = type(model)(model.config).eval()
    tied = {
        name: weight.unflatten(0, (2, size)).repeat_interleave(2, 0).flatten(0, 1)
        for name, weight in names["weights"].items()
        if "k_proj" in name or "v_proj" in name
    }
    twice.load_state_dict(names["weights"] | tied)
    expected = gattn.capture(names["text"], twice, names["tokenizer"])
    for head in names["after"].heads():
        same = expected[head.layer, head.head]
        np.testing.assert_allclose(head.to_dense(), same.to_dense(), atol=1e-5)
        assert (head.key_value_head, same.key_value_head) == (head.head // 2, None)


def test_shared_keys_cost_the_induction_heads_more_than_the_previous_token_head(ran):
    before, after = (ran["grouped_query_heads"][0][name].summary() for name in ("before", "after"))
    assert list(before["induction"].nlargest(2).index.droplevel("stack")) == [(2, 1), (2, 0)]
    for head in (0, 1):
        place = ("decoder", 2, head)
        assert after.loc[place, "induction"] < before.loc[place, "induction"] / 3
    assert after["previous_token"].max() > 0.8
    assert before["previous_token"].idxmax() == after["previous_token"].idxmax()


def test_a_cut_head_costs_what_zero_columns_of_its_output_projection_cost(ran):
    names, _ = ran["cutting_an_induction_head"]
    layer, head = names["strongest"]
    model, _ = gattn.load_model()
    size = model.config.head_dim
    with torch.no_grad():
        projection = model.model.layers[layer].self_attn.o_proj.weight
        projection[:, head * size : (head + 1) * size] = 0
        logits, tokens = model(input_ids=names["tokens"]).logits, names["tokens"]
    expected = cross_entropy(logits[:, :-1].transpose(1, 2), tokens[:, 1:], reduction="none")
    torch.testing.assert_close(names["cuts"][layer, head], expected, atol=1e-3, rtol=1e-3)


def test_the_repeat_needs_the_induction_edges(ran):
    names, _ = ran["cutting_an_induction_head"]
    table, layer, pair = names["table"], names["layer"], names["pair"]
    assert table.loc["unchanged", "repeat"] < 0.2
    assert table.loc[["both cut", "edges cut"], "repeat"].min() > 7
    assert abs(table.loc["other edges cut", "repeat"] - table.loc["unchanged", "repeat"]) < 0.1
    assert torch.equal(names["edges"][:, names["first"]], names["plain"][:, names["first"]])
    with gattn.edited(names["model"], names["without"](names["followed"])):
        trace = gattn.capture(names["tokens"][0], names["model"], names["tokenizer"])
    for head in pair:
        attention = torch.from_numpy(trace[layer, head].to_dense())
        assert bool((attention[names["query"], names["followed"][0]] == 0).all())
        torch.testing.assert_close(attention.sum(1), torch.ones(len(attention)))


def test_gaussian_attention_is_that_of_a_function_registered_with_transformers(ran):
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, eager_mask

    names, _ = ran["gaussian_attention"]

    def gaussian(module, query, key, value, attention_mask, **options):
        scores = -torch.cdist(query.double(), key.double()).square() / 2
        attention = (scores + attention_mask).softmax(-1)
        return (attention @ value.double()).transpose(1, 2).float(), None

    AttentionInterface.register("gaussian_oracle", gaussian)
    AttentionMaskInterface.register("gaussian_oracle", eager_mask)
    model, _ = gattn.load_model()
    model.set_attn_implementation("gaussian_oracle")
    with torch.no_grad():
        expected = names["loss_of"](model, names["test"]).item()
    assert names["losses"][0] == pytest.approx(expected, abs=1e-3)
    assert expected > np.log(model.config.vocab_size) > names["losses"].iloc[-1]


def test_only_widths_queries_and_keys_learn(ran):
    names, _ = ran["gaussian_attention"]
    learned, (before, _) = names["model"].state_dict(), gattn.load_model()
    changed = {n for n, x in before.state_dict().items() if not torch.equal(x, learned[n])}
    assert changed == {n for n in learned if "q_proj" in n or "k_proj" in n} != set()
    assert all(bool((x != 0.5).all()) for x in names["factors"])


def test_scores_and_attention_are_files_of_their_own(ran):
    names, folder = ran["scores_and_attention"]
    assert (folder / "scores.graphml").is_file()
    assert (names["scores"].attention < 0).any()
    assert np.allclose(names["attention"].to_dense().sum(1), 1)
    json.dumps(names["ranks"])


def test_the_start_is_looked_at_more_than_it_is_taken_from(ran):
    names, _ = ran["contributions"]
    heads, layers = names["heads"].astype(float), names["layers"].astype(float)
    assert heads["start leads"].sum() == 8
    assert heads.loc[(2, [0, 1]), "ratio"].to_numpy() == pytest.approx([1 / 7, 1 / 7], abs=0.01)
    assert heads.loc[(2, 0), "attention"] > 0.75
    assert heads.loc[(2, 0), "taken"] == pytest.approx(0.5, abs=0.02)
    rows = names["attention"][[8, 11], 0], names["taken"][2, 0, [8, 11], 0]
    assert list(names["tokens"][[8, 11]]) == ["the", "the"]
    assert rows[0] == pytest.approx(0.2, abs=0.025)
    assert rows[1].to_numpy() == pytest.approx(0.03, abs=0.006)
    assert heads.loc[(1, 0), "attention"] == pytest.approx(2 / 3, abs=0.02)
    assert heads.loc[[(1, 0), (1, 2)], "ratio"].to_numpy() == pytest.approx([1, 1.9], abs=0.07)
    assert layers["ALTI"].to_numpy() == pytest.approx([0.01, 0.07, 0.01, 0.03], abs=0.005)
    assert layers["attention"].agg(["min", "max"]).round(2).tolist() == [0.08, 0.47]


def test_lengths_of_the_start_are_those_of_the_projected_values(ran):
    names, _ = ran["contributions"]
    model, _ = gattn.load_model()
    inputs = names["tokenizer"](names["text"], return_tensors="pt")
    with torch.no_grad():
        state = model(**inputs, output_hidden_states=True).hidden_states[2][0]
        layer = model.model.layers[2]
        value = layer.self_attn.v_proj(layer.input_layernorm(state))
        size = model.config.head_dim
        groups = model.config.num_attention_heads // model.config.num_key_value_heads
        for head in range(model.config.num_attention_heads):
            own = value.unflatten(1, (-1, size))[:, head // groups]
            weight = layer.self_attn.o_proj.weight[:, head * size : (head + 1) * size]
            expected = (own @ weight.T).norm(dim=1)
            found = names["heads"].loc[(2, head)]
            assert found["start's length"] == pytest.approx(float(expected[0]), rel=1e-3)


def test_the_spectra_of_two_heads_are_those_of_a_path_and_nearly_of_a_star(ran):
    names, _ = ran["spectrum"]
    assert (names["previous"], names["start"]) == ((1, 1), (1, 2))
    known = {"previous": "path", "start": "star"}
    far = {}
    for place, shape in known.items():
        layer, head = names[place]
        found = names["frequencies"].sel(layer=layer, head=head)
        far[shape] = np.abs(found - names[shape]).to_numpy()
    assert far["path"].max() < 0.01
    assert far["star"].mean() < 0.05
    assert (far["star"] < 0.1).sum() >= len(far["star"]) - 5


def test_states_are_alike_along_two_heads_and_unlike_along_those_of_the_start(ran):
    names, _ = ran["spectrum"]
    rougher = names["table"]["smoothness"] - names["chance"]
    assert set(rougher.index[rougher < -0.03]) == {(3, 0), (3, 1)}
    readers = names["scores"].index[names["scores"]["first_token"] > 0.5]
    assert set(rougher.index[rougher > 0.05]) == set(readers) == {(1, 0), (1, 2), (1, 3)}
    states = torch.nn.functional.normalize(names["hidden"][1][0], dim=-1)
    alike = states @ states.T
    others = alike[1:, 1:][~torch.eye(60, dtype=torch.bool)]
    assert alike[0, 1:].mean() < others.mean() - 0.2


def test_attention_alone_loses_what_the_residual_stream_keeps(ran):
    names, _ = ran["spectrum"]
    product = np.eye(61)
    for layer in range(4):
        heads = [names["trace"][layer, head].to_dense() for head in range(4)]
        product = np.mean(heads, 0, dtype=np.float64) @ product
    expected = np.linalg.norm(product - product.mean(0)) / np.linalg.norm(product)
    assert float(names["alone"][-1]) == pytest.approx(expected, abs=1e-6)
    assert float(names["alone"][-1]) == pytest.approx(0.15, abs=0.005)
    assert float(names["mixed"][-1]) == pytest.approx(0.43, abs=0.005)
    assert names["states"]["residual"].min() > 0.84


def test_induction_heads_are_those_that_lose_cycles_where_words_recur(ran):
    names, _ = ran["topology"]
    traces = names["traces"]["twice"]
    scores = sum(trace.summary().loc["decoder", "induction"] for trace in traces) / len(traces)
    assert set(names["found"]) == {(2, 0), (2, 1)} == set(scores.index[scores > 0.5])
    others = names["weak"].drop(index=names["found"])
    assert others.min(axis=None) > 0.8
    components = names["left"]["betti0"].unstack()[0.25]
    assert (components[names["found"]] < 0.34).all()
    assert (components.drop(index=names["found"]) > 0.5).all()


def test_barcodes_and_templates_know_the_head_of_the_previous_token(ran):
    names, _ = ran["topology"]
    lengths = names["twice"].summary()["sum"].droplevel("dimension")
    assert lengths.idxmin() == (1, 1)
    assert lengths[1, 1] < 1
    assert lengths.idxmax() == (0, 0)
    assert lengths[0, 0] > 0.97 * 60
    assert names["distances"]["previous"].idxmin() == (1, 1)
    assert names["distances"]["self"].idxmin() == (0, 0)


def test_routes_lead_to_the_edges_that_a_prediction_needs(ran):
    names, _ = ran["information_flow_routes"]
    plain, along = names["plain"], names["along"]
    assert f"{plain:.2f}" == "0.93"
    assert along[-1] < 0.01
    assert f"{names['by_attention']:.2f}" == "0.44"
    assert f"{names['at_random'].mean():.2f}" == "0.91"
    found, between = names["found"], names["between"]
    top = [tuple(row) for row in between[["layer", "head", "query", "key"]].to_numpy()[:6].tolist()]
    assert {(2, 0, 12, 5), (2, 1, 12, 5), (1, 1, 5, 4), (1, 1, 12, 11)} <= set(top)
    own = found.nodes[0, 12, "residual"]["strength"]
    assert f"{own:.2f}" == "0.37"
    (lamp,) = (path for path in found.paths(8)["path"] if path.count("→") == 2)
    assert lamp == "4 green 0.0,0.1↺ 1.1→ 5 lamp 2.0,2.1→ 12 green"
    tokens = len(found.tokens)
    assert 16 * tokens * (tokens - 1) // 2 == 1248
    assert not set(names["largest"]) & set(names["routed"])


def test_value_zeroing_leaves_out_what_attention_rests_on(ran):
    names, _ = ran["value_zeroing"]
    one, two = names["tables"][1], names["tables"][2]
    effect = "effect of cutting, nats"
    start, lamp, before = "0 <|endoftext|>", "5 lamp", "11 tall"
    shares = two.loc[[lamp, before, start], "attention"]
    assert [f"{x:.2f}" for x in shares] == ["0.29", "0.22", "0.12"]
    assert 0.6 < two.loc[lamp, "value zeroing"] < 0.7
    assert 0.2 < two.loc[before, "value zeroing"] < 0.3
    assert two.loc[start, "value zeroing"] < 0.01
    assert two.loc[start, effect] == pytest.approx(0.001, abs=5e-4)
    assert two.loc[lamp, effect] == pytest.approx(3, abs=0.05)
    assert [f"{one.loc[name, 'value zeroing']:.2f}" for name in (before, start)] == ["0.77", "0.21"]
    assert one.loc[start, effect] == pytest.approx(0.53, abs=0.005)
    assert one.loc[before, effect] == pytest.approx(0.10, abs=0.005)


def test_walkers_go_back_word_by_word_and_end_at_the_start(ran):
    names, _ = ran["pagerank"]
    last, table = names["last"], names["table"]
    assert names["back"].to_numpy().argmax(1).tolist() == list(range(last, last - 5, -1))
    assert names["back"].max("token").min() > 0.9
    tokens, first = names["trace"].tokens, names["induction"][1].to_numpy()
    followed = [n for n in range(1, last) if tokens[n - 1] == tokens[last]]
    assert first[followed].sum() > 0.9
    assert names["induction"][2, 0] > 0.5
    assert (names["ends"][..., 0] == 1).all()
    starts = table["pagerank_of_start"].sort_values()
    assert set(starts.index[:2]) == {(0, 0), (0, 1)}
    assert starts.iloc[1] < 0.1 < 0.4 < starts.iloc[3] < 0.5
    assert starts.iloc[-3:].min() > 0.8
    itself = [np.diag(names["trace"][0, head].to_dense()).mean() for head in (0, 1)]
    assert min(itself) > 0.8
    best = table["modularity"].sort_values().index[-4:]
    assert set(best) == set(starts.index[:4])
    assert set(table["previous_token"].sort_values().index[-2:]) == {(1, 1), (2, 2)} <= set(best)
    for layer, head in best:
        assert (np.diff(names["parts"].sel(layer=layer, head=head)) >= 0).all()


def test_the_prediction_depends_on_what_reach_says_and_on_no_more(ran):
    names, _ = ran["reach"]
    before, after, count = names["before"], names["after"], names["count"]
    within = np.isfinite(names["fewest"].to_numpy()[-1])
    assert within.tolist() == [n >= count - 9 for n in range(count)]
    assert (before[~within] < 1e-5).all()
    assert before[within].min() > 0.01
    walks, bound = names["squashed"]["walks"], names["squashed"]["influence"]
    assert walks[[count - 9, count - 5]].tolist() == [1, 19]
    assert walks[count - 7] == 10
    assert 300 < bound.max() / bound.min() < 400
    assert names["agreement"] > 0.9
    assert len(names["cut"]) == 3
    parted = [count - 9, count - 7]
    assert (after[parted] < 1e-5).all()
    assert np.delete(after[within], [0, 2]).min() > 0.01


def test_rollout_and_gradients_agree_with_cut_tokens_better_than_attention(ran):
    names, _ = ran["rollout"]
    means = names["agreement"].mean()
    assert means.round(2).tolist() == pytest.approx([0.02, 0.37, 0.67], abs=0.02)
    assert (names["places"]["attention, last layer"] <= 2).all()
    # One of the effects, by hand: the edges of a token to all later ones are gone in every layer.
    model, begun = names["model"], names["correct"][-1]
    drawn, tokens = names["drawn"], names["tokens"]
    target, other = int(drawn[begun]), int(drawn[(begun + 3) % names["WORDS"]])
    cut = 1 + begun
    keep = torch.ones(len(tokens), len(tokens)).tril().bool()
    keep[:, cut] = False
    mask = torch.zeros(keep.shape).masked_fill(~keep, torch.finfo(torch.float32).min)
    with torch.no_grad():
        plain = model(input_ids=tokens[None]).logits[0, -1]
        edited = model(input_ids=tokens[None], attention_mask=mask[None, None]).logits[0, -1]
    lost = (plain[target] - plain[other]) - (edited[target] - edited[other])
    found = names["tables"][-1]["lost when cut off"][begun]
    assert found == pytest.approx(float(lost), abs=1e-2)


def test_flow_likes_what_stands_early(ran):
    names, _ = ran["attention_flow"]
    assert round(names["earliness"](names["flows"]), 2) == 0.87
    assert round(names["earliness"](names["rolled"]), 2) == 0.03
    assert names["even_last"][0] == pytest.approx(1)
    assert round(names["even_last"][-2], 2) == 0.15
    assert set(np.flatnonzero(names["gain"] > 1e-3)) == {9, 10, 11}


def test_heads_that_are_near_on_the_map_do_the_same_by_their_scores(ran):
    names, _ = ran["head_map"]
    distances, cluster, places = names["distances"], names["clusters"].cluster, names["places"]
    nearest = distances.where(distances["head"] != distances["other"]).idxmin("other")
    nearest = dict(zip(distances["head"].to_numpy(), nearest.to_numpy(), strict=True))
    for one, other in (("2.0", "2.1"), ("1.1", "2.2"), ("0.0", "0.1")):
        assert (nearest[one], nearest[other]) == (other, one)
    words = names["table"].label.str.partition(",")[0]
    groups = [[(0, 0), (0, 1)], [(1, 0), (1, 2), (1, 3)], [(1, 1), (2, 2)], [(2, 0), (2, 1)]]
    said = ["same token", "first token (sink)", "previous token", "induction"]
    for group, label in zip(groups, said, strict=True):
        assert cluster[cluster == cluster[group[0]]].index.tolist() == group
        assert (words[group] == label).all()
    far = places - places.loc[[(0, 0), (0, 1)]].mean()
    assert (np.hypot(far.x, far.y).drop([(0, 0), (0, 1)]) > 0.4).all()
    assert places.notes[0] in [f"two axes show {n} % of the heads' spread" for n in range(47, 54)]


def test_pictures_are_as_faithful_as_is_told(ran):
    names, _ = ran["faithfulness"]
    cut, back = names["deleted"].set_index("count"), names["inserted"].set_index("count")
    assert cut.index[-1] == 1456
    np.testing.assert_allclose(cut.iloc[0][list(names["edges"])].astype(float), 0.929, atol=1e-3)
    assert (cut.loc[3, ["estimate", "routes"]] < 0.0105).all()
    assert cut.loc[7, "attention"] == pytest.approx(0.929, abs=1e-3)
    assert back.loc[15, "routes"] > 0.99
    assert back.loc[218, "attention"] > 0.9
    assert (back.loc[:146, "attention"] < 0.02).all()
    assert (back.loc[[146, 218, 291], "estimate"] > 0.8).all()
    assert back.loc[437, "estimate"] < 0.001
    found = names["agreement"]["correlation"].round(2).to_dict()
    told = {"attention": 0.48, "contribution": 0.39, "routes": 0.78, "estimate": 0.99}
    assert found == pytest.approx(told, abs=0.011)
    of_tokens = names["of_tokens"]
    told = {"attention": 0.18, "rollout": 0.64, "flow": 0.38, "gradient rollout": 0.80}
    assert of_tokens["correlation"].to_dict() == pytest.approx(told, abs=0.011)
    assert list(of_tokens.index[of_tokens["low"] > 0]) == ["rollout", "gradient rollout"]
    # Three edges by the estimates, cut by hand.
    best = names["edges"]["estimate"].nsmallest(3, "estimate")
    cuts = [gattn.Cut(row.layer, row.head, row.query, row.key) for row in best.itertuples()]
    inputs = names["tokenizer"](names["text"], return_tensors="pt")
    (lamp,) = names["tokenizer"].encode(" lamp", add_special_tokens=False)
    with torch.no_grad(), gattn.edited(names["model"], *cuts):
        share = names["model"](**inputs).logits[0, -1].softmax(-1)[lamp]
    assert cut.loc[3, "estimate"] == pytest.approx(float(share), abs=1e-5)


def test_heads_of_the_embedded_model_know_offsets_rather_than_syntax(ran):
    names, _ = ran["syntax"]
    table, best = names["table"], names["best"]
    assert best.loc["all relations", ["accuracy", "offset_accuracy", "offset"]].tolist() == [
        34 / 81,
        34 / 81,
        1,
    ]
    whole = table.xs("all relations", level="relation")
    tops = whole.index[whole["head_to_dependent"] == 34 / 81]
    assert list(tops) == [(0, 0), (1, 1)]
    assert whole["dependent_to_head"].max() < 0.15
    assert best.loc["amod", ["accuracy", "offset_accuracy"]].tolist() == [1, 1]
    assert best.loc["nsubj", ["accuracy", "offset_accuracy"]].tolist() == [8 / 12, 8 / 12]
    often = best[best["number"] >= 3]
    above = often.index[often["accuracy"] > often["offset_accuracy"]]
    assert list(above) == ["det"]
    assert table.groupby(level=["layer", "head"]).ngroups == 16
    assert best.loc["all relations", "number"] == 81
    assert best.loc["det", ["layer", "head", "accuracy", "offset_accuracy"]].tolist() == [
        3,
        1,
        0.7,
        0.6,
    ]
    # The subjects of "the next word reads it", by hand.
    offsets = [
        one.heads[n] - n
        for one in names["sentences"]
        for n, relation in enumerate(one.relations)
        if relation == "nsubj"
    ]
    assert (offsets.count(1), len(offsets)) == (8, 12)


def test_the_sink_loses_most_where_its_key_is_long(ran):
    names, _ = ran["comparing_weight_functions"]
    table, layer, head = names["table"], 2, 1
    lost = table.first_token - table.first_token_after
    assert np.corrcoef(lost, table.start_key)[0, 1] > 0.8
    sinks = table.label.str.startswith("first token")
    assert sinks.sum() == 4
    left = (table.first_token_after / table.first_token)[sinks]
    assert 0.15 < left.min() < left.max() < 0.67
    assert all(names["key_lengths"](place).idxmax() == 0 for place in [(2, 0), (2, 1)])
    assert table.distance.nlargest(3).index.isin(table.index[sinks]).all()
    assert table.distance.nsmallest(2).index.tolist() == [(1, 1), (0, 0)]
    model, trace = names["model"], names["before"]
    seen = []
    hook = model.model.layers[layer].self_attn.k_proj.register_forward_hook(
        lambda module, args, output: seen.append(output[0].unflatten(-1, (4, -1))[:, head])
    )
    with torch.no_grad():
        model(**names["tokenizer"](names["text"], return_tensors="pt"))
    hook.remove()
    halves = seen[0].square().sum(-1) / 2 / seen[0].shape[-1] ** 0.5  # rotations keep lengths
    expected = (halves - halves.mean()).numpy()
    assert len(expected) == len(trace.tokens)
    np.testing.assert_allclose(names["key_lengths"]((layer, head)), expected, atol=1e-3)
    assert expected.argmax() == 0


def test_induction_heads_of_a_corpus_need_the_previous_token_head(ran):
    names, _ = ran["heads_of_a_corpus"]
    assert len(names["survey"]) == len(names["rows"]) > 50
    assert names["previous"] == (1, 1)
    means = names["induction"].loc["decoder"]["mean"]
    strongest = means.nlargest(4).index
    assert set(strongest) == {(2, 0), (2, 1), (3, 2), (3, 3)}
    change = names["change"].loc["decoder"]
    assert (change.loc[strongest, "high"] < -0.5 * change.loc[strongest, "before"]).all()
    assert (change.loc[strongest, "p_corrected"] < 1e-6).all()
    assert (change.loc[[(0, n) for n in range(4)], "difference"] == 0).all()


def test_subgraphs_have_fewer_edges_than_a_ranking_needs(ran):
    names, _ = ran["subgraph_of_a_class"]
    assert len(names["results"]) == 3
    for _, found, own, sizes, shares, _ in names["results"]:
        assert found.faithfulness >= 0.9
        enough = [size for size, share in zip(sizes, shares, strict=True) if share >= 0.9]
        assert len(own) < min(enough, default=np.inf)


def test_induction_heads_look_for_what_one_earlier_head_wrote(ran):
    names, _ = ran["why_induction"]
    measured = names["measured"]
    for (layer, head), why in names["found"].items():
        by_key = why.matrix().sum("query_part").to_series()
        assert by_key["1.1"] > 0.9 * by_key.sum()
        part = why.without("key").iloc[0]
        assert part["part"] == "1.1"
        column = measured[f"by {layer}.{head}"]
        assert part["attention"] == pytest.approx(column["unchanged"], abs=1e-5)
        assert part["without"] == pytest.approx(column["1.1 cut"], abs=0.01)
        assert column["1.1, two edges cut"] < 0.02
        others = column[[f"1.{n}, two edges cut" for n in (0, 2, 3)]]
        assert others.to_numpy() == pytest.approx(column["unchanged"], abs=0.01)
    assert measured.loc["1.1, two edges cut", "P(lamp)"] < 0.001
    assert names["plain"][1, 1].to_dense()[5, 4] == pytest.approx(0.997, abs=1e-3)


def test_one_head_does_two_things_by_parts_of_their_own(ran):
    names, _ = ran["one_head_two_things"]
    measured = names["measured"]
    plain = measured.loc["2.0", "unchanged"]
    for name, query, key in (("repeats", "mlp 1", "1.1"), ("rests", "1.0", "mlp 0")):
        first = names["found"][name].table("mean").iloc[0]
        assert (first.query_part, first.key_part) == (query, key)
        (other,) = {"repeats", "rests"} - {name}
        for part, side in ((query, "query"), (key, "key")):
            cut = measured.loc["2.0", f"no {part} in the {side}"]
            assert cut[name] < 0.4 * plain[name]
            assert cut[other] > 0.97 * plain[other]
            assert measured.loc["2.1", f"no {part} in the {side}"][name] < 0.53
            computed = names["found"][name].without(side).set_index("part").loc[part]
            assert computed["attention"] == pytest.approx(plain[name], abs=1e-5)
            assert computed["without"] == pytest.approx(cut[name], abs=0.1)
    control = measured.loc["2.0", "no 1.3 in the key"]
    assert control.to_numpy() == pytest.approx(plain.to_numpy(), abs=0.05)
    assert measured.loc["2.1", "no 1.0 in the query"]["repeats"] > 0.99
