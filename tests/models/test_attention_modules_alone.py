"""Attention modules of transformers by themselves, or in a model of one's own."""

import numpy as np
import pytest
import torch
import transformers
from torch import nn
from transformers.models.bart.modeling_bart import BartAttention
from transformers.models.t5.modeling_t5 import T5Attention

import gattn

SIZES = {"d_model": 8, "vocab_size": 20}


class Reads(nn.Module):
    """Reads one text from another, which may have as many tokens."""

    def __init__(self, module):
        super().__init__()
        self.inner = module

    def forward(self, text, other):
        return self.inner(text, key_value_states=other)


def t5():
    config = transformers.T5Config(**SIZES, d_kv=4, num_heads=2, is_decoder=True, dropout_rate=0)
    return T5Attention(config, layer_idx=0)


def bart():
    config = transformers.BartConfig(**SIZES)
    config._attn_implementation = "sdpa"
    return BartAttention(8, 2, is_decoder=True, config=config, layer_idx=0)


@pytest.mark.parametrize("made", [t5, bart])
@pytest.mark.parametrize("length", [4, 6])
@torch.no_grad()
def test_tokens_of_another_text_are_no_tokens_of_its_own(made, length):
    """As many tokens on both sides do not make them the same."""
    torch.manual_seed(0)
    model = Reads(made()).eval()
    text, other = torch.randn(1, length, 8), torch.randn(1, 6, 8)
    with gattn.capturing(model) as run:
        model(text, other)
    with gattn.capturing(model.inner) as alone:
        model.inner(text, key_value_states=other)
    for trace in (run.trace, alone.trace):
        head = trace[0, 0]
        assert head.graph.is_bipartite
        np.testing.assert_allclose(head.to_dense().sum(1), np.ones(length), atol=1e-6)
    if made is bart:
        with gattn.capturing(model.inner) as own:
            model.inner(text)
        assert not own.trace[0, 0].graph.is_bipartite
