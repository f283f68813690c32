"""Padding among the targets of torch's decoders is left out of cross-attention, too."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

from gattn import Cut, capturing, edited

SOURCE = torch.randn(2, 6, 16, generator=torch.Generator().manual_seed(0))
TARGET = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(1))
PADDED = torch.tensor([[True, True, False, False, False], [False, False, False, False, True]])
CROSS = "decoder.layers.multihead_attn"


def transformer(**options):
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return nn.Transformer(16, 2, 1, 2, 32, batch_first=True, **options).eval()


def call(model):
    return model(SOURCE, TARGET, tgt_key_padding_mask=PADDED)


@torch.no_grad()
@pytest.mark.parametrize("norm_first", [False, True])
def test_queries_are_the_tokens_of_the_self_attention_before(norm_first):
    model = transformer(norm_first=norm_first)
    layer = model.decoder.layers[0]
    memory, mask = model.encoder(SOURCE), {"attn_mask": None, "key_padding_mask": PADDED}
    if norm_first:
        queries = layer.norm2(TARGET + layer._sa_block(layer.norm1(TARGET), **mask))
    else:
        queries = layer.norm1(TARGET + layer._sa_block(TARGET, **mask))
    _, expected = layer.multihead_attn(queries, memory, memory, average_attn_weights=False)
    with capturing(model) as run:
        call(model)
    for trace, own, padding in zip(run.traces, expected, PADDED, strict=True):
        own_size = trace.stacks["decoder.layers.self_attn"][0, 0].to_dense().shape
        assert own_size == (int((~padding).sum()),) * 2
        for head in range(2):
            found = torch.from_numpy(trace.stacks[CROSS][0, head].to_dense())
            torch.testing.assert_close(found, own[head, ~padding])


@torch.no_grad()
def test_edits_count_tokens_alike_in_self_and_cross_attention():
    model = transformer()
    before = call(model)
    for stack in ("decoder.layers.self_attn", CROSS):
        with edited(model, Cut(stack=stack, layer=1, query=0, key=1)):
            changed = (call(model) - before).abs().amax(-1) > 1e-5
        assert changed.tolist() == [[False, False, True, False, False], [True] + [False] * 4]


class Layer(nn.TransformerDecoderLayer):
    """Turns targets round before they read the source."""

    def _mha_block(self, x, *given):
        return super()._mha_block(x.flip(1), *given)


class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.reads, self.crosses = (nn.MultiheadAttention(16, 2, batch_first=True) for _ in "ab")

    def forward(self, target, memory, tgt_key_padding_mask):
        mask = {"key_padding_mask": tgt_key_padding_mask}
        target = target + self.reads(target, target, target, **mask)[0]
        return target + self.crosses(target, memory, memory)[0]


@torch.no_grad()
@pytest.mark.parametrize("make", [lambda: Layer(16, 2, 32, batch_first=True), Own])
def test_where_it_is_not_known_all_queries_stay_and_a_warning_says_so(make):
    torch.manual_seed(0)
    layer = make().eval()
    said = pytest.warns(UserWarning, match="attends from as many tokens as have padding")
    with said, capturing(layer) as run:
        layer(TARGET, SOURCE, tgt_key_padding_mask=PADDED)
    assert {len(stack[0, 0].to_dense()) for stack in run.traces[0].stacks.values()} == {3, 5}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with capturing(layer):
            layer(TARGET, SOURCE, tgt_key_padding_mask=torch.zeros_like(PADDED))


class Twice(nn.Module):
    """Runs one decoder several times in a call, with padding or without."""

    def __init__(self, padded):
        super().__init__()
        torch.manual_seed(0)
        layer = nn.TransformerDecoderLayer(16, 2, 32, batch_first=True)
        self.decoder, self.padded = nn.TransformerDecoder(layer, 1), padded

    def forward(self, target, memory):
        return sum(
            self.decoder(target, memory, tgt_key_padding_mask=PADDED if padded else None)
            for padded in self.padded
        )


@torch.no_grad()
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("padded", [(True, False), (False, True), (True, True)])
def test_each_run_of_a_decoder_has_padding_of_its_own(padded):
    model = Twice(padded).eval()
    layer = model.decoder.layers[0]
    with capturing(model) as run:
        before = model(TARGET, SOURCE)
    for number, is_padded in enumerate(padded):
        mask = PADDED if is_padded else None
        own = {"average_attn_weights": False}
        _, attention = layer.self_attn(TARGET, TARGET, TARGET, key_padding_mask=mask, **own)
        queries = layer.norm1(TARGET + layer._sa_block(TARGET, None, mask))
        _, crossing = layer.multihead_attn(queries, SOURCE, SOURCE, **own)
        for n, trace in enumerate(run.traces):
            real = ~PADDED[n] if is_padded else torch.ones(5, dtype=torch.bool)
            for head in range(2):
                found = trace.stacks["decoder.layers.self_attn"][number, head].to_dense()
                expected = attention[n, head][real][:, real]
                torch.testing.assert_close(torch.from_numpy(found), expected)
                found = trace.stacks["decoder.layers.multihead_attn"][number, head].to_dense()
                torch.testing.assert_close(torch.from_numpy(found), crossing[n, head][real])
    with edited(model, Cut(stack="decoder.layers.self_attn", layer=1, query=0, key=1)):
        changed = (model(TARGET, SOURCE) - before).abs().amax(-1) > 1e-6
    assert changed.tolist() == [
        [False] * 2 * padded[1] + [True] + [False] * (4 - 2 * padded[1]),
        [True] + [False] * 4,
    ]
