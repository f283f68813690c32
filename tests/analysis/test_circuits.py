"""Circuits: known ones are found, and what is measured of them is what dense algebra gives."""

import copy
import json
from itertools import product
from pathlib import Path

import networkx as nx
import numpy as np
import pandas as pd
import pytest
import torch
from dense_models import Dense
from matplotlib.figure import Figure
from planted_circuits import Induction
from torch import nn

import gattn
from gattn.analysis.circuits.found import Circuit, percent
from gattn.analysis.circuits.several import _role
from gattn.analysis.circuits.testing import _drawn
from gattn.errors import SelectionError

TEXT = "The river tall green lamp river tall green lamp river tall green"
BEGIN = 0
QUIET = {"progress": False}
EDGE = ["layer", "head", "query", "key"]


@pytest.fixture(scope="module")
def embedded():
    return gattn.load_model()


@pytest.fixture(scope="module")
def river(embedded):
    return gattn.circuit(TEXT, *embedded, target=" lamp", **QUIET)


def edges_of(found):
    return {tuple(row) for row in found.table()[EDGE].to_numpy(dtype=int).tolist()}


def kept_alone(model, ids, rows):
    """Run a model on some (stack, layer, head, query, key); all other attention is zero."""

    def only(call, attention):
        mask = torch.zeros_like(attention)
        for stack, layer, *where in rows:
            if (stack, layer) == call.place:
                mask[(0, *where)] = 1
        return attention * mask

    return Dense().run(model, ids, after=only)


def rows_of(found):
    return list(found.table()[["stack", *EDGE]].itertuples(index=False, name=None))


def answer(target, other):
    def difference(logits):
        return logits[-1, target] - logits[-1, other]

    return difference


@pytest.mark.parametrize("place", [(0, 0), (1, 0), (0, 2)])
def test_the_hand_built_induction_circuit_is_exactly_its_two_edges(place):
    model = Induction(6, 7, heads=3, place=place)
    ids = torch.tensor([[BEGIN, 3, 5, 2, 4, 3]])  # 5 followed 3
    found = gattn.circuit(
        lambda: model(ids)[0], model, metric=answer(5, 2), random=4, seed=1, **QUIET
    )
    assert edges_of(found) == {(0, place[0], 2, 1), (1, place[1], 5, 2)}
    assert found.faithfulness == pytest.approx(1, abs=1e-6)
    # Without the first edge, the second passes on 1/6 less; without both, 1/6 of 2 is left.
    losses = dict(zip(found.units()["layer"], found.units()["loss"], strict=True))
    assert losses[1] == pytest.approx(1, abs=1e-6)
    assert losses[0] == pytest.approx(5 / 6, abs=1e-6)
    assert found.minimality == losses[0]
    assert found.completeness == pytest.approx(7 / 6, abs=1e-6)
    assert set(found.edges) == {((0, 1), (1, 2)), ((1, 2), (2, 5))}
    assert {facts["kind"] for *_, facts in found.edges(data=True)} == {"attention"}


@pytest.mark.parametrize("seed", range(4))
def test_a_planted_circuit_is_found_among_random_heads(seed):
    generator = torch.Generator().manual_seed(seed)
    place = seed % 4, (2 * seed + 1) % 4
    model = Induction(8, 10, heads=4, place=place, noise=0.015, seed=seed)
    words = (1 + torch.randperm(6, generator=generator)).tolist()
    first = 1 + seed
    ids = torch.tensor([[BEGIN, *words, words[first - 1]]])
    found = gattn.circuit(
        lambda: model(ids)[0, -1],
        model,
        metric="logit_difference",
        target=words[first],
        other=7,
        random=4,
        **QUIET,
    )
    assert edges_of(found) == {(0, place[0], first + 1, first), (1, place[1], 7, first + 1)}
    assert found.faithfulness >= 0.9
    assert max(found.random) < 0.5


def test_the_embedded_model_completes_repeated_words_by_its_known_heads(river):
    heads = set(river.heads()[["layer", "head"]].itertuples(index=False, name=None))
    assert heads >= {(1, 1), (2, 0), (2, 1)}
    # Each of them at "lamp" 5: it reads "green" 4 before it, and "green" 12 reads it.
    assert edges_of(river) >= {(1, 1, 5, 4), (2, 0, 12, 5), (2, 1, 12, 5)}
    assert river.graph["all_edges"] == 16 * 13 * 14 // 2
    assert river.graph["edges"] <= 0.05 * river.graph["all_edges"]
    assert river.faithfulness >= 0.9
    assert river.minimality > 0
    assert len(river.random) == 20
    assert max(river.random) < 0.1


def test_the_documentation_tells_what_is_found(river):
    page = Path(__file__).parents[2] / "docs/analyses/circuits.md"
    assert f"# {river}\n" in page.read_text(encoding="utf-8")


def test_measures_are_those_of_a_dense_model_with_masks(embedded, river):
    model, tokenizer = embedded
    batch = tokenizer(TEXT, return_tensors="pt") | {"use_cache": False}
    (target,) = tokenizer(" lamp", add_special_tokens=False)["input_ids"]
    every = {("decoder", *place, *ends) for place in all_heads(16) for ends in pairs(13)}
    circuit = set(rows_of(river))
    assert circuit <= every

    def value(rows):
        return float(kept_alone(model, batch, rows)[0, -1].double().softmax(-1)[target])

    empty, full = value([]), value(every)
    assert river.graph["empty"] == pytest.approx(empty, abs=1e-6)
    assert river.graph["full"] == pytest.approx(full, abs=1e-5)
    kept, rest = value(circuit), value(every - circuit)
    assert river.faithfulness == pytest.approx((kept - empty) / (full - empty), abs=1e-4)
    assert river.completeness == pytest.approx(1 - (rest - empty) / (full - empty), abs=1e-4)
    for row in river.table().itertuples():
        left = circuit - {("decoder", row.layer, row.head, row.query, row.key)}
        assert row.loss == pytest.approx((kept - value(left)) / (full - empty), abs=1e-4)
    with gattn.edited(model, river.only()), torch.no_grad():
        logits = model(**batch).logits[0, -1]
    assert float(logits.double().softmax(-1)[target]) == pytest.approx(kept, abs=1e-5)


def all_heads(count):
    return [divmod(n, 4) for n in range(count)]


def pairs(tokens):
    return [(query, key) for query in range(tokens) for key in range(query + 1)]


def test_kl_needs_no_target_and_its_circuit_is_near_the_whole_models_answer(embedded):
    found = gattn.circuit("red green lamp red green", *embedded, keep=0.6, random=0, **QUIET)
    assert found.graph["full"] == 0
    kl = gattn.effect("red green lamp red green", [found.only()], *embedded, **QUIET)["edited"][0]
    assert 1 - kl / found.graph["empty"] == pytest.approx(found.faithfulness, abs=1e-4)
    assert 0.6 <= found.faithfulness < 1


def test_a_model_whose_answer_ignores_attention_gives_the_empty_circuit():
    model = Induction(6, 7)
    for layer in model.layers:
        layer.values.data.zero_()
    ids = torch.tensor([[BEGIN, 3, 5, 2]])
    found = gattn.circuit(lambda: model(ids)[0, -1].sum() + 3.0, model, **QUIET)
    assert len(found) == 0
    assert found.graph["edges"] == 0
    assert len(found.table()) == len(found.units()) == len(found.heads()) == 0
    assert np.isnan(found.minimality)
    assert "does not depend on attention" in found.notes[0]
    with gattn.edited(model, found.only()):
        assert torch.equal(model(ids), model(ids))
    found.draw()


def test_fewer_edges_than_needed_are_never_exceeded_and_it_says_how_far_it_got(embedded):
    found = gattn.circuit(
        TEXT, *embedded, target=" lamp", other=" river", max_edges=3, random=0, **QUIET
    )
    assert found.graph["edges"] == 3
    assert found.faithfulness < 0.9
    assert f"keeps {found.faithfulness:.3f}, not 0.9" in found.notes[0]


def test_a_search_that_is_out_of_time_gives_what_keeps_enough_so_far(embedded):
    found = gattn.circuit(TEXT, *embedded, target=" lamp", seconds=1e-3, random=0, **QUIET)
    assert found.faithfulness >= 0.9
    assert "not every unit was left out alone" in found.notes[0]


def test_zero_has_no_sign(river):
    found = river.copy()
    found.graph.update(faithfulness=-1e-5, completeness=1.0002)
    assert "edges keep 0.0% of" in str(found)
    assert str(found).endswith("without them 0.0% is left")
    assert [percent(share, 0) for share in (-0.004, -1.336, 0.95)] == ["0%", "-134%", "95%"]


def test_random_sets_are_never_the_circuit_itself():
    profile, mask = np.array([0, 0, 0, 1, 1]), np.array([1, 0, 0, 1, 1], dtype=bool)
    drawn = _drawn(profile, mask, 40, np.random.default_rng(0))
    assert set(map(tuple, drawn[:, :3].astype(int).tolist())) == {(0, 1, 0), (0, 0, 1)}
    assert drawn[:, 3:].all()
    assert len(drawn) == 40
    assert len(_drawn(profile, profile == 1, 40, np.random.default_rng(0))) == 0


def test_a_circuit_that_no_other_set_is_like_says_that_there_is_no_random_one():
    model, x = Patches(), torch.ones(1, 1, 8, dtype=torch.float64)
    found = gattn.circuit(lambda: model(x).square().sum(), model, units="tokens", **QUIET)
    assert found.units()["key"].tolist() == [0]
    assert found.random == []
    assert any("there is no random one" in note for note in found.notes)


def test_less_than_asked_for_is_kept_within_rounding_only_with_a_note(embedded):
    model = copy.deepcopy(embedded[0]).bfloat16()
    text, keep = "a dog cat tree a dog cat tree a dog", 0.99
    found = gattn.circuit(text, model, embedded[1], target=" cat", keep=keep, random=0, **QUIET)
    said = f"keeps {found.faithfulness:.3f}, not {keep}: within rounding"
    assert any(said in note for note in found.notes) == (found.faithfulness < keep - 1e-3)
    assert any("load the model in float32" in note for note in found.notes)


@pytest.mark.parametrize(
    ("units", "fields"),
    [
        ("heads", ["layer", "head"]),
        ("tokens", ["key"]),
        ("pairs", ["query", "key"]),
    ],
)
def test_units_are_kept_as_a_whole_and_dead_edges_are_not_shown(embedded, units, fields):
    found = gattn.circuit(TEXT, *embedded, target=" lamp", units=units, random=2, **QUIET)
    kept = found.units()
    assert list(kept.columns) == ["stack", *fields, "edges", "loss"]
    rows = found.table()[fields].drop_duplicates().itertuples(index=False, name=None)
    assert set(rows) == set(kept[fields].itertuples(index=False, name=None))
    assert kept["edges"].sum() == len(found.table()) == found.graph["edges"]
    # From every node of the circuit, there is a path to the answer.
    assert nx.ancestors(found, (4, 12)) | {(4, 12)} == set(found)
    alone = gattn.effect(
        TEXT, [found.only()], *embedded, metric="probability", target=" lamp", **QUIET
    )["edited"][0]
    whole, empty = found.graph["full"], found.graph["empty"]
    assert (alone - empty) / (whole - empty) == pytest.approx(found.faithfulness, abs=1e-4)


class Patches(nn.Module):
    """Each patch reads all patches."""

    def __init__(self):
        super().__init__()
        self.attend = nn.MultiheadAttention(8, 2, batch_first=True).double().eval()

    def forward(self, x):
        return self.attend(x, x, x, need_weights=False)[0]


def test_the_patches_that_an_answer_needs_are_those_that_say_something():
    torch.manual_seed(0)
    model = Patches()
    x = torch.zeros(1, 9, 8, dtype=torch.float64)
    x[0, [2, 7]] = torch.randn(8, dtype=torch.float64)
    nn.init.zeros_(model.attend.in_proj_bias)
    found = gattn.circuit(
        lambda: (model(x)[0, 0] - model.attend.out_proj.bias).abs().sum(),
        model,
        units="tokens",
        keep=0.999,
        random=0,
        **QUIET,
    )
    assert set(found.units()["key"]) == {2, 7}
    assert found.faithfulness == pytest.approx(1, abs=1e-9)
    shown = found.by_token()
    assert np.isfinite(shown).to_numpy().nonzero()[0].tolist() == [2, 7]
    losses = found.units().set_index("key")["loss"]
    assert shown.sel(key=7) == losses[7]
    shown.draw_image(np.zeros((9, 9, 3)), grid=(3, 3))


def test_losses_by_token_are_those_of_tokens(river):
    with pytest.raises(SelectionError, match="units='tokens', and its units are 'edges'"):
        river.by_token()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"keep": 0}, "keep is a number above 0, at most 1, not 0"),
        ({"keep": 1.5}, "keep is a number"),
        ({"keep": "most"}, "keep is a number"),
        ({"units": "words"}, "units is one of edges, pairs, tokens, heads"),
        ({"max_edges": -1}, "max_edges must be a whole number"),
        ({"seconds": 0}, "seconds is a number above 0"),
        ({"random": -1}, "random, a number of sets, must be"),
        ({"other": " river"}, "does not take"),
    ],
)
def test_bad_requests_are_refused(embedded, given, said):
    with pytest.raises(SelectionError, match=said):
        gattn.circuit(TEXT, *embedded, **given, **QUIET)


def by_hand(conv, x, edges, keep):
    """One GAT layer by its formula, with the attention (queries, keys, heads) times `keep`."""
    heads, width = conv.heads, conv.out_channels
    features = (x @ conv.lin.weight.T).view(-1, heads, width)
    of_key = (features * conv.att_src[0]).sum(-1)
    of_query = (features * conv.att_dst[0]).sum(-1)
    scores = nn.functional.leaky_relu(of_query[:, None] + of_key[None], 0.2)
    is_edge = torch.eye(len(x), dtype=torch.bool)
    is_edge[edges[1], edges[0]] = True
    attention = scores.masked_fill(~is_edge[..., None], -torch.inf).softmax(1) * keep
    out = torch.einsum("qkh,khc->qhc", attention, features)
    return (out.flatten(1) if conv.concat else out.mean(1)) + conv.bias


@pytest.mark.parametrize("units", [pytest.param("pairs", marks=pytest.mark.slow), "edges"])
def test_the_subgraph_of_a_graph_attention_network_keeps_a_nodes_class(units):
    pyg = pytest.importorskip("torch_geometric.nn")
    torch.manual_seed(3)
    nodes, node = 10, 4
    edges = torch.stack(torch.triu_indices(nodes, nodes, 1).unbind())
    edges = edges[:, torch.rand(edges.shape[1]) < 0.3]
    edges = torch.cat([edges, edges.flip(0)], 1)
    x = torch.randn(nodes, 6, dtype=torch.float64)
    first, last = (
        conv.double().eval()
        for conv in (pyg.GATConv(6, 4, heads=2), pyg.GATConv(8, 3, concat=False))
    )
    model = nn.ModuleList([first, last])
    model.forward = lambda: last(first(x, edges).relu(), edges)
    target = int(model()[node].argmax())
    found = gattn.circuit(
        lambda: model()[node], model, target=target, units=units, keep=0.8, random=1, **QUIET
    )

    @torch.no_grad()
    def value(keep):
        hidden = by_hand(first, x, edges, keep[0, ..., :2]).relu()
        return float(by_hand(last, hidden, edges, keep[1, ..., :1])[node].softmax(-1)[target])

    keep = torch.zeros(2, nodes, nodes, 2, dtype=torch.float64)
    for layer, head, query, key in edges_of(found):
        keep[layer, query, key, head] = 1
    empty, full = value(torch.zeros_like(keep)), value(torch.ones_like(keep))
    assert found.graph["empty"] == pytest.approx(empty, abs=1e-9)
    assert found.graph["full"] == pytest.approx(full, abs=1e-9)
    assert found.faithfulness == pytest.approx((value(keep) - empty) / (full - empty), abs=1e-9)
    assert found.completeness == pytest.approx(1 - (value(1 - keep) - empty) / (full - empty))
    assert found.faithfulness >= 0.8
    assert {query for layer, _, query, _ in edges_of(found) if layer == 1} == {node}
    assert found.graph["edges"] < 0.5 * found.graph["all_edges"]
    # Nodes of a graph network have no residual stream.
    assert {facts["kind"] for *_, facts in found.edges(data=True)} <= {"attention", "self"}
    found.draw()


def test_its_picture_has_a_line_for_each_edge_as_wide_as_what_is_lost_without_it(river):
    ax = river.draw()
    (lines,) = (c for c in ax.collections if c.get_gid() == "gattn-edges")
    assert len(lines.get_paths()) == river.number_of_edges()
    curves = pd.DataFrame(river.table()).groupby(["layer", "query", "key"])
    losses = sorted(curves["loss"].max())
    widths = np.sort(lines.get_linewidths())[-len(losses) :]
    np.testing.assert_allclose(widths / widths[-1], np.array(losses) / losses[-1], atol=0.1)
    assert {text.get_text() for text in ax.texts if text.get_gid() == "gattn-heads"} == {
        "0.1",
        "1.1",
        "2.0,1",
    }
    assert [text.get_text() for text in ax.get_xticklabels()][12] == "green"


def test_an_edge_of_the_graph_has_only_losses_that_were_measured(embedded, river):
    losses = river.table().set_index(EDGE)["loss"].to_dict()
    found = {
        (source[0], head, target[1], source[1]): facts[f"loss_{head}"]
        for source, target, facts in river.edges(data=True)
        for head in range(4)
        if f"loss_{head}" in facts
    }
    assert found == losses
    assert not any("loss" in facts for *_, facts in river.edges(data=True))
    heads = gattn.circuit(
        "red green lamp red green", *embedded, units="heads", keep=0.5, random=0, **QUIET
    )
    assert not any("loss" in name for *_, facts in heads.edges(data=True) for name in facts)


def test_each_curve_has_a_name_even_where_two_cross_in_their_middles():
    places = [((0, 9), (1, 11)), ((0, 10), (1, 10))]
    rows = [["decoder", 0, head, to[1], key[1], 1.0] for head, (key, to) in enumerate(places)]
    found = Circuit(
        kind="edges",
        edges=2,
        all_edges=9,
        faithfulness=1.0,
        completeness=1.0,
        random="[]",
        layers=4,
        tokens=json.dumps({"decoder": list("abcdefghijkl")}),
        rows=json.dumps(rows),
    )
    for head, (key, to) in enumerate(places):
        kind = "self" if key[1] == to[1] else "attention"
        found.add_edge(key, to, kind=kind, layer=0, **{f"head_{head}": 1.0, f"loss_{head}": 1.0})
    for inches in ((3.3, 2.6), (8, 5)):
        figure = Figure(inches)
        ax = found.draw(ax=figure.add_subplot())
        names = [text for text in ax.texts if text.get_gid() == "gattn-heads"]
        assert {text.get_text() for text in names} == {"0.0", "0.1"}
        first, second = (text.get_window_extent() for text in names)
        assert not first.overlaps(second)
        assert all(text.get_bbox_patch().get_alpha() is None for text in names)


def test_it_comes_back_from_a_file(river, tmp_path):
    gattn.save(river, tmp_path / "circuit.json")
    again = gattn.load(tmp_path / "circuit.json")
    assert dict(again.edges) == dict(river.edges)
    assert again.units().equals(river.units())
    assert again.only().record == river.only().record


def test_a_circuit_of_two_stacks_names_them():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.T5Config(
        vocab_size=64,
        d_model=16,
        d_kv=8,
        d_ff=32,
        num_layers=2,
        num_heads=2,
        decoder_start_token_id=0,
    )
    model = transformers.T5ForConditionalGeneration(config).double().eval()
    given = {"input_ids": [3, 4, 5, 6], "decoder_input_ids": [0, 7, 8]}
    batch = {name: torch.tensor([ids]) for name, ids in given.items()} | {"use_cache": False}
    found = gattn.circuit(given, model, keep=0.7, random=0, **QUIET)
    assert "cross" in set(found.table()["stack"])
    every = [
        (stack, *place, query, key)
        for stack in ("encoder", "decoder", "cross")
        for place in product(range(2), range(2))
        for query, key in product(
            range(4 if stack == "encoder" else 3), range(3 if stack == "decoder" else 4)
        )
    ]
    plain, logits, nothing = (
        kept_alone(model, batch, rows)[0, -1] for rows in (every, rows_of(found), [])
    )
    kl, empty = (
        float((plain.softmax(-1) * (plain.log_softmax(-1) - x.log_softmax(-1))).sum())
        for x in (logits, nothing)
    )
    assert found.faithfulness == pytest.approx(1 - kl / empty, abs=1e-9)
    assert {len(node) for node in found} == {3}
    with pytest.raises(SelectionError, match="no layered picture"):
        found.draw()


TEXTS = [TEXT, "a dog cat tree a dog cat tree a dog", "red green lamp red green lamp red green"]


@pytest.fixture(scope="module")
def several(embedded):
    goals = [" lamp", " cat", " lamp"]
    return gattn.circuit(TEXTS, *embedded, target=goals, random=2, keep=0.7, **QUIET)


def test_several_texts_have_a_circuit_each(several, embedded):
    alone = gattn.circuit(TEXTS[1], *embedded, target=" cat", random=2, keep=0.7, **QUIET)
    assert len(several) == 3
    assert edges_of(several[1]) == edges_of(alone)
    assert [one.graph["all_edges"] for one in several] == several.table()["all_edges"].tolist()
    statistics = several.statistics()
    values = [one.faithfulness for one in several]
    assert statistics.loc["faithfulness", "mean"] == pytest.approx(np.mean(values))
    # Of 27 samples of three texts, one is the least text alone, and one the best: over 2.5 %.
    assert statistics.loc["faithfulness", "low"] == pytest.approx(min(values))
    assert statistics.loc["faithfulness", "high"] == pytest.approx(max(values))
    with pytest.raises(SelectionError, match="target= has 2 entries for 3 texts"):
        gattn.circuit(TEXTS, *embedded, target=[" lamp", " cat"], **QUIET)


def test_edges_of_texts_of_several_lengths_are_compared_by_their_roles(several):
    def roles(text):
        found = set()
        for row in several[text].table().itertuples():
            tokens = several[text].tokens
            head = row.stack, row.layer, row.head
            is_next = row.key > 0 and tokens[row.key - 1] == tokens[row.query]
            if row.query == row.key:
                found.add((*head, "itself"))
            elif row.key == row.query - 1:
                found.add((*head, "previous"))
            elif is_next:
                found.add((*head, "after same token"))
            elif tokens[row.query] == tokens[row.key]:
                found.add((*head, "same token"))
            else:
                found.add((*head, "other" if row.key else "first"))
        return found

    every = [roles(text) for text in range(3)]
    assert ("decoder", 2, 1, "after same token") in every[0]
    named = ["stack", "layer", "head", "role"]
    table = several.roles()
    found = table.set_index(named)["share"].to_dict()
    assert set(found) == set.union(*every)
    for role, share in found.items():
        assert share == pytest.approx(np.mean([role in some for some in every]))
    both = several.intersection()[named].itertuples(index=False, name=None)
    assert set(both) == set.intersection(*every)
    overlaps = [
        len(a & b) / len(a | b)
        for a, b in ((every[i], every[j]) for i, j in [(0, 1), (0, 2), (1, 2)])
    ]
    assert several.stability == pytest.approx(np.mean(overlaps))
    assert (table["low"] <= table["share"]).all()
    assert (table["share"] <= table["high"]).all()
    assert len(several[1:]) == 2


@pytest.mark.parametrize(
    ("query", "key", "role"),
    [
        (1, 1, "itself"),
        (1, 0, "previous"),
        (1, 2, "next"),
        (5, 2, "after same token"),
        (1, 6, "other"),
        (1, 5, "same token"),
        (3, 0, "first"),
        (3, 1, "other"),
    ],
)
def test_roles_are_told_in_models_that_read_both_ways(query, key, role):
    tokens = list("xabcdaf")
    assert _role(tokens, tokens, query, key) == role


def test_the_loss_of_all_tokens_has_a_circuit(embedded):
    model, tokenizer = embedded
    text = "red green lamp red green"
    found = gattn.circuit(text, model, tokenizer, metric="loss", keep=0.5, random=0, **QUIET)
    batch = tokenizer(text, return_tensors="pt") | {"use_cache": False}
    ids = batch["input_ids"][0]
    every = {("decoder", *place, *ends) for place in all_heads(16) for ends in pairs(len(ids))}

    def value(rows):
        return float(nn.functional.cross_entropy(kept_alone(model, batch, rows)[0, :-1], ids[1:]))

    empty, full, kept = (value(rows) for rows in ([], every, rows_of(found)))
    assert found.faithfulness == pytest.approx((kept - empty) / (full - empty), abs=1e-4)
    assert found.faithfulness >= 0.5


def test_a_corrupted_text_takes_the_place_of_what_is_left_out(embedded):
    model, tokenizer = embedded
    corrupted = "The river tall green house river tall green lamp river tall green"
    found = gattn.circuit(
        TEXT, model, tokenizer, target=" lamp", ablation=corrupted, random=0, **QUIET
    )
    assert edges_of(found) >= {(2, 0, 12, 5), (2, 1, 12, 5)}
    # What it reads of the first tokens is the same in both texts.
    assert not any(query < 5 for _, _, query, _ in edges_of(found))
    runs = [gattn.Only([], ablation=corrupted), found.only()]
    empty, kept = gattn.effect(
        TEXT, runs, model, tokenizer, metric="probability", target=" lamp", **QUIET
    )["edited"]
    assert found.graph["empty"] == pytest.approx(empty, abs=1e-6)
    share = (kept - empty) / (found.graph["full"] - empty)
    assert found.faithfulness == pytest.approx(share, abs=1e-4)
    assert found.faithfulness >= 0.9


@pytest.mark.parametrize("ablation", ["mean", ["A dog sat on the mat.", "She gave him the book."]])
def test_mean_values_take_the_place_of_what_is_left_out(embedded, ablation, tmp_path):
    model, tokenizer = embedded
    found = gattn.circuit(
        TEXT, model, tokenizer, target=" lamp", keep=0.5, ablation=ablation, random=0, **QUIET
    )
    gattn.save(found, tmp_path / "circuit.graphml")
    only = gattn.load(tmp_path / "circuit.graphml").only()
    runs = [gattn.Ablate(ablation, what="values"), only]
    empty, kept = gattn.effect(
        TEXT, runs, model, tokenizer, metric="probability", target=" lamp", **QUIET
    )["edited"]
    assert found.graph["empty"] == pytest.approx(empty, abs=1e-5)
    share = (kept - empty) / (found.graph["full"] - empty)
    assert found.faithfulness == pytest.approx(share, abs=1e-3)
    assert found.faithfulness >= 0.5
    assert len(found.units()) < 40


def test_what_a_graph_cannot_hold_is_not_made_up(embedded):
    given = embedded[1](TEXT, return_tensors="pt")["input_ids"].flip(1)
    found = gattn.circuit(
        TEXT, *embedded, target=" lamp", ablation={"input_ids": given}, random=0, **QUIET
    )
    with pytest.raises(SelectionError, match="make the edit yourself"):
        found.only()
