"""Models of one's own that are written as transformers' `PreTrainedModel`."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

import gattn

WIDTH, HEADS, SIDE = 8, 2, 4


class OwnConfig(PretrainedConfig):
    model_type = "own"


class Own(PreTrainedModel):
    config_class = OwnConfig

    def __init__(self, config):
        super().__init__(config)
        self.build()
        self.post_init()

    def _init_weights(self, module):
        pass


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.to_q, self.to_k, self.to_v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.own = None

    def forward(self, x, mask=None):
        q, k, v = (
            of(x).unflatten(-1, (HEADS, -1)).transpose(-2, -3)
            for of in (self.to_q, self.to_k, self.to_v)
        )
        scores = q @ k.mT
        if mask is not None:
            scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
        self.own = scores.softmax(-1).detach()
        return x + (self.own @ v).transpose(-2, -3).flatten(-2)


class Text(Own):
    """A causal language model."""

    def build(self):
        self.embed = nn.Embedding(600, WIDTH)
        self.layers = nn.ModuleList(Attention() for _ in range(2))

    def forward(self, input_ids, attention_mask=None, **options):
        x = self.embed(input_ids)
        size = x.shape[1]
        mask = torch.ones(size, size).tril().bool()
        if attention_mask is not None:
            mask = mask & (attention_mask[:, None, None] > 0)
        for layer in self.layers:
            x = layer(x, mask)
        return BaseModelOutput(x)


class Windows(Own):
    """Attends within the four quarters of a picture."""

    def build(self):
        self.attend = Attention()

    def forward(self, pixel_values):
        count, half = len(pixel_values), SIDE // 2
        x = pixel_values.movedim(1, -1).reshape(count, 2, half, 2, half, WIDTH)
        x = self.attend(x.transpose(2, 3).reshape(count * 4, half * half, WIDTH))
        x = x.reshape(count, 2, 2, half, half, WIDTH).transpose(2, 3)
        return x.reshape(count, SIDE, SIDE, WIDTH)


class OneHead(Own):
    """Attends in its own forward, on inputs of no name of transformers."""

    def build(self):
        self.to_q = nn.Linear(WIDTH, WIDTH)

    def forward(self, series):
        self.own = (self.to_q(series) @ series.mT).softmax(-1).detach()
        return self.own @ series


def made(kind):
    torch.manual_seed(0)
    return kind(OwnConfig()).eval()


def check(trace, own):
    """Compare a trace of one layer with its attention (heads, queries, keys)."""
    assert {(head.layer, head.head) for head in trace.only_stack.heads.values()} == {
        (0, head) for head in range(len(own))
    }
    for head, dense in enumerate(own):
        shown = torch.from_numpy(trace[0, head].to_dense())
        torch.testing.assert_close(shown, dense)


@torch.no_grad()
def test_windows_are_proved():
    model, x = made(Windows), torch.randn(2, WIDTH, SIDE, SIDE)
    with gattn.capturing(model, keep=gattn.All()) as run:
        model(x)
    place = torch.arange(SIDE * SIDE).reshape(2, 2, 2, 2).transpose(1, 2).reshape(4, 4)
    for element, trace in enumerate(run.traces):
        dense = torch.zeros(HEADS, SIDE * SIDE, SIDE * SIDE)
        for own, at in zip(model.attend.own.unflatten(0, (2, 4))[element], place, strict=True):
            dense[:, at[:, None], at] = own
        check(trace, dense)


@torch.no_grad()
def test_attention_in_the_models_own_forward():
    model, x = made(OneHead), torch.randn(2, 5, WIDTH)
    with gattn.capturing(model, keep=gattn.All()) as run:
        model(series=x)
    for trace, own in zip(run.traces, model.own, strict=True):
        check(trace, own[None])


@torch.no_grad()
def test_texts_are_encoded_and_padding_is_cut_off(tokenizer):
    model, texts = made(Text), ["The cat sat on the mat", "A dog"]
    traces = list(gattn.capture_many(texts, model, tokenizer, keep=gattn.All(), progress=False))
    for text, trace in zip(texts, traces, strict=True):
        inputs = tokenizer(text, return_tensors="pt")
        model(**inputs)
        assert len(trace.tokens) == inputs["input_ids"].shape[1]
        assert trace.tokens[1].strip() in text
        for layer, module in enumerate(model.layers):
            for head in range(HEADS):
                dense = torch.from_numpy(trace[layer, head].to_dense())
                torch.testing.assert_close(dense, module.own[0, head])


@pytest.mark.parametrize("padding", ["left", "right"])
@torch.no_grad()
def test_an_edit_counts_real_tokens(padding):
    model, ids = made(Text), torch.arange(1, 6)[None]
    other = torch.arange(10, 13)
    first = 2 if padding == "left" else 0
    batch, mask = torch.zeros(2, 5, dtype=torch.long), torch.ones(2, 5, dtype=torch.long)
    batch[0], batch[1, first : first + 3] = ids[0], other
    mask[1] = 0
    mask[1, first : first + 3] = 1
    cut = gattn.Cut(layer=1, query=2, key=0)
    with gattn.edited(model, cut):
        together = model(batch, attention_mask=mask).last_hidden_state
        alone = model(other[None]).last_hidden_state
    torch.testing.assert_close(together[1, first : first + 3], alone[0])
    plain = model(other[None]).last_hidden_state
    assert (plain - alone).abs().amax((0, 2)).gt(1e-6).tolist() == [False, False, True]


class OfDictionaries(nn.Module):
    """Takes what a tokenizer gives, as the models of sentence-transformers do."""

    def __init__(self):
        super().__init__()
        self.model = made(Text)

    def forward(self, features):
        return self.model(**features).last_hidden_state.mean(1)


@torch.no_grad()
def test_a_tokenizer_names_the_ids_among_other_integers(tokenizer):
    texts = ["the dog and the cat", "the dog"]
    inputs = tokenizer(texts, padding=True, return_tensors="pt")
    features = {name: inputs[name] for name in ("attention_mask", "input_ids")}
    model = OfDictionaries().eval()
    with gattn.capturing(model, tokenizer) as outer, gattn.capturing(model.model, tokenizer) as run:
        model(features)
    for some in (outer.traces, run.traces):
        for text, trace in zip(texts, some, strict=True):
            names = trace[0, 0].labels()
            assert [one.strip() for one in names[1:-1]] == text.split()


@torch.no_grad()
def test_each_sequence_of_a_batch_has_names_of_its_own():
    model, ids = made(Text), torch.arange(1, 11).reshape(2, 5)
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    names = [list("abcde"), list("xab")]
    with gattn.capturing(model, tokens=names) as run:
        model(ids, mask)
    assert [trace[1, 0].labels() for trace in run.traces] == names
    with gattn.edited(model, gattn.Cut(layer=1, query="b", key="a"), tokens=names):
        together = model(ids, mask).last_hidden_state
    for row, (query, key) in enumerate([(1, 0), (2, 1)]):
        with gattn.edited(model, gattn.Cut(layer=1, query=query, key=key)):
            alone = model(ids[row : row + 1], mask[row : row + 1]).last_hidden_state
        torch.testing.assert_close(together[row], alone[0])
    with (
        pytest.raises(gattn.errors.CaptureError, match="one list for each sequence"),
        gattn.capturing(model, tokens=names[:1]),
    ):
        model(ids, mask)
