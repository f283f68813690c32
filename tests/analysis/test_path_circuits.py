"""Circuits of paths from head to head, held to path patching by hooks on a plain eager model."""

import json
import math

import networkx as nx
import numpy as np
import pytest
import torch
from matplotlib.colors import to_hex

import gattn
from gattn.analysis.circuits.measuring.runs import HERE, Runs
from gattn.analysis.circuits.paths.lists import PathList
from gattn.errors import EditError, SelectionError
from gattn.models.effects.asking import asked

IDS = [5, 17, 42, 17, 8, 33, 59, 3, 21]
SIDES = ("query", "key", "value")
ANSWER = {"metric": "logit_difference", "target": 3, "other": 4}
QUIET = {"progress": False, "random": 3}
TEXT = "The river tall green lamp river tall green lamp river tall green"


def made(layers):
    import transformers

    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=60, n_embd=16, n_layer=layers, n_head=2, n_positions=16, initializer_range=0.4
    )
    config._attn_implementation = "eager"
    return transformers.GPT2LMHeadModel(config).double().eval()


@pytest.fixture(scope="module")
def model():
    return made(3)


@pytest.fixture(scope="module")
def small():
    return made(2)


def by_hooks(model, weights, by="zero"):
    """Return the logit difference if heads hear of earlier heads by `weights` of paths alone.

    `weights` are numbers by (writer's layer, head, layer, head, side).
    """
    size, width = model.config.n_embd // model.config.n_head, model.config.n_embd
    written, streams, hooks = {}, {}, []

    def write(layer, projection):
        def hook(module, given):
            for head in range(model.config.n_head):
                rows = slice(head * size, (head + 1) * size)
                one = given[0][..., rows] @ projection.weight[rows]
                mean = one.mean(1, keepdim=True) if by == "mean" else 0
                written[layer, head] = one - mean

        return hook

    def hear(layer, block):
        def hook(module, given, output):
            parts = []
            for side in SIDES:
                for head in range(model.config.n_head):
                    stream = streams[layer]
                    for (one, other), vector in written.items():
                        if one < layer:
                            stream = stream - (1 - weights[one, other, layer, head, side]) * vector
                    start = SIDES.index(side) * width + head * size
                    columns = slice(start, start + size)
                    parts.append(
                        block.ln_1(stream) @ module.weight[:, columns] + module.bias[columns]
                    )
            return torch.cat(parts, -1)

        return hook

    for layer, block in enumerate(model.transformer.h):
        hooks += [
            block.attn.c_proj.register_forward_pre_hook(write(layer, block.attn.c_proj)),
            block.register_forward_pre_hook(
                lambda _, given, layer=layer: streams.update({layer: given[0]})
            ),
            block.attn.c_attn.register_forward_hook(hear(layer, block)),
        ]
    logits = model(torch.tensor([IDS]), use_cache=False).logits[0, -1]
    for hook in hooks:
        hook.remove()
    return logits[3] - logits[4]


def named(paths):
    """Name paths as the oracle does."""
    found = []
    for _, layer, head, side, part in paths.described(paths.rows):
        found.append((*map(int, part.split(".")), layer, head, side))
    return found


def runs_of(model, by=None):
    runner, measure = asked(IDS, model, None, ANSWER["metric"], None, 3, 4, "kl")
    paths = PathList.of(gattn.capture(IDS, model), "paths")
    return Runs(runner, measure, paths, by)


def test_all_paths_from_head_to_head_are_listed(model):
    paths = named(PathList.of(gattn.capture(IDS, model), "paths"))
    expected = {
        (one, g, layer, h, side)
        for layer in range(3)
        for one in range(layer)
        for g in range(2)
        for h in range(2)
        for side in SIDES
    }
    assert set(paths) == expected
    assert len(paths) == len(expected) == 36
    every = PathList.of(gattn.capture(IDS, model), "all paths")
    assert len(every) == 2 * 3 * (1 + 4 + 7)


@pytest.mark.parametrize("by", [None, "mean"])
def test_sets_of_paths_are_those_of_hooks(model, by):
    runs = runs_of(model, by)
    masks = np.random.default_rng(0).random((6, len(runs.groups))) < 0.5
    masks[0], masks[1] = True, False
    names = named(runs.groups)
    with torch.no_grad():
        expected = [
            float(by_hooks(model, dict(zip(names, row.astype(float), strict=True)), by))
            for row in masks
        ]
    assert runs.values(masks) == pytest.approx(expected, abs=1e-9)
    assert np.ptp(expected) > 0.1


@pytest.mark.parametrize("where", [HERE, (0.3,)])
def test_estimates_are_exact_slopes(model, where):
    """Through norms and what cuts change further up: gradients of runs by hooks."""
    runs = runs_of(model)
    mask = np.random.default_rng(1).random(len(runs.groups)) < 0.5
    weights = (where[0] * torch.from_numpy(mask).double()).requires_grad_()
    number = by_hooks(model, dict(zip(named(runs.groups), weights, strict=True)))
    (expected,) = torch.autograd.grad(number, weights)
    found = runs.slopes(mask, where) * runs.range
    assert found == pytest.approx(expected.numpy(), abs=1e-6)
    assert (expected.abs() > 1e-4).sum() > 18


@pytest.mark.parametrize("ablation", [pytest.param("zero", marks=pytest.mark.slow), "mean"])
def test_what_a_circuit_says_is_measured(model, small, ablation):
    model = model if ablation == "zero" else small
    found = gattn.circuit(IDS, model, **ANSWER, units="paths", ablation=ablation, **QUIET)
    every = named(PathList.of(gattn.capture(IDS, model), "paths"))
    rows = zip(*(found.table()[name] for name in ("part", "layer", "head", "side")), strict=True)
    kept = {(*map(int, part.split(".")), layer, head, side) for part, layer, head, side in rows}

    def measure(some):
        with torch.no_grad():
            return float(by_hooks(model, {one: float(one in some) for one in every}, ablation))

    empty, full = measure(set()), measure(set(every))

    def share(some):
        return (measure(some) - empty) / (full - empty)

    assert found.graph["full"] == pytest.approx(full, abs=1e-8)
    assert found.graph["empty"] == pytest.approx(empty, abs=1e-8)
    assert found.faithfulness == pytest.approx(share(kept), abs=1e-6)
    assert found.faithfulness >= 0.9 - 1e-3
    assert found.completeness == pytest.approx(1 - share(set(every) - kept), abs=1e-6)
    for row in found.table().to_dict("records"):
        one = (*map(int, row["part"].split(".")), row["layer"], row["head"], row["side"])
        assert row["loss"] == pytest.approx(share(kept) - share(kept - {one}), abs=1e-6)
        edge = found.edges[row["part"], f"{row['layer']}.{row['head']}"]
        assert edge[f"loss_{row['side']}"] == row["loss"]
    assert 0 < len(kept) < len(every) * 0.7
    with torch.no_grad(), gattn.edited(model, found.only()):
        logits = model(torch.tensor([IDS])).logits[0, -1]
    assert float(logits[3] - logits[4]) == pytest.approx(measure(kept), abs=1e-8)


def planted(tiny):
    """A Llama whose logits read only what head 1.2 writes, whose values read only head 0.1."""
    model = tiny("llama", dtype=torch.float64)
    width = model.config.hidden_size
    first, second = slice(width // 2, 3 * width // 4), slice(3 * width // 4, width)
    size = model.model.layers[0].self_attn.head_dim
    rows = [slice(n * size, (n + 1) * size) for n in range(4)]
    generator = torch.Generator().manual_seed(0)

    def random(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.double)

    with torch.no_grad():
        model.model.embed_tokens.weight[:, width // 2 :] = 0
        for layer in model.model.layers:
            attention = layer.self_attn
            attention.o_proj.weight[width // 2 :] = 0
            layer.mlp.down_proj.weight[width // 2 :] = 0
            for one in (attention.q_proj, attention.k_proj, attention.v_proj):
                one.weight[:, width // 2 :] = 0
        heard, hears = (layer.self_attn for layer in model.model.layers[:2])
        heard.o_proj.weight[:, rows[1]] = 0
        heard.o_proj.weight[first, rows[1]] = random(width // 4, size)
        hears.q_proj.weight[rows[2]] = 0
        group = 2 * hears.v_proj.weight.shape[0] // size // 4
        own = slice(group * size, (group + 1) * size)
        hears.v_proj.weight[own] = 0
        hears.v_proj.weight[own, first] = random(size, width // 4)
        hears.o_proj.weight[:, rows[2]] = 0
        hears.o_proj.weight[second, rows[2]] = random(width // 4, size)
        model.lm_head.weight[:, : 3 * width // 4] = 0
    return model


def test_a_planted_path_is_found_alone(tiny):
    found = gattn.circuit(IDS, planted(tiny), **ANSWER, units="paths", **QUIET)
    assert list(found.edges(data=True)) == [("0.1", "1.2", {"loss_value": found.faithfulness})]
    assert found.faithfulness == pytest.approx(1, abs=0.3)  # Norms feel what others write.
    assert found.minimality == found.faithfulness
    assert found.completeness == pytest.approx(1)
    assert max(map(abs, found.random)) < 1e-9
    assert dict(found.nodes["0.1"]) == {"kind": "head", "layer": 0, "head": 1}


@pytest.mark.slow
def test_a_planted_path_is_found_among_those_from_embeddings_and_mlps(tiny):
    every = gattn.circuit(IDS, planted(tiny), **ANSWER, units="all paths", keep=0.5, **QUIET)
    assert ("0.1", "1.2") in every.edges
    assert ("embedding", "0.1") in every.edges
    assert every.nodes["embedding"] == {"kind": "embedding"}


@pytest.fixture(scope="module")
def river(embedded):
    return gattn.circuit(TEXT, *embedded, target=" lamp", units="paths", **QUIET)


def test_induction_is_found(river, embedded):
    """What docs/analyses/circuits.md says."""
    assert str(river).startswith("5 of 288 paths keep 103.2 %")
    assert {(*ends, name) for *ends, facts in river.edges(data=True) for name in facts} == {
        ("1.1", "2.0", "loss_key"),
        ("1.1", "2.1", "loss_key"),
        ("0.0", "2.0", "loss_value"),
        ("0.1", "2.0", "loss_value"),
        ("0.0", "2.1", "loss_value"),
    }
    assert river.minimality > 0.6
    model, tokenizer = embedded
    inputs = tokenizer(TEXT, return_tensors="pt")
    (lamp,) = tokenizer(" lamp", add_special_tokens=False)["input_ids"]
    with torch.no_grad(), gattn.edited(model, river.only()):
        alone = model(**inputs).logits[0, -1].softmax(-1)[lamp]
    kept = (float(alone) - river.graph["empty"]) / (river.graph["full"] - river.graph["empty"])
    assert kept == pytest.approx(river.faithfulness, abs=1e-4)


def test_keys_that_hear_another_text_break_induction(embedded):
    """What docs/concepts/edits.md says."""
    corrupted = "The river tall house lamp river tall green lamp river tall green"
    edit = gattn.Without("1.1", side="key", layer=2, head=[0, 1], by=corrupted)
    paths = [gattn.Without("1.1", side=side, layer=2, head=1) for side in SIDES]
    options = {"metric": "probability", "target": " lamp", "progress": False}
    found = gattn.effect(TEXT, [edit, *paths], *embedded, **options)
    assert found["plain"].round(2).iloc[0] == 0.93
    assert found["edited"].round(2).tolist() == [0.17, 0.96, 0.05, 0.97]


@pytest.mark.parametrize("suffix", ["json", "graphml"])
def test_it_is_saved_and_loaded(river, tmp_path, suffix):
    gattn.save(river, tmp_path / f"circuit.{suffix}")
    found = gattn.load(tmp_path / f"circuit.{suffix}")
    assert type(found) is type(river)
    assert nx.utils.graphs_equal(found, river)
    assert found.table().equals(river.table())
    assert found.only() == river.only()
    assert str(found) == str(river)


def test_sides_are_told_apart_in_grey(river):
    ax = river.draw()
    key = ax.get_legend().get_lines()
    names = [text.get_text() for text in ax.get_legend().get_texts()]
    assert {"its keys", "its values"} <= set(names)
    assert [line.is_dashed() for line in key] == [name == "its values" for name in names]
    drawn = {
        (to_hex(colour), dash is not None)
        for lines in ax.collections
        if lines.get_gid() == "gattn-edges"
        for colour, (_, dash) in zip(lines.get_edgecolors(), lines.get_linestyles(), strict=True)
    }
    assert drawn == {(to_hex(line.get_color()), line.is_dashed()) for line in key}


def test_it_draws_itself(river):
    ax = river.draw()
    texts = {text.get_text() for text in ax.texts}
    assert set(river) <= texts
    (lines,) = (one for one in ax.collections if one.get_gid() == "gattn-edges")
    assert len(lines.get_paths()) == len(river.table())
    assert {text.get_text() for text in ax.get_legend().get_texts()} >= {"its keys", "its values"}
    assert "paths keep" in ax.get_title()


def test_its_heads(river):
    table = river.heads().set_index(["layer", "head"])
    assert table.loc[(2, 0), "key"] == "1.1"
    sides = [table.loc[place, side] for place in table.index for side in SIDES]
    assert sum(len(one.split(", ")) for one in sides if one) == len(river.table())


@pytest.mark.slow
def test_circuits_of_several_texts(embedded):
    other = "The horse old dog house horse old dog house horse old dog"
    found = gattn.circuit(
        [TEXT, other], *embedded, target=[" lamp", " house"], units="paths", **QUIET
    )
    assert len(found.table()) == 2
    roles = found.roles()
    first = roles[(roles["layer"] == 2) & (roles["head"] == 0) & (roles["role"] == "1.1 by key")]
    assert first["share"].tolist() == [1.0]
    names = ("part", "layer", "head", "side")
    one, two = (set(zip(*(each.table()[name] for name in names), strict=True)) for each in found)
    assert found.stability == pytest.approx(len(one & two) / len(one | two))
    assert "what it hears" in found.draw().get_xlabel()


def test_paths_from_another_text(small):
    """What is left out is heard as it is on the other text; on the same text nothing changes."""
    other = IDS[::-1]
    found = gattn.circuit(IDS, small, **ANSWER, units="paths", ablation=other, **QUIET)
    assert found.faithfulness >= 0.9 - 1e-3
    with torch.no_grad(), gattn.edited(small, found.only()):
        alone = small(torch.tensor([IDS])).logits[0, -1]
    kept = float(alone[3] - alone[4]) - found.graph["empty"]
    assert kept / (found.graph["full"] - found.graph["empty"]) == pytest.approx(found.faithfulness)
    same = gattn.circuit(IDS, small, **ANSWER, units="paths", ablation=list(IDS), **QUIET)
    assert math.isnan(same.faithfulness)
    assert "other parts give the same answer" in same.notes[0]
    assert "0 of 12 paths" in str(same)
    assert not same.draw().get_legend()


def test_what_cannot_be_done_is_refused(small):
    with pytest.raises(SelectionError, match="paths, all paths"):
        gattn.circuit(IDS, small, **ANSWER, units="path", **QUIET)
    found = gattn.circuit(IDS, small, **ANSWER, units="paths", **QUIET)
    edit = found.only()
    with pytest.raises(EditError, match=r"keeps the path from '2.0'"):
        run(small, type(edit)({"decoder": [("2.0", 1, 0, "key")]}))
    found.graph["ablation"] = json.dumps(None)
    with pytest.raises(SelectionError, match="was no text"):
        found.only()


def run(model, edit):
    with torch.no_grad(), gattn.edited(model, edit):
        model(torch.tensor([IDS]))


def test_what_shows_edges_between_tokens_refuses_paths(river, embedded):
    with pytest.raises(SelectionError, match="one of edges"):
        gattn.capture(TEXT, *embedded).to_html(circuit=river)
    with pytest.raises(SelectionError, match="circuit of edges"):
        gattn.drawing.draw_circuit_graph(river)
