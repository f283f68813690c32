"""Patches and ablations, against forward hooks on the same model, and dense algebra."""

import numpy as np
import pytest
import torch
from dense_models import Dense
from patching_by_hand import DIM, HEADS, IDS, LONGER, OTHER, by_hand, logits_of, recorded

import gattn
from gattn import Ablate, Cut, Patch, Use
from gattn.errors import EditError

WHATS = ["attention", "values", "outputs"]


@pytest.fixture(scope="module")
def gpt2(tiny):
    return tiny("gpt2", "eager", torch.float64)


@pytest.mark.parametrize("tokens", [None, [1, 4]])
@pytest.mark.parametrize("what", ["values", "outputs"])
@pytest.mark.parametrize("source", [OTHER, LONGER])
def test_what_another_text_gives_is_patched_in_as_by_hooks(gpt2, what, tokens, source):
    other = recorded(gpt2, what, source)[1][: len(IDS)]
    where = slice(None) if tokens is None else tokens
    expected = by_hand(gpt2, what, lambda x: other, where)
    side = {"key" if what == "values" else "query": tokens}
    found = logits_of(gpt2, IDS, Patch(source, 1, [1, 3], what=what, **side))
    torch.testing.assert_close(found, expected, atol=1e-11, rtol=0)
    assert (found - logits_of(gpt2, IDS)).abs().max() > 1e-3


@pytest.mark.parametrize("tokens", [None, [1, 4]])
def test_values_of_a_group_are_patched_in_the_heads_that_are_named(tiny, tokens):
    model = tiny("llama", "eager", torch.float64)
    groups = model.config.num_key_value_heads
    assert groups == 2 < HEADS
    project, seen = model.model.layers[1].self_attn.v_proj, []
    hook = project.register_forward_hook(lambda module, given, result: seen.append(result))
    logits_of(model, OTHER)
    hook.remove()
    other = seen[0].unflatten(-1, (groups, DIM)).transpose(1, 2).repeat_interleave(2, 1)

    def patched(call, attention):
        if call.layer == 1:
            call.value = call.value.clone()
            for head in (1, 2):  # One of each group: its other head keeps the value they share.
                for token in tokens or range(len(IDS)):
                    call.value[:, head, token] = other[:, head, token]
        return attention

    inputs = {"input_ids": torch.tensor([IDS]), "use_cache": False}
    expected = Dense().run(model, inputs, after=patched)[0]
    found = logits_of(model, IDS, Patch(OTHER, 1, [1, 2], key=tokens, what="values"))
    # Llama's norms and its softmax are float32.
    torch.testing.assert_close(found, expected, atol=5e-6, rtol=0)
    assert (found - logits_of(model, IDS)).abs().max() > 1e-3
    whole = logits_of(model, IDS, Patch(OTHER, 1, key=tokens, what="values"))
    assert (found - whole).abs().max() > 1e-3


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert", "t5"])
def test_another_texts_attention_is_patched_in(tiny, name):
    model = tiny(name, "eager" if name == "t5" else "sdpa", torch.float64)
    dense, kept = Dense(), {}
    extra = {"decoder_input_ids": torch.tensor([[44, 2, 9]])} if name == "t5" else {}
    stack = "encoder" if name in ("t5", "bert") else "decoder"

    def keep(call, attention):
        kept[call.place] = attention
        return attention

    def put(call, attention):
        if call.place != (stack, 1):
            return attention
        attention = attention.clone()
        for query in (2, 5):
            for key in (0, 1, 5):
                attention[0, 2, query, key] = kept[stack, 1][0, 2, query, key]
        return attention

    def inputs(ids):
        return {"input_ids": torch.tensor([ids])} | extra

    dense.run(model, inputs(OTHER), after=keep)
    expected = dense.run(model, inputs(IDS), after=put)
    source = {name: x[0] for name, x in inputs(OTHER).items()} if extra else OTHER
    patch = Patch(source, 1, 2, query=[2, 5], key=[0, 1, 5], stack=stack)
    with torch.no_grad(), gattn.edited(model, patch):
        found = model(**inputs(IDS))[0]
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)
    with torch.no_grad():
        assert (found - model(**inputs(IDS))[0]).abs().max() > 1e-4


@pytest.mark.parametrize("what", WHATS)
@pytest.mark.parametrize("name", ["gpt2", "llama", "gpt-oss", "bert"])
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_the_same_text_changes_nothing(tiny, name, implementation, what):
    model = tiny(name, implementation)
    with torch.no_grad():
        expected = model(torch.tensor([IDS]))[0]
        with gattn.edited(model, Patch(IDS, what=what)):
            found = model(torch.tensor([IDS]))[0]
        with gattn.edited(model, Patch(OTHER, what=what)):
            other = model(torch.tensor([IDS]))[0]
    assert torch.equal(found, expected)
    assert not torch.equal(other, expected)


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert"])
def test_all_attention_of_another_text_is_that_texts(tiny, name):
    model = tiny(name)
    other = gattn.capture(OTHER, model)
    for source in (OTHER, other, lambda: model(torch.tensor([OTHER]))):
        with gattn.edited(model, Patch(source)):
            found = gattn.capture(IDS, model)
        for one, expected in zip(found.heads(), other.heads(), strict=True):
            np.testing.assert_array_equal(one.to_dense(), expected.to_dense())
    uses = [Use(graph, graph.layer, graph.head) for graph in other.heads()]
    with torch.no_grad(), gattn.edited(model, *uses):
        by_use = model(torch.tensor([IDS]))[0]
    with torch.no_grad(), gattn.edited(model, Patch(OTHER)):
        by_patch = model(torch.tensor([IDS]))[0]
    torch.testing.assert_close(by_patch, by_use, atol=1e-6, rtol=1e-6)


def test_zero_ablation_is_a_cut(gpt2):
    pairs = [
        (Ablate("zero", 1, 2, what="outputs"), Cut(1, 2)),
        (Ablate("zero", 1, 2, query=[3, 4], what="outputs"), Cut(1, 2, query=[3, 4])),
        (
            Ablate("zero", 1, 2, query=4, key=1, what="attention"),
            Cut(1, 2, 4, 1, renormalize=False),
        ),
        (Ablate("zero", 1, key=2, what="values"), Cut(1, key=2, renormalize=False)),
    ]
    plain = logits_of(gpt2, IDS)
    for ablation, cut in pairs:
        found = logits_of(gpt2, IDS, ablation)
        torch.testing.assert_close(found, logits_of(gpt2, IDS, cut), atol=1e-12, rtol=0)
        assert (found - plain).abs().max() > 1e-4


@pytest.mark.parametrize("what", ["values", "outputs"])
def test_means_are_over_positions_or_a_corpus(gpt2, what):
    own = by_hand(gpt2, what, lambda x: x.mean(0).expand_as(x))
    found = logits_of(gpt2, IDS, Ablate("mean", 1, [1, 3], what=what))
    torch.testing.assert_close(found, own, atol=1e-11, rtol=0)
    texts = [OTHER, LONGER, [3, 4]]
    mean = torch.cat([recorded(gpt2, what, text)[1] for text in texts]).mean(0)
    expected = by_hand(gpt2, what, lambda x: mean.expand_as(x))
    found = logits_of(gpt2, IDS, Ablate(texts, 1, [1, 3], what=what))
    torch.testing.assert_close(found, expected, atol=1e-11, rtol=0)
    assert (found - own).abs().max() > 1e-4


def test_mean_attention_is_even_or_that_of_a_corpus(gpt2):
    dense, kept = Dense(), []

    def evened(call, attention):
        is_edge = (call.scores > -torch.inf).double().expand_as(attention)
        return is_edge / is_edge.sum(-1, keepdim=True) if call.layer == 1 else attention

    even = dense.run(gpt2, {"input_ids": torch.tensor([IDS])}, after=evened)[0]
    found = logits_of(gpt2, IDS, Ablate("mean", 1, what="attention"))
    torch.testing.assert_close(found, even, atol=1e-11, rtol=0)
    texts = [OTHER, IDS[::-1]]
    for text in texts:
        dense.run(
            gpt2,
            {"input_ids": torch.tensor([text])},
            after=lambda call, a: (kept.append(a) if call.layer == 1 else None, a)[1],
        )
    mean = torch.stack(kept).mean(0)
    expected = dense.run(
        gpt2,
        {"input_ids": torch.tensor([IDS])},
        after=lambda call, a: mean if call.layer == 1 else a,
    )[0]
    found = logits_of(gpt2, IDS, Ablate(texts, 1, what="attention"))
    torch.testing.assert_close(found, expected, atol=1e-11, rtol=0)


def test_effects_of_patches_run_their_text_once(gpt2, monkeypatch):
    patches = [Patch(OTHER, 1, head, what="outputs") for head in range(4)]
    table = gattn.effect(IDS, patches, gpt2, metric="probability", target=7, progress=False)
    for head, effect in enumerate(table["effect"]):
        found, plain = (
            logits_of(gpt2, IDS, *edits)[-1].softmax(-1)[7] for edits in ([patches[head]], [])
        )
        assert effect == pytest.approx(float(found - plain), abs=1e-12)
    assert table["kind"].unique().tolist() == ["Patch"]
    assert table["head"].tolist() == [0, 1, 2, 3]
    assert table["edit"][2] == f"Patch(from_={OTHER}, layer=1, head=2, what='outputs')"
    counts = []
    handle = gpt2.register_forward_pre_hook(lambda *_: counts.append(1))
    gattn.effect(IDS, patches, gpt2, progress=False)
    handle.remove()
    assert len(counts) == 3  # The other text, the plain run, and all four at once.


def test_patches_count_with_a_cache_too(tiny):
    model = tiny("llama", dtype=torch.float64)
    whole = torch.tensor([LONGER])
    for edit in (Patch(LONGER[::-1], 1, 2), Ablate([OTHER, IDS], 1, 2, what="values")):
        with torch.no_grad(), gattn.edited(model, edit):
            expected = model(whole).logits[0, -1]
            first = model(whole[:, :-1], use_cache=True)
            found = model(whole[:, -1:], past_key_values=first.past_key_values).logits[0, -1]
        torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)
    first = model(whole[:, :-1], use_cache=True).past_key_values
    only = Ablate("mean", 1)
    with pytest.raises(EditError, match="only the 1 from 7 to 7"), gattn.edited(model, only):
        model(whole[:, -1:], past_key_values=first)


def test_means_of_values_with_a_cache_are_over_all_keys_so_far(tiny):
    model, whole = tiny("llama", dtype=torch.float64), torch.tensor([LONGER])
    with torch.no_grad(), gattn.edited(model, Ablate("mean", 1, 2, what="values")):
        expected = model(whole).logits[0, -1]
        first = model(whole[:, :-1], use_cache=True)
        found = model(whole[:, -1:], past_key_values=first.past_key_values).logits[0, -1]
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)


def test_outer_edits_do_not_reach_the_other_text(gpt2):
    with gattn.edited(gpt2, Cut(0, 1)):
        inner = logits_of(gpt2, IDS, Patch(OTHER, 1, what="outputs"))
    together = logits_of(gpt2, IDS, Cut(0, 1), Patch(OTHER, 1, what="outputs"))
    assert torch.equal(inner, together)


@pytest.mark.parametrize("kind", ["GATConv", "GATv2Conv", "TransformerConv"])
def test_attention_on_graphs_is_patched(kind):
    nets = pytest.importorskip("torch_geometric.nn")
    torch.manual_seed(0)

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.one = getattr(nets, kind)(5, 4, heads=2)
            self.two = getattr(nets, kind)(8, 3, heads=2)

        def forward(self, x, edges):
            return self.two(self.one(x, edges).relu(), edges)

    model, (x, other) = Net().eval(), torch.randn(2, 7, 5)
    edges = torch.randint(0, 7, (2, 20)).unique(dim=1)
    edges = edges[:, edges[0] != edges[1]]
    with torch.no_grad():
        plain = model(x, edges)
        with gattn.edited(model, Patch(lambda: model(x, edges))):
            assert torch.equal(model(x, edges), plain)
        with gattn.capturing(model) as expected:
            model(other, edges)
        patch = Patch(lambda: model(other, edges))
        with gattn.edited(model, patch), gattn.capturing(model) as found:
            assert not torch.allclose(model(x, edges), plain)
        for one, wanted in zip(found.trace.heads(), expected.trace.heads(), strict=True):
            np.testing.assert_array_equal(one.to_dense(), wanted.to_dense())
        with gattn.edited(model, Ablate("zero", what="attention")):
            zero = model(x, edges)
        with gattn.edited(model, Cut(renormalize=False)):
            torch.testing.assert_close(zero, model(x, edges))
        with gattn.edited(model, Ablate("mean", what="attention")), gattn.capturing(model) as even:
            model(x, edges)
    for head in even.trace.heads():
        degree = np.diff(head.graph.pointer.numpy())
        np.testing.assert_allclose(head.attention, 1 / degree[head.query], rtol=1e-6)


def test_parallel_edges_are_not_told_apart():
    nets = pytest.importorskip("torch_geometric.nn")
    model = nets.GATConv(5, 4).eval()
    edges = torch.tensor([[0, 0, 1, 2], [1, 1, 2, 0]])
    with pytest.raises(EditError, match="several edges run from one node"), torch.no_grad():
        gattn.effect(
            lambda: model(torch.ones(3, 5), edges),
            [Ablate("mean", what="attention")],
            model,
            metric=lambda x: float(x[0, 0]),
            progress=False,
        )


@pytest.mark.parametrize(("what", "side"), [("outputs", "query"), ("values", "key")])
def test_positions_that_both_texts_have_are_patched_in_a_longer_one(gpt2, what, side):
    other = recorded(gpt2, what, OTHER[:4])[1]
    expected = by_hand(gpt2, what, lambda x: torch.cat([other, x[4:]]), [2, 3])
    found = logits_of(gpt2, IDS, Patch(OTHER[:4], 1, [1, 3], what=what, **{side: [2, 3]}))
    torch.testing.assert_close(found, expected, atol=1e-11, rtol=0)


def test_rows_of_attention_that_both_texts_have_are_patched_in_a_longer_one(gpt2):
    given = gattn.capture(OTHER[:4], gpt2, keep=gattn.All())[1, 2].to_dense()
    with gattn.edited(gpt2, Patch(OTHER[:4], 1, 2, query=3)):
        found = gattn.capture(IDS, gpt2, keep=gattn.All())[1, 2].to_dense()
    plain = gattn.capture(IDS, gpt2, keep=gattn.All())[1, 2].to_dense()
    expected = plain.copy()
    expected[3] = 0
    expected[3, :4] = given[3]
    np.testing.assert_allclose(found, expected, atol=1e-12)
    assert np.abs(found - plain).max() > 1e-3


def test_edges_that_both_texts_have_are_patched_in_a_longer_one(tiny):
    bert = tiny("bert", "eager", torch.float64)
    given, plain = (
        gattn.capture(ids, bert, keep=gattn.All())[1, 2].to_dense() for ids in (OTHER[:4], IDS)
    )
    with gattn.edited(bert, Patch(OTHER[:4], 1, 2, query=[0, 3], key=[1, 2])):
        found = gattn.capture(IDS, bert, keep=gattn.All())[1, 2].to_dense()
    where = np.ix_([0, 3], [1, 2])
    plain[where] = given[where]
    np.testing.assert_allclose(found, plain, atol=1e-12)


@pytest.mark.parametrize("query", [None, 2])
def test_means_of_outputs_are_of_what_earlier_edits_left(gpt2, query):
    cut = Cut(layer=1, head=[1, 3], key=0)
    where = slice(None) if query is None else query
    own = by_hand(gpt2, "outputs", lambda x: x.mean(0).expand_as(x), where, edits=[cut])
    found = logits_of(gpt2, IDS, cut, Ablate("mean", 1, [1, 3], query=query))
    torch.testing.assert_close(found, own, atol=1e-11, rtol=0)
    uncut = by_hand(gpt2, "outputs", lambda x: x.mean(0).expand_as(x), where)
    assert (found - uncut).abs().max() > 1e-3
