"""Scores taken apart, held to dense algebra, to hand-made models and to the models' own scores."""

from dataclasses import replace

import matplotlib.pyplot as plt
import networkx as nx
import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

import gattn
from benchmarks import zoo
from gattn.errors import CaptureError, GattnError, SelectionError, ShapeError

IDS = [5, 17, 42, 17, 8, 33, 59, 3, 21]


@pytest.fixture
def gpt2(tiny):
    return tiny("gpt2", dtype=torch.float64)


def states(model, ids):
    with torch.no_grad():
        return model(torch.tensor([ids]), output_hidden_states=True).hidden_states


def test_the_first_layer_is_embeddings_alone(gpt2):
    """GPT-2 by hand: a layer norm held fixed, and the parts of q and k by its own matrices."""
    found = gattn.why(IDS, gpt2, layer=0, head=1, query=6, key=2)
    gpt2, ids = gpt2.transformer, torch.tensor(IDS)
    block = gpt2.h[0]
    heads, width = gpt2.config.n_head, gpt2.config.n_embd
    parts = torch.stack([gpt2.wte(ids), gpt2.wpe(torch.arange(len(ids)))])
    deviation = (parts.sum(0).var(-1, unbiased=False) + block.ln_1.eps).sqrt()[:, None]
    normed = (parts - parts.mean(-1, keepdim=True)) / deviation * block.ln_1.weight
    normed = torch.cat([normed, block.ln_1.bias.expand(1, len(ids), width)])
    weight, bias = block.attn.c_attn.weight, block.attn.c_attn.bias
    q, k, _ = (normed @ weight).split(width, dim=-1)
    q = torch.cat([q[:2], q[2:] + bias[:width]])
    k = torch.cat([k[:2], k[2:] + bias[width : 2 * width]])
    q, k = (x.unflatten(-1, (heads, -1))[:, :, 1] for x in (q, k))
    expected = torch.einsum("ad,bd->ab", q[:, 6], k[:, 2]) * q.shape[-1] ** -0.5
    matrix = found.matrix()
    assert matrix["query_part"].to_numpy().tolist() == ["wte", "wpe", "bias"]
    np.testing.assert_allclose(matrix, expected.detach(), atol=1e-12)
    assert found.error < 1e-12


def test_heads_and_mlps_by_hand(gpt2):
    """A head's part is what its values, and the output projection's rows, give."""
    found = gattn.why(IDS, gpt2, layer=1, head=0, query=7, key=3)
    names = [str(one) for one in found.writers]
    heads = gpt2.config.n_head
    of_heads = [f"0.{n}" for n in range(heads)]
    assert names == ["wte", "wpe", *of_heads, "bias 0", "mlp 0", "bias"]
    before, after = states(gpt2, IDS)[:2]
    trace = gattn.capture(IDS, gpt2)
    gpt2 = gpt2.transformer
    block, other = gpt2.h[0], gpt2.h[1]
    with torch.no_grad():
        normed = block.ln_1(before)
        values = block.attn.c_attn(normed).split(gpt2.config.n_embd, -1)[2][0]
        values = values.unflatten(-1, (heads, -1))
        attention = torch.as_tensor(np.stack([trace[0, n].to_dense() for n in range(heads)]))
        matrices = block.attn.c_proj.weight.unflatten(0, (heads, -1))
        written = torch.einsum("hij,jhv,hvd->hid", attention, values, matrices)
        middle = before[0] + written.sum(0) + block.attn.c_proj.bias
        mlp = block.mlp(block.ln_2(middle))
        parts = [gpt2.wte.weight[IDS], gpt2.wpe.weight[: len(IDS)], *written]
        parts = torch.stack([*parts, block.attn.c_proj.bias.expand_as(mlp), mlp])
        torch.testing.assert_close(parts.sum(0), after[0], atol=1e-6, rtol=0)
        deviation = (after[0].var(-1, unbiased=False) + other.ln_1.eps).sqrt()[:, None]
        normed = (parts - parts.mean(-1, keepdim=True)) / deviation * other.ln_1.weight
        q, k = (normed @ other.attn.c_attn.weight).split(gpt2.config.n_embd, -1)[:2]
        q, k = (x.unflatten(-1, (heads, -1))[:, :, 0] for x in (q, k))
        expected = torch.einsum("ad,bd->ab", q[:, 7], k[:, 3]) * q.shape[-1] ** -0.5
    np.testing.assert_allclose(found.matrix()[:-1, :-1], expected, atol=1e-6)


FAMILIES = ["gpt2", "llama", "qwen3", "gemma2", "gpt_oss", "bert", "albert", "olmo2", "gpt_neox"]
FURTHER = [
    "opt",
    "mistral",
    "cohere",
    "granite",
    "glm4",
    "distilbert",
    "modernbert",
    "vit",
    "falcon",
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name", [*FAMILIES, *(pytest.param(x, marks=pytest.mark.slow) for x in FURTHER)]
)
def test_tables_sum_to_the_models_scores(name):
    specimen = zoo.specimen(name)
    model = specimen.model
    inputs = {n: x[:1] if torch.is_tensor(x) else x for n, x in specimen.inputs.items()}
    head = gattn.capture(inputs, model, scores=True)[1, 1]
    graph = head.to_networkx()
    scores = {(key, query): x for key, query, x in graph.edges(data="score") if key >= 0}
    for (key, query), score in list(scores.items())[-3:]:
        found = gattn.why(inputs, model, layer=1, head=1, query=query, key=key)
        table = found.table()
        limit = 1e-5 * float(found.queries.sum(0).norm(dim=-1).max())
        limit *= float(found.keys.sum(0).norm(dim=-1).max())
        assert table["score"].sum() == pytest.approx(score, abs=limit)
        assert table["share"].sum() == pytest.approx(1)
        assert ("soft cap" in table["key_part"].tolist()) == (found.softcap is not None)
        assert found.error < 1e-5
        assert any(str(one).startswith("0.") for one in found.writers)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("stack", ["encoder", "decoder"])
def test_stacks_are_told_apart(stack):
    specimen = zoo.specimen("t5")
    model = specimen.model
    inputs = {n: x[:1] if torch.is_tensor(x) else x for n, x in specimen.inputs.items()}
    found = gattn.why(inputs, model, layer=1, head=1, stack=stack, query=-1, key=0)
    graph = gattn.capture(inputs, model, scores=True)[stack][1, 1].to_networkx()
    score = graph.edges[0, len(found.tokens) - 1]["score"]
    table = found.table()
    limit = 1e-5 * float(found.queries.sum(0).norm(dim=-1).max())
    limit *= float(found.keys.sum(0).norm(dim=-1).max())
    assert table["score"].sum() == pytest.approx(score, abs=limit)
    assert (table["query_part"] == "added").sum() == 1  # A bias by distance.
    run = gattn.why(lambda: model(**inputs), model, layer=1, head=1, stack=stack, query=-1, key=0)
    np.testing.assert_array_equal(run.matrix(), found.matrix())
    with pytest.raises(SelectionError, match="several stacks of self-attention"):
        gattn.why(inputs, model, layer=1, head=1)
    with pytest.raises(
        SelectionError, match=r"'cross' is cross-attention.*'encoder' and 'decoder'"
    ):
        gattn.why(inputs, model, layer=1, head=1, stack="cross")


def held(model, inputs):
    """Hold a model's norms and the MLP of its first layer as they are in a run, by hooks."""
    runs = {}

    def note(module, given, result):
        runs[module] = given[0], result

    def norm(module, given, _):
        x, (before, after) = given[0], runs[module]
        if not isinstance(module, torch.nn.LayerNorm):
            return x * (after / before)
        deviation = (before.var(-1, unbiased=False, keepdim=True) + module.eps).sqrt()
        return (x - x.mean(-1, keepdim=True)) / deviation * module.weight + module.bias

    norms = [x for x in model.modules() if type(x).__name__.endswith("Norm")]
    ends = ("layers.0.mlp.down_proj", "layer.0.output.dense")
    (mlp,) = (x for name, x in model.named_modules() if name.endswith(ends))
    hooks = [x.register_forward_hook(note) for x in (*norms, mlp)]
    with torch.no_grad():
        model(**inputs)
    for one in hooks:
        one.remove()
    for one in norms:
        one.register_forward_hook(norm)
    mlp.register_forward_hook(lambda module, *_: runs[module][1])


def scores_of(inputs, model, tokens):
    graph = gattn.capture(inputs, model, scores=True)[1, 1].to_networkx()
    found = torch.full((tokens, tokens), -torch.inf, dtype=torch.double)
    for key, query, score in graph.edges(data="score"):
        found[query, key] = score
    return found


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["bert", "llama", "olmo2", "gemma2"])
def test_a_heads_part_is_what_scores_lose_when_it_is_cut(name):
    """The model itself runs without a head, its norms and its MLP held; norms are of four kinds."""
    specimen = zoo.specimen(name)
    model = specimen.model.double()
    inputs = {n: x[:1] if torch.is_tensor(x) else x for n, x in specimen.inputs.items()}
    found = gattn.why(inputs, model, layer=1, head=1)
    held(model, inputs)
    plain = scores_of(inputs, model, len(found.tokens))
    assert torch.equal(plain.isinf(), found.scores.isinf())
    torch.testing.assert_close(plain, found.scores, atol=1e-6, rtol=0)
    names = [str(one) for one in found.writers]
    for head in range(model.config.num_attention_heads):
        at = names.index(f"0.{head}")
        query, key = (x.sum(0) - x[at] for x in (found.queries, found.keys))
        expected = query @ key.T
        if found.softcap is not None:
            expected = found.softcap * (expected / found.softcap).tanh()
        with gattn.edited(model, gattn.Cut(layer=0, head=head, renormalize=False)):
            scores = scores_of(inputs, model, len(found.tokens))
        seen = ~plain.isinf()
        torch.testing.assert_close(scores[seen], expected[seen], atol=1e-6, rtol=0)
        assert float((scores - plain)[seen].abs().max()) > 1e-4


def planted(tiny):
    """A Llama in which the keys of layer 1 read only what head 0.1 writes."""
    model = tiny("llama", dtype=torch.float64)
    width, half = model.config.hidden_size, model.config.hidden_size // 2
    size = model.model.layers[0].self_attn.head_dim
    with torch.no_grad():
        model.model.embed_tokens.weight[:, half:] = 0
        first, second = model.model.layers[:2]
        out = first.self_attn.o_proj.weight
        out[half:] = 0
        out[half:, size : 2 * size] = torch.randn(width - half, size, dtype=torch.double)
        out[:half, size : 2 * size] = 0
        first.mlp.down_proj.weight[half:] = 0
        second.self_attn.k_proj.weight[:, :half] = 0
    return model


def test_a_planted_composition_is_found(tiny):
    model = planted(tiny)
    found = gattn.why(IDS, model, layer=1, head=0, query=8, key=4)
    by_key = found.matrix().sum("query_part").to_series()
    assert abs(by_key["0.1"]) > 0.01
    assert by_key.drop("0.1").abs().max() < 1e-9 * abs(by_key["0.1"])
    assert by_key.sum() == pytest.approx(found.scores[8, 4].item(), abs=1e-6)
    table = found.without("key").set_index("part")
    alone = found.without("key").iloc[0]
    assert alone["part"] == "0.1"
    assert table["change"].drop("0.1").abs().max() < 1e-6  # Its norms are single.
    # All scores are 0 without it, so attention is even.
    assert alone["without"] == pytest.approx(1 / 9)


def test_attention_without_a_part_is_the_softmax_without_it(tiny):
    model = tiny("gpt2", dtype=torch.float64)
    found = gattn.why(IDS, model, layer=1, head=1, query=[5, 8], key=[0, 2])
    query, key = found.queries.sum(0), found.keys.sum(0)
    for side in ("query", "key"):
        table = found.without(side).set_index("part")
        for n, name in enumerate(map(str, found.writers)):
            q, k = (
                (query - found.queries[n], key) if side == "query" else (query, key - found.keys[n])
            )
            scores = (q @ k.T).masked_fill(torch.ones(9, 9).triu(1).bool(), -torch.inf)
            expected = scores.softmax(-1)[[5, 8]][:, [0, 2]].sum() / 2
            assert table["without"][name] == pytest.approx(float(expected), abs=1e-9)
    attention = found.attention[[5, 8]][:, [0, 2]].sum() / 2
    assert table["attention"].tolist() == pytest.approx([float(attention)] * len(table))


@pytest.mark.parametrize("name", ["gpt2", "gemma2"])
def test_the_first_order_is_the_derivative(tiny, name):
    """Gemma 2 caps its scores."""
    model = tiny(name, "eager" if name == "gemma2" else "sdpa", dtype=torch.float64)
    found = gattn.why(IDS, model, layer=1, head=0, query=8, key=5)
    query, key = found.queries.sum(0)[8], found.keys.sum(0)
    table = found.without("key").set_index("part")
    cap = found.softcap or 1e9
    for n, name in enumerate(map(str, found.writers)):

        def attention(share, n=n):
            raw = (key - share * found.keys[n]) @ query
            scores = cap * (raw / cap).tanh() + (0 if found.bias is None else found.bias[8])
            return scores.masked_fill(found.scores[8] == -torch.inf, -torch.inf).softmax(-1)[5]

        share = torch.zeros((), dtype=torch.double, requires_grad=True)
        (slope,) = torch.autograd.grad(attention(share), share)
        assert table["first_order"][name] == pytest.approx(float(slope), abs=1e-7)


def test_sinks_take_part(tiny):
    model = tiny("gpt-oss", "eager")
    found = gattn.why(IDS, model, layer=1, head=0)
    assert found.sink is not None
    nothing = found.attention_of(list(range(9)), found.queries.sum(0) @ found.keys.sum(0).T)
    torch.testing.assert_close(nothing, found.attention, atol=1e-5, rtol=0)
    assert float(found.attention.sum(-1).max()) < 1


@pytest.mark.parametrize("name", ["gpt2", "gemma2", "gpt_oss", "bloom", "t5"])
@pytest.mark.parametrize("form", ["edge", "edges", "query", "queries", "head"])
@pytest.mark.filterwarnings("ignore")
def test_contrasts_are_differences_of_the_models_own_scores(name, form):
    """Of capped scores, those with a sink, and those with biases by position."""
    specimen = zoo.specimen(name)
    inputs = {n: x[:1] if torch.is_tensor(x) else x for n, x in specimen.inputs.items()}
    which = {"layer": 1, "head": 1, "stack": "encoder" if name == "t5" else None}
    found = gattn.why(inputs, specimen.model, **which)
    size = len(found.tokens)
    query = {"edge": [-1], "edges": [-1, -2], "query": [-1], "queries": [-2, -1]}.get(form)
    query = list(range(size)) if query is None else [size + n for n in query]
    key = {"edge": [2], "edges": [1, 3]}.get(form)
    asked = found.among(query, key)
    scores, attention = found.scores[query], found.attention[query]
    seen = ~scores.isinf()
    scores = scores.masked_fill(~seen, 0.0)
    attention = attention / attention.sum(-1, keepdim=True)  # Without the sink.
    mean = (attention * scores).sum(-1)
    here = mean if key is None else scores[:, key].mean(-1)
    even = (scores * seen).sum(-1) / seen.sum(-1)
    expected = {
        0: (here - scores[:, 0]).mean(),
        None: (here - even if key is None else here).mean(),
    }
    if key is not None:
        expected["mean"] = (here - mean).mean()
    for contrast, value in expected.items():
        table = asked.table(contrast)
        limit = 1e-5 * float(found._sizes().max())
        assert table["score"].sum() == pytest.approx(float(value), abs=limit)
        assert table.attrs["total"] == pytest.approx(float(value), abs=limit)
    if key is None:
        with pytest.raises(SelectionError, match="is what is asked about"):
            asked.table("mean")


def test_a_key_that_not_all_queries_may_attend_to_is_no_contrast(gpt2):
    found = gattn.why(IDS, gpt2, layer=1, head=0)
    with pytest.raises(SelectionError, match="expected contrast= a key that all queries"):
        found.table(4)
    assert found.among([4, 8], None).table(4)["score"].notna().all()


def test_shares_near_zero_are_told(gpt2):
    found = gattn.why(IDS, gpt2, layer=1, head=0, query=8, key=3)
    table = found.table()
    sizes = table["score"].abs().sum()
    told = any("cancel" in note for note in table.notes)
    assert told == (sizes > 20 * abs(table["score"].sum()))
    query, key = found.totals()
    # Another query, at right angles to the key.
    turned = found.queries[:, 8] - (query[8] @ key[3]) / key[3].square().sum() * key[3] / len(
        found.writers
    )
    queries = found.queries.clone()
    queries[:, 8] = turned
    table = replace(found, queries=queries).table()
    assert abs(table["score"].sum()) < 1e-9
    assert any("terms of opposite sign cancel" in note for note in table.notes)


def test_a_sink_is_told(tiny):
    model = tiny("gpt-oss", "eager")
    found = gattn.why(IDS, model, layer=1, head=0, query=8, key=3)
    assert found.sink == pytest.approx(float(model.model.layers[1].self_attn.sinks[0].detach()))
    assert any(f"a sink whose score is {found.sink:.3g}" in note for note in found.table().notes)


def test_what_was_asked_is_said(gpt2):
    found = gattn.why(IDS, gpt2, layer=1, head=0, query=8, key=3)
    for table in (found.table(5), found.matrix(5)):
        assert table.computed_from.endswith("query 8 “21”, key 3 “17”, less that of key 5 “33”")
        assert table.notes == ["norms are held as they are in this run"]
    assert found.table("mean").computed_from.endswith("less that of the mean key")
    row = gattn.why(IDS, gpt2, layer=1, head=0, query=8)
    assert row.table().notes[1:] == row.matrix().notes[1:] != []
    assert "less the mean over all keys" in row.table().notes[1]


def test_tokens_without_an_edge_among_those_asked_about_are_not_named(gpt2):
    found = gattn.why(IDS, gpt2, layer=1, head=0, query=[2, 5, 8], key=[3, 7, 6])
    assert (found.query, found.key) == ((5, 8), (3, 7, 6))
    last = gattn.why(IDS, gpt2, layer=1, head=0, query=[2, 5], key=[3, 7])
    assert (last.query, last.key) == ((5,), (3,))
    one = gattn.why(IDS, gpt2, layer=1, head=0, query=5, key=3)
    assert last.table().computed_from == one.table().computed_from
    assert last.without("key").to_dict() == one.without("key").to_dict()
    plt.close(drawn := last.draw().figure)
    assert "(2)" not in str([text.get_text() for text in drawn.axes[0].texts])


def test_pictures_sum_the_smaller_parts_up(gpt2):
    found = gattn.why(IDS, gpt2, layer=1, head=0, query=8, key=3)
    for most in (2, 4, 9):
        shown = found.draw(most=most).images[0].get_array()
        count = min(most, len(found.writers))
        assert shown.size == count**2
        assert float(shown.sum()) == pytest.approx(float(found.matrix().sum()))
        plt.close("all")
    with pytest.raises(SelectionError, match="most must be a whole number"):
        found.draw(most=0)


def test_a_whole_head_as_a_graph(gpt2):
    found = gattn.why(IDS, gpt2, layer=1, head=1)
    graph = found.to_networkx()
    assert nx.is_directed_acyclic_graph(graph)
    assert set(graph.predecessors("1.1")) == {str(one) for one in found.writers}
    total = found.matrix().sum().item()
    for side in ("query", "key"):
        assert sum(x for *_, x in graph.edges(data=side)) == pytest.approx(total)
    table = found.without("key")
    assert table["change"].between(0, 1).all()
    assert table["change"].is_monotonic_decreasing


def test_parts_of_ones_own(gpt2):
    before = states(gpt2, IDS)[1][0]
    direction = normalize(torch.randn(before.shape[1], dtype=torch.double), dim=0)
    feature = (before @ direction)[:, None] * direction
    found = gattn.why(IDS, gpt2, layer=1, head=0, query=6, key=6, parts={"feature": feature})
    assert [str(one) for one in found.writers] == ["feature", "error", "bias"]
    plain = gattn.why(IDS, gpt2, layer=1, head=0, query=6, key=6)
    assert found.matrix().sum().item() == pytest.approx(plain.matrix().sum().item())
    with pytest.raises(ShapeError, match=r"'feature' must be a tensor \(tokens, dim\)"):
        gattn.why(IDS, gpt2, layer=1, head=0, parts={"feature": feature[1:]})
    for name in ("error", "bias", "1.0"):
        with pytest.raises(SelectionError, match=f"name '{name}'"):
            gattn.why(IDS, gpt2, layer=1, head=0, parts={name: feature})
    for wrong in ({}, feature):
        with pytest.raises(SelectionError, match="a mapping from a name"):
            gattn.why(IDS, gpt2, layer=1, head=0, parts=wrong)


def test_edits_that_are_open_take_part(gpt2):
    plain = gattn.why(IDS, gpt2, layer=1, head=0, query=8, key=3)
    with gattn.edited(gpt2, gattn.Cut(layer=0, head=1, renormalize=False)):
        found = gattn.why(IDS, gpt2, layer=1, head=0, query=8, key=3)
    by_key = found.matrix().sum("query_part").to_series()
    assert by_key["0.1"] == 0
    assert plain.matrix().sum("query_part").to_series()["0.1"] != 0


@pytest.mark.parametrize(
    "edit",
    [
        gattn.Scale(0.5, layer=1, head=0),
        gattn.Cut(layer=1, head=0, key=2, renormalize=False),
        gattn.Swap(normalizer=gattn.Sparsemax(), layer=1, head=0),
    ],
)
def test_attention_that_is_no_softmax_has_no_without(gpt2, edit):
    with gattn.edited(gpt2, edit):
        found = gattn.why(IDS, gpt2, layer=1, head=0, query=8, key=3)
    plain = gattn.why(IDS, gpt2, layer=1, head=0, query=8, key=3)
    np.testing.assert_allclose(found.matrix(), plain.matrix(), atol=1e-12)
    with pytest.raises(CaptureError, match="not the softmax of its scores"):
        found.without("key")
    with gattn.edited(gpt2, gattn.Cut(layer=1, head=0, key=2)):
        cut = gattn.why(IDS, gpt2, layer=1, head=0, query=8, key=3)
    assert cut.without("key")["attention"][0] > plain.without("key")["attention"][0]


def test_scores_that_are_no_numbers_are_no_sum(gpt2):
    found = gattn.why(IDS, gpt2, layer=1, head=0)
    with pytest.raises(CaptureError, match="do not sum"):
        replace(found, scores=found.scores * torch.nan).verified("the head")
    with pytest.raises(CaptureError, match="do not sum"):
        replace(found, scores=found.scores + 0.01).verified("the head")


def test_a_path_that_is_cut_here_or_later_is_refused(gpt2):
    for layer in (1, None):
        with (
            pytest.raises(CaptureError, match="is open, which computes what layer 1"),
            gattn.edited(gpt2, gattn.Without("0.1", layer=layer)),
        ):
            gattn.why(IDS, gpt2, layer=1, head=0)
    with gattn.edited(gpt2, gattn.Without("wte", side="value", layer=0)):
        found = gattn.why(IDS, gpt2, layer=1, head=0)
        trace = gattn.capture(IDS, gpt2)
    np.testing.assert_allclose(found.attention, trace[1, 0].to_dense(), atol=1e-6)


def test_nothing_of_the_model_changes(gpt2):
    before = states(gpt2, IDS)
    hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in gpt2.modules()]
    gattn.why(IDS, gpt2, layer=1, head=0)
    assert torch.is_grad_enabled()
    assert hooks == [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in gpt2.modules()]
    assert all(p.grad is None for p in gpt2.parameters())
    for one, other in zip(before, states(gpt2, IDS), strict=True):
        assert torch.equal(one, other)


def test_what_cannot_be_taken_apart_is_refused(tiny, gpt2):
    with pytest.raises(CaptureError, match=r"try model\.float\(\)"):
        gattn.why(IDS, tiny("gpt2", dtype=torch.bfloat16), layer=1, head=0)
    with pytest.raises(SelectionError, match="No head 9"):
        gattn.why(IDS, gpt2, layer=1, head=9)
    with pytest.raises(SelectionError, match="No layer 7"):
        gattn.why(IDS, gpt2, layer=7, head=0)
    with pytest.raises(SelectionError, match="no edge from the key"):
        gattn.why(IDS, gpt2, layer=1, head=0, query=2, key=5)
    found = gattn.why(IDS, gpt2, layer=1, head=0)
    with pytest.raises(SelectionError, match="is what is asked about"):
        found.table("mean")
    with pytest.raises(GattnError, match="side is"):
        found.without("value")
