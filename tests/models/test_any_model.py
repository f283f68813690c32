"""Models of no library: attention through torch's functions, checked with dense formulas."""

from __future__ import annotations

import pytest
import torch
from hand_written import DIM, HEADS, WIDTH, Model, made
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from ways_of_attending import WAYS, kernel, softmin

from gattn import Cut, Scale, capturing, edited
from gattn.errors import CaptureError, GattnError


@pytest.mark.parametrize("way", [*WAYS, softmin])
def test_attention_is_the_formulas_and_the_output_stays(way):
    model, x = made(way)
    with torch.no_grad():
        plain = model(x)
        with capturing(model) as run:
            watched = model(x)
        found, _ = model.dense(x)
    assert torch.equal(plain, watched)
    for row, trace in enumerate(run.traces):
        assert list(trace.stacks) == ["blocks"]
        for (layer, head), graph in trace.only_stack.items():
            wanted = found[layer][row, head].numpy()
            assert graph.to_dense() == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("way", WAYS)
def test_a_cut_edge_gives_the_output_without_it(way):
    model, x = made(way)

    def without(attention, layer):
        if layer == 1:
            attention = attention.clone()
            attention[:, 2, 4, 0] = 0
            attention[:, 2] /= attention[:, 2].sum(-1, keepdim=True)
        return attention

    with torch.no_grad(), edited(model, Cut(layer=1, head=2, query=4, key=0)):
        cut = model(x)
    torch.testing.assert_close(cut, model.dense(x, without)[1], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("way", WAYS)
def test_gradients_flow_through_an_edit(way):
    model, x = made(way)

    def halved(attention, layer):
        factor = torch.ones_like(attention)
        factor[:, 1] = 0.5
        return attention * factor if layer == 0 else attention

    x.requires_grad_()
    with edited(model, Scale(0.5, layer=0, head=1)):
        model(x).square().sum().backward()
    found, x.grad = x.grad, None
    model.dense(x, halved)[1].square().sum().backward()
    torch.testing.assert_close(found, x.grad, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("is_batch_first", [True, False])
@pytest.mark.parametrize("needs_weights", [True, False])
def test_torchs_multihead_attention(is_batch_first, needs_weights):
    torch.manual_seed(0)
    module = nn.MultiheadAttention(16, 4, batch_first=is_batch_first).double().eval()
    query, key = torch.randn(2, 5, 16).double(), torch.randn(2, 7, 16).double()
    if not is_batch_first:
        query, key = query.transpose(0, 1), key.transpose(0, 1)
    with torch.no_grad():
        _, weights = module(query, key, key, average_attn_weights=False)
        with capturing(module) as run:
            module(query, key, key, need_weights=needs_weights)
        with edited(module, Cut(layer=0, head=1, query=2, key=3)):
            _, cut = module(query, key, key, average_attn_weights=False)
    assert len(run.traces) == 2
    for trace, wanted in zip(run.traces, weights, strict=True):
        for (_, head), graph in trace.only_stack.items():
            assert graph.graph.is_bipartite
            assert graph.to_dense() == pytest.approx(wanted[head].numpy(), rel=1e-12)
    assert torch.equal(cut[:, 1, 2, 3], torch.zeros(2))
    assert torch.equal(cut[:, 0], weights[:, 0])


def test_an_encoder_and_a_decoder_of_torch():
    torch.manual_seed(0)
    model = nn.Transformer(32, 4, 2, 2, 64, batch_first=True).eval()
    source, target = torch.randn(1, 7, 32), torch.randn(1, 5, 32)
    mask = nn.Transformer.generate_square_subsequent_mask(5)
    with torch.no_grad(), capturing(model) as run:
        model(source, target, tgt_mask=mask)
    stacks = run.trace.stacks
    assert list(stacks) == [
        "encoder.layers.self_attn",
        "decoder.layers.self_attn",
        "decoder.layers.multihead_attn",
    ]
    assert stacks["decoder.layers.multihead_attn"][1, 3].graph.is_bipartite
    assert stacks["decoder.layers.self_attn"][0, 0].graph.num_edges == 15


def with_bias(q, k, v):
    return flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s - 0.3 * h * (i - j).abs())


def in_blocks(q, k, v):
    def is_earlier(b, h, i, j):
        return (i >= j) & ((j != 2 * b + 1) | (i == j))

    count = q.shape[2]
    mask = create_block_mask(is_earlier, len(q), None, count, count, device="cpu")
    return flex_attention(q, k, v, block_mask=mask)


@pytest.mark.parametrize("way", [with_bias, in_blocks])
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention(way):
    model, x = made(way, layers=1)
    model, x = model.float(), x.float()
    q, k, _ = model.blocks[0].parts(x)
    scores, n = q @ k.mT / DIM**0.5, torch.arange(6)
    if way is with_bias:
        distance = (n[:, None] - n).abs()
        scores = scores - 0.3 * torch.arange(HEADS)[:, None, None] * distance
    else:
        batch = torch.arange(2)[:, None, None, None]
        apart = (n == 2 * batch + 1) & (n[:, None] != n)
        scores = scores.masked_fill((n[:, None] < n) | apart, -torch.inf)
    wanted = scores.softmax(-1).nan_to_num()
    with torch.no_grad():
        plain = model(x)
        with capturing(model) as run:
            assert torch.equal(model(x), plain)
        with capturing(model) as cut, edited(model, Cut(layer=0, key=3)):
            assert not torch.equal(model(x), plain)
    for row, trace in enumerate(run.traces):
        for (_, head), graph in trace.only_stack.items():
            close = pytest.approx(wanted[row, head].detach().numpy(), abs=1e-6)
            assert graph.to_dense() == close
    assert cut.traces[0][0, 1].to_dense()[:, 3].max() == 0


@pytest.mark.parametrize("way", WAYS)
def test_contributions(way):
    model, x = made(way, layers=1)
    layer = model.blocks[0]
    with torch.no_grad(), capturing(model, contributions=True) as run:
        model(x)
    with torch.no_grad():
        attention, value = model.dense(x)[0][0], layer.parts(x)[2]
        parts = layer.out.weight.unflatten(1, (HEADS, DIM))
        lengths = torch.einsum("chd,bhjd->bhjc", parts, value).norm(dim=-1)
    for row, trace in enumerate(run.traces):
        for (_, head), graph in trace.only_stack.items():
            wanted = attention[row, head] * lengths[row, head]
            assert graph.contribution == pytest.approx(wanted.numpy().ravel(), rel=1e-9)


@pytest.mark.parametrize("needs_weights", [True, False])
def test_contributions_of_torchs_multihead_attention(needs_weights):
    torch.manual_seed(0)
    module = nn.MultiheadAttention(16, 4, batch_first=True).double().eval()
    x = torch.randn(1, 5, 16).double()
    with torch.no_grad(), capturing(module, contributions=True) as run:
        output, _ = module(x, x, x, need_weights=needs_weights)
    value = F.linear(x[0], module.in_proj_weight[32:], module.in_proj_bias[32:])
    total = torch.zeros(5, 16).double()
    for (_, head), graph in run.trace.only_stack.items():
        some = slice(4 * head, 4 * head + 4)
        sent = value[:, some] @ module.out_proj.weight[:, some].T
        attention = torch.as_tensor(graph.to_dense())
        total += attention @ sent
        wanted = attention * sent.norm(dim=-1)
        assert graph.contribution == pytest.approx(wanted.detach().numpy().ravel(), rel=1e-9)
    torch.testing.assert_close(total + module.out_proj.bias, output[0])


def test_tokens_are_named_by_the_caller_and_put_on_a_grid():
    model, x = made(kernel)
    words = ["the", "dog", "saw", "the", "old", "cat"]
    with torch.no_grad(), capturing(model, tokens=words, grid=(2, 3)) as run:
        model(x[:1])
    head = run.trace[1, 2]
    assert head.labels() == words
    assert (head.geometry.rows, head.geometry.columns) == (2, 3)
    with (
        pytest.raises(CaptureError, match="gives 5 texts, but the stack 'blocks' has 6 tokens"),
        torch.no_grad(),
        capturing(model, tokens=words[1:]),
    ):
        model(x[:1])
    with (
        pytest.raises(CaptureError, match=r"the stack 'layers'; the stacks are \['blocks'\]"),
        torch.no_grad(),
        capturing(model, tokens={"layers": words}),
    ):
        model(x[:1])
    with pytest.raises(CaptureError, match="one text per token"), capturing(model, tokens="the"):
        pass


def test_ids_are_named_by_a_tokenizer_only(tokenizer):
    text = "the dog saw the cat"
    ids = torch.tensor([tokenizer(text)["input_ids"]])
    model = nn.Sequential(nn.Embedding(len(tokenizer), WIDTH), Model(kernel)).eval()
    with torch.no_grad(), capturing(model, tokenizer) as named, capturing(model) as plain:
        model(ids)
    count = ids.shape[1]
    assert "dog" in named.trace[0, 0].labels()
    assert plain.trace[0, 0].labels() == [str(n) for n in range(count)]


class Nested(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in "qkv")

    def forward(self, x):
        q, k, v = (part(x).unflatten(-1, (HEADS, DIM)).transpose(1, 2) for part in self.parts)
        return F.scaled_dot_product_attention(q, k, v)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_are_read_sequence_by_sequence():
    torch.manual_seed(0)
    model, texts = Nested().eval(), [torch.randn(n, WIDTH) for n in (3, 5)]
    with torch.no_grad():
        x = torch.nested.nested_tensor(texts, layout=torch.jagged)
        plain = model(x)
        with capturing(model) as run:
            watched = model(x)
        with edited(model, Cut(head=1, query=2, key=0)):
            cut = model(x)
        for n, text in enumerate(texts):
            assert torch.equal(plain.unbind()[n], watched.unbind()[n])
            with capturing(model) as alone, edited(model, Cut(head=1, query=2, key=0)):
                wanted = model(text[None])[0]
            torch.testing.assert_close(cut.unbind()[n], wanted, rtol=1e-5, atol=1e-6)
            assert len(alone.trace[0, 0].labels()) == len(text)
            with capturing(model) as alone:
                model(text[None])
            for place, graph in run.traces[n].only_stack.items():
                close = pytest.approx(alone.trace[place].to_dense(), abs=1e-6)
                assert graph.to_dense() == close


@torch.no_grad()
def test_layers_with_two_numbers_of_heads_are_two_stacks() -> None:
    layers = [nn.TransformerEncoderLayer(16, heads, 16, batch_first=True) for heads in (4, 8) * 3]
    model = nn.Sequential(*layers).eval()
    with capturing(model) as run:
        model(torch.randn(1, 5, 16))
    stacks = run.trace.stacks
    assert {name: len(list(stack.layers)) for name, stack in stacks.items()} == {
        "self_attn": 3,
        "self_attn 2": 3,
    }


@torch.no_grad()
def test_tokens_may_be_numbers() -> None:
    model = nn.TransformerEncoderLayer(16, 4, 16, batch_first=True).eval()
    for names in (range(10, 15), list(range(10, 15))):
        with capturing(model, tokens=names) as run:
            model(torch.randn(1, 5, 16))
        assert list(run.trace.tokens) == ["10", "11", "12", "13", "14"]


def test_names_that_fit_no_text_are_refused_as_the_context_closes():
    model, x = made(kernel)
    before = torch.nn.functional.scaled_dot_product_attention
    for wrong in ({"tokens": list("abc")}, {"grid": (5, 5)}):
        with pytest.raises(GattnError), torch.no_grad(), capturing(model, **wrong):
            model(x[:1])
        assert torch.nn.functional.scaled_dot_product_attention is before
        assert not any(one._forward_hooks or one._forward_pre_hooks for one in model.modules())
        with torch.no_grad(), capturing(model) as run:
            model(x[:1])
        assert run.trace.only_stack.layers
