"""What patches and ablations hold, take and refuse."""

import numpy as np
import pytest
import torch
from hand_written import ROOT, TOKENS, WIDTH, made
from patching_by_hand import HEADS, IDS, LONGER, OTHER, logits_of

import gattn
from gattn import Ablate, Only, Patch
from gattn.errors import CaptureError, EditError


@pytest.fixture(scope="module")
def gpt2(tiny):
    return tiny("gpt2", "eager", torch.float64)


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
    kept = model.dense(other)[0][1][0]

    def patched(attention, layer):
        attention = attention.clone()
        attention[:, 2] = kept[2] if layer else attention[:, 2]
        return attention

    with torch.no_grad():
        expected = model.dense(x, patched)[1]
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


def test_a_longer_text_is_refused_where_queries_read_what_is_not_here(tiny):
    model = tiny("bert")
    with (
        pytest.raises(EditError, match="cannot attend to here"),
        gattn.edited(model, Patch(LONGER)),
    ):
        model(torch.tensor([IDS]))


@pytest.mark.parametrize("key", [4, None, slice(3, None)])
def test_an_edge_from_a_key_that_a_shorter_text_lacks_is_refused(tiny, key):
    bert = tiny("bert")
    with pytest.raises(EditError, match="has 4 tokens, but the text has 6"):
        logits_of(bert, IDS, Patch(OTHER[:4], 1, query=2, key=key))


def test_keys_that_a_smaller_graph_lacks_matter_where_they_have_edges():
    conv = pytest.importorskip("torch_geometric.nn").GATConv(5, 4).eval()
    x, other = torch.randn(4, 5), torch.randn(2, 5)
    edges = torch.tensor([[0, 3], [1, 2]])
    smaller = torch.tensor([[0], [1]])
    with torch.no_grad():
        expected = gattn.capture(lambda: conv(other, smaller), conv, keep=gattn.All())
        with gattn.edited(conv, Patch(lambda: conv(other, smaller), query=1)):
            found = gattn.capture(lambda: conv(x, edges), conv, keep=gattn.All())
        with (
            pytest.raises(EditError, match="has 2 tokens, but the text has 4"),
            gattn.edited(conv, Patch(lambda: conv(other, smaller), query=2)),
        ):
            conv(x, edges)
    np.testing.assert_array_equal(found[0, 0].to_dense()[1, :2], expected[0, 0].to_dense()[1])


def test_contributions_are_not_those_of_patched_values(gpt2):
    patch = Patch(OTHER, 1, what="values")
    with pytest.raises(CaptureError, match="leave out contributions"), gattn.edited(gpt2, patch):
        gattn.capture(IDS, gpt2, contributions=True)
