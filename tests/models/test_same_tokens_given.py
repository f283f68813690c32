"""Attention modules of transformers, in a model of another library, that are given other states."""

import numpy as np
import pytest
import torch
import transformers
from torch import nn
from transformers.models.bart.modeling_bart import BartAttention
from transformers.models.t5.modeling_t5 import T5Attention

from gattn import capturing

WIDTH, HEADS, TOKENS = 16, 2, 6
BART = transformers.BartConfig(d_model=WIDTH, attn_implementation="eager")
T5 = transformers.T5Config(d_model=WIDTH, d_kv=8, num_heads=HEADS, attn_implementation="eager")
MADE = {
    "bart": lambda: BartAttention(WIDTH, HEADS, config=BART),
    "t5": lambda: T5Attention(T5, has_relative_attention_bias=False),
}


class Reading(nn.Module):
    """Normed tokens read states, which `states` makes of the tokens, or gives."""

    def __init__(self, kind, states):
        super().__init__()
        torch.manual_seed(0)
        self.attend, self.norm, self.states = MADE[kind](), nn.LayerNorm(WIDTH), states

    def forward(self, x, *others):
        found = self.attend(self.norm(x), key_value_states=self.states(x, *others))
        self.weights = found[-1].detach()
        return x + found[0]


def given(seed=0):
    return torch.randn(2, TOKENS, WIDTH, generator=torch.Generator().manual_seed(seed))


def captured(model, *inputs):
    with torch.no_grad(), capturing(model.eval()) as run:
        model(*inputs)
    return run.traces


@pytest.mark.parametrize("kind", MADE)
@pytest.mark.parametrize("states", [lambda x: x, lambda x: 2 * x.tanh()])
def test_states_of_the_same_tokens_are_read_by_these(kind, states):
    model = Reading(kind, states)
    for n, trace in enumerate(captured(model, given())):
        for head in range(HEADS):
            found = trace[0, head]
            assert not found.graph.is_bipartite
            wanted = model.weights[n, head]
            np.testing.assert_allclose(found.to_dense(), wanted, atol=1e-6)


@pytest.mark.parametrize("kind", MADE)
def test_states_of_the_same_tokens_in_another_order_are_those_of_their_tokens(kind):
    model = Reading(kind, lambda x: x.flip(1))
    for n, trace in enumerate(captured(model, given())):
        for head in range(HEADS):
            wanted = model.weights[n, head].flip(1)
            np.testing.assert_allclose(trace[0, head].to_dense(), wanted, atol=1e-6)


@pytest.mark.parametrize("kind", MADE)
def test_states_of_others_are_not(kind):
    model = Reading(kind, lambda x, y: y)
    assert all(x[0, 0].graph.is_bipartite for x in captured(model, given(), given(1)))
