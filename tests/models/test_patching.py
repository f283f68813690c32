"""Patches and ablations, against forward hooks on the same model, and dense algebra."""

from contextlib import contextmanager

import numpy as np
import pytest
import torch
from dense_models import Dense
from hand_written import ROOT, TOKENS, WIDTH, made

import gattn
from gattn import Ablate, Cut, Only, Patch, Use
from gattn.errors import CaptureError, EditError

IDS = [5, 17, 42, 17, 8, 33]
OTHER = [44, 2, 9, 30, 17, 51]
LONGER = [*OTHER, 12, 7]
WHATS = ["attention", "values", "outputs"]
HEADS, DIM = 4, 8


@pytest.fixture(scope="module")
def gpt2(tiny):
    return tiny("gpt2", "eager", torch.float64)


def logits_of(model, ids, *edits):
    with torch.no_grad():
        if not edits:
            return model(torch.tensor([ids])).logits[0]
        with gattn.edited(model, *edits):
            return model(torch.tensor([ids])).logits[0]


@contextmanager
def hooked(model, what, change):
    """Change values or outputs (tokens, heads, dim) of each layer by hand: change(layer, x)."""
    hooks = []
    for number, block in enumerate(model.transformer.h):

        def of_values(module, given, result, number=number):
            query, key, value = result.split(HEADS * DIM, dim=-1)
            value = change(number, value[0].unflatten(-1, (HEADS, DIM)))
            return torch.cat([query, key, value.flatten(-2)[None]], dim=-1)

        def of_outputs(module, given, number=number):
            return (change(number, given[0][0].unflatten(-1, (HEADS, DIM))).flatten(-2)[None],)

        if what == "values":
            hooks.append(block.attn.c_attn.register_forward_hook(of_values))
        else:
            hooks.append(block.attn.c_proj.register_forward_pre_hook(of_outputs))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def recorded(model, what, ids):
    kept = {}

    def keep(layer, x):
        kept[layer] = x.clone()
        return x

    with hooked(model, what, keep):
        logits_of(model, ids)
    return kept


def by_hand(model, what, new, tokens=slice(None), layer=1, heads=(1, 3)):
    """Run the model with `new` (tokens, heads, dim) in some heads of a layer."""

    def change(number, x):
        if number != layer:
            return x
        x = x.clone()
        for head in heads:
            x[tokens, head] = new(x)[tokens, head]
        return x

    with hooked(model, what, change):
        return logits_of(model, IDS)


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


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda: Patch(OTHER, what="scores"), EditError, "what is one of"),
        (lambda: Patch(OTHER, query=2, what="values"), EditError, "belong to a key"),
        (lambda: Patch(OTHER, key=2, what="outputs"), EditError, "belong to a query"),
        (lambda: Patch(None), EditError, "Patch takes the text"),
        (lambda: Patch(3), EditError, "Patch takes the text"),
        (lambda: Ablate("median"), EditError, "'zero', 'mean' or a list of texts"),
        (lambda: Ablate([]), EditError, "'zero', 'mean' or a list of texts"),
        (lambda: Patch(OTHER[:4], 1), EditError, "has 4 tokens, but the text has 6"),
        (lambda: Patch(OTHER[:4], 1, what="values"), EditError, "has 4 tokens"),
        (lambda: Ablate([OTHER, LONGER], 1, what="attention"), EditError, r"these have \[6, 8\]"),
        (lambda: Patch(OTHER, 7), EditError, "layer 7"),
        (lambda: Patch(OTHER, 1, query=2, key=4), EditError, "nothing to edit"),
    ],
)
def test_what_cannot_be_patched_is_refused(gpt2, make, error, says):
    with pytest.raises(error, match=says):
        logits_of(gpt2, IDS, make())


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Patch(OTHER, 1), f"Patch(from_={OTHER}, layer=1)"),
        (lambda: Ablate([OTHER], 1), f"Ablate(by={[OTHER]}, layer=1)"),
        (lambda: Only([(1, 0, 5, 4)], ablation=OTHER), f"Only(1 edge, ablation={OTHER})"),
    ],
)
def test_traces_hold_the_edit_as_it_was_given(gpt2, make, text):
    with gattn.edited(gpt2, make()):
        trace = gattn.capture(IDS, gpt2)
    assert trace.edits == (make(),)
    assert [edit.record.text for edit in trace.edits] == [text]
    for other in (Patch(LONGER, 1), Ablate([LONGER], 1), Only([(1, 0, 5, 4)], ablation=LONGER)):
        assert trace.edits != (other,)


def test_an_edit_by_a_trace_equals_itself(gpt2):
    patch = Patch(gattn.capture(OTHER, gpt2), 1)
    with gattn.edited(gpt2, patch):
        trace = gattn.capture(IDS, gpt2)
    assert trace.edits == (patch,)
    assert trace.edits != (Patch(gattn.capture(IDS, gpt2), 1),)


def test_traces_patch_attention_alone_of_all_tokens(gpt2):
    trace = gattn.capture(OTHER, gpt2)
    with pytest.raises(EditError, match="give the text"):
        logits_of(gpt2, IDS, Patch(trace, what="values"))
    some = gattn.capture(OTHER, gpt2, heads=[0, 3])
    for heads, lacking in ((2, r"\[2\]"), (None, r"\[1, 2\]")):
        with pytest.raises(EditError, match=f"lacks the heads {lacking}"):
            logits_of(gpt2, IDS, Patch(some, 1, heads))
    first = gattn.capture(OTHER, gpt2, heads=[0])
    with pytest.raises(EditError, match=r"lacks the heads \[1\]"):
        logits_of(gpt2, IDS, Patch(first, 1, 1))
    thinned = gattn.capture(OTHER, gpt2, keep=gattn.TopK(1))
    with pytest.raises(EditError, match=r"dropped 15 of 21: capture it with keep=gattn.All\(\)"):
        logits_of(gpt2, IDS, Patch(thinned, 1))
    every = gattn.capture(OTHER, gpt2, keep=gattn.All())
    found, expected = (logits_of(gpt2, IDS, Patch(x, 1)) for x in (every, OTHER))
    assert torch.equal(found, expected)


def test_heads_with_calls_of_their_own_are_patched_from_traces():
    def loop(q, k, v):
        heads = [(q[:, h] @ k[:, h].mT / ROOT).softmax(-1) @ v[:, h] for h in range(HEADS)]
        return torch.stack(heads, 1)

    (model, x), other = made(loop, 1), torch.randn(1, TOKENS, WIDTH).double()
    trace = gattn.capture(lambda: model(other), model, keep=gattn.All())
    kept = model.dense(other, is_causal=False)[0][1][0]

    def patched(attention, layer):
        attention = attention.clone()
        attention[:, 2] = kept[2] if layer else attention[:, 2]
        return attention

    with torch.no_grad():
        expected = model.dense(x, is_causal=False, change=patched)[1]
        with gattn.edited(model, Patch(trace, 1, 2)):
            torch.testing.assert_close(model(x), expected, rtol=0, atol=1e-6)
        some = gattn.capture(lambda: model(other), model, keep=gattn.All(), heads=[0, 1])
        with (
            pytest.raises(EditError, match=r"lacks the heads \[2\]"),
            gattn.edited(model, Patch(some, 1, 2)),
        ):
            model(x)


@pytest.mark.parametrize("what", ["values", "outputs"])
def test_means_in_windows_are_not_over_all_positions(what):
    def windows(q, k, v):
        q, k, v = (x.unflatten(2, (2, TOKENS // 2)) for x in (q, k, v))
        return ((q @ k.mT / ROOT).softmax(-1) @ v).flatten(2, 3)

    model, x = made(windows, 1)
    only = Ablate("mean", 1, 0, what=what)
    with (
        pytest.raises(EditError, match=r"only the 3 from 3 to 5: .* without windows"),
        gattn.edited(model, only),
    ):
        model(x)


def test_means_of_values_with_a_cache_are_over_all_keys_so_far(tiny):
    model, whole = tiny("llama", dtype=torch.float64), torch.tensor([LONGER])
    with torch.no_grad(), gattn.edited(model, Ablate("mean", 1, 2, what="values")):
        expected = model(whole).logits[0, -1]
        first = model(whole[:, :-1], use_cache=True)
        found = model(whole[:, -1:], past_key_values=first.past_key_values).logits[0, -1]
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)


def test_a_longer_text_is_refused_where_queries_read_what_is_not_here(tiny):
    model = tiny("bert")
    with (
        pytest.raises(EditError, match="cannot attend to here"),
        gattn.edited(model, Patch(LONGER)),
    ):
        model(torch.tensor([IDS]))


def test_contributions_are_not_those_of_patched_values(gpt2):
    patch = Patch(OTHER, 1, what="values")
    with pytest.raises(CaptureError, match="leave out contributions"), gattn.edited(gpt2, patch):
        gattn.capture(IDS, gpt2, contributions=True)


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
