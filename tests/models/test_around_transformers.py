"""Modules of one's own that hold a model of transformers, and attend to what it gives."""

import numpy as np
import pytest
import torch
from torch import nn
from transformers import BertConfig, BertModel, GPT2Config, GPT2Model

from gattn import Cut, capturing, edited

WIDTH, HEADS, LAYERS, TOKENS = 12, 3, 2, 6
IDS = torch.tensor([[3, 9, 4, 1, 5, 2], [7, 2, 8, 8, 1, 6]])


def bert(how):
    torch.manual_seed(0)
    model = BertModel(
        BertConfig(
            vocab_size=20,
            hidden_size=WIDTH,
            num_hidden_layers=LAYERS,
            num_attention_heads=HEADS,
            intermediate_size=24,
            attn_implementation=how,
        )
    )
    return model.double().eval()


def gpt2(how):
    torch.manual_seed(1)
    config = GPT2Config(
        vocab_size=20,
        n_embd=WIDTH,
        n_layer=LAYERS,
        n_head=HEADS,
        n_positions=16,
        bos_token_id=0,
        eos_token_id=0,
        attn_implementation=how,
    )
    return GPT2Model(config).double().eval()


class Decoder(nn.Module):
    """Queries of its own read a text, or its tokens read each other in reverse."""

    def __init__(self, how, *, is_reversed=False):
        super().__init__()
        self.text, self.attention = bert(how), nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.queries = nn.Parameter(torch.randn(1, 4, WIDTH))
        self.is_reversed = is_reversed

    def vectors(self, ids, mask=None):
        return self.text(input_ids=ids, attention_mask=mask).last_hidden_state

    def forward(self, ids, mask=None):
        x = self.vectors(ids, mask)
        if self.is_reversed:
            x = x.flip(1)
            return self.attention(x, x, x, need_weights=False)[0]
        hidden = None if mask is None else mask == 0
        queries = self.queries.expand(len(ids), -1, -1)
        return self.attention(queries, x, x, key_padding_mask=hidden, need_weights=False)[0]


class Pooled(nn.Module):
    """Sums vectors up, weighted by a softmax of one score each."""

    def __init__(self, how, *, by_matmul):
        super().__init__()
        self.text, self.score, self.by_matmul = bert(how), nn.Linear(WIDTH, 1), by_matmul

    def weights(self, x):
        return self.score(x).softmax(1)

    def forward(self, ids):
        x = self.text(input_ids=ids).last_hidden_state
        a = self.weights(x)
        return a.transpose(1, 2) @ x if self.by_matmul else (a * x).sum(1)


class Towers(nn.Module):
    """One text reads another."""

    def __init__(self, how):
        super().__init__()
        self.one, self.other = gpt2(how), bert(how)
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)

    def forward(self, ids, others):
        x = self.one(input_ids=ids).last_hidden_state
        y = self.other(input_ids=others).last_hidden_state
        return self.attention(x, y, y, need_weights=False)[0]


def captured(model, *given):
    with torch.no_grad(), capturing(model) as run:
        model(*given)
    return run.traces


def is_close(stack, layer, expected):
    for head, dense in enumerate(expected):
        np.testing.assert_allclose(stack[layer, head].to_dense(), dense, atol=1e-6)


def of_text(model, ids, mask=None):
    model.set_attn_implementation("eager")
    with torch.no_grad():
        return model(ids, attention_mask=mask, output_attentions=True).attentions


@pytest.mark.parametrize("how", ["sdpa", "eager"])
@pytest.mark.parametrize("is_padded", [False, True])
def test_a_decoder_of_ones_own_reads_bert(how, is_padded):
    model = Decoder(how).double().eval()
    mask = torch.tensor([[1] * TOKENS, [1] * 4 + [0] * 2]) if is_padded else None
    traces = captured(model, IDS, mask)
    with torch.no_grad():
        x, queries = model.vectors(IDS, mask), model.queries.expand(2, -1, -1)
        hidden = None if mask is None else mask == 0
        _, own = model.attention(queries, x, x, key_padding_mask=hidden, average_attn_weights=False)
    inner = of_text(model.text, IDS, mask)
    for element, trace in enumerate(traces):
        count = TOKENS if mask is None else int(mask[element].sum())
        text, read = trace.stacks.values()
        for layer in range(LAYERS):
            is_close(text, layer, inner[layer][element, :, :count, :count])
        is_close(read, 0, own[element, :, :, :count])


@pytest.mark.parametrize("how", ["sdpa", "eager"])
def test_a_mask_of_pairs_is_no_image(how):
    """It has four dimensions, as an image has."""
    model = Decoder(how, is_reversed=True).double().eval()
    is_edge = torch.ones(2, 1, TOKENS, TOKENS).tril().bool()
    pairs = torch.zeros(is_edge.shape).double().masked_fill(~is_edge, torch.finfo(float).min)
    traces = captured(model, IDS, pairs)
    inner = of_text(model.text, IDS, pairs)
    for element, trace in enumerate(traces):
        text, _ = trace.stacks.values()
        for layer in range(LAYERS):
            is_close(text, layer, inner[layer][element])


@pytest.mark.parametrize("how", ["sdpa", "eager"])
def test_what_reverses_the_vectors_of_bert_keeps_the_numbers_of_its_tokens(how):
    model = Decoder(how, is_reversed=True).double().eval()
    traces = captured(model, IDS)
    with torch.no_grad():
        x = model.vectors(IDS)
        _, own = model.attention(x, x, x, average_attn_weights=False)
    for element, trace in enumerate(traces):
        is_close(trace.stacks["attention"], 0, own[element])


@pytest.mark.parametrize("by_matmul", [False, True])
def test_softmax_pooling_over_bert(by_matmul):
    model = Pooled("sdpa", by_matmul=by_matmul).double().eval()
    traces = captured(model, IDS)
    with torch.no_grad():
        own = model.weights(model.text(IDS).last_hidden_state)
    inner = of_text(model.text, IDS)
    for element, trace in enumerate(traces):
        text, pooled = trace.stacks.values()
        is_close(text, 1, inner[1][element])
        is_close(pooled, 0, own[element].T[None])


def test_two_towers_and_an_edit_of_what_joins_them():
    model, others = Towers("sdpa").double().eval(), IDS[:, :5].flip(0)
    trace = captured(model, IDS, others)[0]
    with torch.no_grad():
        x, y = model.one(IDS).last_hidden_state, model.other(others).last_hidden_state
        _, own = model.attention(x, y, y, average_attn_weights=False)
        with edited(model, Cut(stack="attention", layer=0, head=1, key=2)):
            found = model(IDS, others)
        hidden = torch.zeros(2, 2, TOKENS, 5, dtype=torch.bool)
        hidden[:, 1, :, 2] = True
        expected, _ = model.attention(x, y, y, attn_mask=hidden.flatten(0, 1))
    is_close(trace.stacks["attention"], 0, own[0])
    is_close(trace.stacks["one.h.attn"], 1, of_text(model.one, IDS)[1][0])
    is_close(
        trace.stacks["other.encoder.layer.attention.self"], 0, of_text(model.other, others)[0][0]
    )
    torch.testing.assert_close(found, expected)
