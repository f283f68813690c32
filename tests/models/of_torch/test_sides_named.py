"""Texts of queries and of keys, each named by its side."""

from __future__ import annotations

import re
from contextlib import nullcontext

import pytest
import torch
from torch import nn

from gattn import Cut, capturing, edited, effect
from gattn.errors import CaptureError, EditError

SOURCE, TARGET = list("abcde"), list("xyz")
STACK = "decoder.layers.multihead_attn"
SIDES = {STACK: {"query": TARGET, "key": SOURCE}}


def _model():
    torch.manual_seed(0)
    return nn.Transformer(8, 2, 1, 2, 16, batch_first=True).double().eval()


def _inputs(target=3, batch=1):
    generator = torch.Generator().manual_seed(1)
    sizes = (batch, 5, 8), (batch, target, 8)
    return [torch.randn(size, generator=generator).double() for size in sizes]


@torch.no_grad()
def test_queries_and_keys_have_texts_of_their_own():
    model = _model()
    with capturing(model, tokens=SIDES) as run:
        model(*_inputs())
    graph = run.trace.stacks[STACK][1, 0]
    assert graph.query_labels() == TARGET
    assert graph.labels() == SOURCE
    keys = {STACK: {"key": SOURCE}}
    with capturing(model, tokens=keys) as run:
        model(*_inputs(5))
    graph = run.trace.stacks[STACK][1, 0]
    assert graph.labels() == SOURCE
    assert graph.query_labels() == list("01234")


@torch.no_grad()
def test_each_sequence_has_its_sides():
    model = _model()
    texts = [SIDES, {STACK: {"query": list("uvw"), "key": SOURCE}}]
    with capturing(model, tokens=texts) as run:
        model(*_inputs(batch=2))
    labels = [trace.stacks[STACK][0, 0].query_labels() for trace in run.traces]
    assert labels == [TARGET, list("uvw")]


class Translator(nn.Module):
    """A transformer on ids, with as many of them on both sides, or with learned rows."""

    def __init__(self, *, is_learned):
        super().__init__()
        torch.manual_seed(0)
        self.source, self.target = nn.Embedding(9, 8), nn.Embedding(9, 8)
        self.inner = nn.Transformer(8, 2, 1, 2, 16, batch_first=True)
        self.is_learned = is_learned
        self.double().eval()

    def forward(self, ids, others):
        rows = self.target.weight[:5].expand(len(ids), -1, -1)
        return self.inner(self.source(ids), rows if self.is_learned else self.target(others))


@pytest.mark.parametrize("is_learned", [False, True])
@pytest.mark.parametrize("batch", [1, 2])
@torch.no_grad()
def test_as_many_tokens_on_both_sides_have_names_unless_they_are_learned(batch, is_learned):
    model = Translator(is_learned=is_learned)
    ids = torch.randint(0, 9, (2, batch, 5), generator=torch.Generator().manual_seed(2))
    said = pytest.warns(
        UserWarning, match="names both the queries and the keys of .*multihead_attn"
    )
    with nullcontext() if is_learned else said, capturing(model, tokens=[SOURCE] * batch) as run:
        model(*ids)
    wanted = () if is_learned else tuple(SOURCE)
    for stack in ("inner.decoder.layers.self_attn", "inner.decoder.layers.multihead_attn"):
        assert run.traces[0].stacks[stack][1, 0].tokens == wanted
    assert run.traces[0].stacks["inner.encoder.layers.self_attn"][0, 0].tokens == tuple(SOURCE)


@torch.no_grad()
def test_names_of_a_stack_whose_tokens_are_not_known_are_told():
    ids = torch.randint(0, 9, (2, 1, 5), generator=torch.Generator().manual_seed(2))
    model, stack = Translator(is_learned=True), "inner.decoder.layers.multihead_attn"
    said = pytest.warns(UserWarning, match=f"names the stack '{stack}', but the model moved")
    with said, capturing(model, tokens={stack: {"key": SOURCE}}) as run:
        model(*ids)
    assert run.trace.stacks[stack][1, 0].tokens == ()


@pytest.mark.parametrize("texts", [SOURCE, {STACK: SOURCE}])
@torch.no_grad()
def test_a_list_that_names_both_sides_is_told(texts):
    model = _model()
    said = re.escape(f"tokens={{{STACK!r}: {{'query': [...], 'key': [...]}}")
    with pytest.warns(UserWarning, match=said), capturing(model, tokens=texts) as run:
        model(*_inputs(5))
    graph = run.trace.stacks[STACK][1, 0]
    assert graph.query_labels() == graph.labels() == SOURCE


@torch.no_grad()
def test_sides_of_no_stack_are_refused():
    model, sides = _model(), {"query": TARGET, "key": SOURCE}
    said = r"sides go under the name of a stack of cross-attention, as in tokens=\{stack: \{'query'"
    with pytest.raises(CaptureError, match=said), capturing(model, tokens=sides):
        model(*_inputs())
    with pytest.raises(EditError, match=said), edited(model, Cut(stack=STACK), tokens=sides):
        model(*_inputs())


@torch.no_grad()
def test_edits_find_tokens_by_side():
    model, given = _model(), _inputs(5)
    texts = {STACK: {"query": list("edcba"), "key": SOURCE}}
    with edited(model, Cut(stack=STACK, layer=0, query="a", key="b"), tokens=texts):
        found = model(*given)
    with edited(model, Cut(stack=STACK, layer=0, query=4, key=1)):
        wanted = model(*given)
    assert torch.equal(found, wanted)
    assert not torch.equal(found, model(*given))


@pytest.mark.parametrize("side", ["query", "key"])
@pytest.mark.parametrize("texts", [SOURCE, {STACK: SOURCE}, [SOURCE], [{STACK: SOURCE}]])
@torch.no_grad()
def test_an_edit_by_a_text_that_may_be_on_either_side_is_refused(texts, side):
    model, given = _model(), _inputs(5)
    said = r"names a token by its text, but tokens= gives one list of texts that names both"
    edit = Cut(stack=STACK, layer=0, **{side: "b"})
    with pytest.raises(EditError, match=said), edited(model, edit, tokens=texts):
        model(*given)
    with pytest.raises(EditError, match=said):
        effect(lambda: model(*given).sum(), [edit], model, tokens=texts, progress=False)


@pytest.mark.parametrize("texts", [SOURCE, {STACK: SOURCE}, {STACK: {"key": SOURCE}}])
@torch.no_grad()
def test_an_edit_whose_tokens_are_clear_is_none_of_these(texts):
    model, given = _model(), _inputs(5)
    has_sides = texts == {STACK: {"key": SOURCE}}
    cut = Cut(stack=STACK, layer=0, query=2, key="b" if has_sides else 1)
    with edited(model, cut, tokens=texts):
        found = model(*given)
    with edited(model, Cut(stack=STACK, layer=0, query=2, key=1)):
        assert torch.equal(found, model(*given))


def _attention():
    torch.manual_seed(0)
    module = nn.MultiheadAttention(8, 2, add_bias_kv=True, add_zero_attn=True, batch_first=True)
    return module.double().eval()


@torch.no_grad()
def test_keys_added_to_those_of_other_tokens_hide_no_list_of_both_sides():
    module, (source, target) = _attention(), _inputs(5)
    said = pytest.warns(UserWarning, match="one list of texts that names both the queries and")
    with said, capturing(module, tokens=SOURCE) as run:
        module(target, source, source)
    assert run.trace.only_stack[0, 0].labels() == [*SOURCE, "[bias]", "[zero]"]
    error = pytest.raises(EditError, match="one list of texts that names both the queries and")
    with error, edited(module, Cut(layer=0, key="b"), tokens=SOURCE):
        module(target, source, source)


@torch.no_grad()
def test_keys_added_to_those_of_own_tokens_make_no_other_side():
    module, (source, _) = _attention(), _inputs()
    with capturing(module, tokens=SOURCE) as run:
        module(source, source, source)
    graph = run.trace.only_stack[0, 0]
    assert graph.query_labels() == SOURCE
    with edited(module, Cut(layer=0, query="b", key="c"), tokens=SOURCE):
        found, _ = module(source, source, source)
    with edited(module, Cut(layer=0, query=1, key=2)):
        assert torch.equal(found, module(source, source, source)[0])


WRONG = {
    "expected a list of texts, or the texts of its queries and keys": {"queries": TARGET},
    "gives 5 texts, but the stack .* has 3 queries": {"query": SOURCE, "key": SOURCE},
    "gives 3 texts, but the stack .* has 5 keys": {"query": TARGET, "key": TARGET},
}


@pytest.mark.parametrize("said", WRONG)
@torch.no_grad()
def test_texts_that_do_not_fit_a_side_are_refused(said):
    model = _model()
    with (
        pytest.raises(CaptureError, match=said),
        capturing(model, tokens={STACK: WRONG[said]}),
    ):
        model(*_inputs())


@torch.no_grad()
def test_queries_of_self_attention_are_its_keys():
    model = _model()
    with (
        pytest.raises(CaptureError, match="whose queries and keys are the same tokens"),
        capturing(model, tokens={"encoder.layers.self_attn": {"query": SOURCE}}),
    ):
        model(*_inputs())


@torch.no_grad()
def test_an_edit_says_which_side_has_no_texts():
    model = _model()
    edit = Cut(stack=STACK, layer=0, query="x", key="a")
    with pytest.raises(EditError), edited(model, edit, tokens={STACK: {"key": SOURCE}}):
        model(*_inputs())


@pytest.mark.parametrize("count", [3, 4])
@torch.no_grad()
def test_lists_for_more_sequences_than_ran_are_refused(count):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    model, x = nn.TransformerEncoder(layer, 1).eval(), torch.randn(2, 5, 16)
    said = f"lists the texts of {count} sequences, but there are 2"
    with pytest.raises(CaptureError, match=said), capturing(model, tokens=[SOURCE] * count):
        model(x)
    cut = Cut(layer=0, key=SOURCE[1])
    with pytest.raises(EditError, match=said), edited(model, cut, tokens=[SOURCE] * count):
        model(x)


@pytest.mark.parametrize(
    ("tokens", "said"),
    [
        ("dog", "not 'dog'"),
        (5, "such as a list of words, not 5"),
        ((word for word in SOURCE), "such as a list of words, not <generator"),
        ({"layers.self_attn": 5}, "not 5 for the stack 'layers.self_attn'"),
    ],
)
def test_what_is_no_list_of_texts_is_refused(tokens, said):
    with pytest.raises(CaptureError, match=said), capturing(_model(), tokens=tokens):
        raise AssertionError


@torch.no_grad()
def test_stacks_of_later_calls_may_be_named_while_traces_are_read():
    model, (source, target) = _model(), _inputs()
    names = {"encoder.layers.self_attn": SOURCE, "decoder.layers.self_attn": TARGET, **SIDES}
    with capturing(model, tokens=names) as run:
        memory = model.encoder(source)
        assert run.trace.only_stack[0, 0].labels() == SOURCE
        model.decoder(target, memory)
    encoded, decoded = run.traces
    assert [*encoded.stacks] == ["encoder.layers.self_attn"]
    assert decoded.stacks[STACK][1, 0].labels() == SOURCE

    def encode_alone():
        with capturing(model, tokens=names) as run:
            model.encoder(source)
            assert run.trace.only_stack[0, 0].labels() == SOURCE

    with pytest.raises(CaptureError, match="names the stack 'decoder"):
        encode_alone()
