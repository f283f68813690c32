"""Edits with graphs of the whole text where windows overlap, and their ends are padding."""

import pytest
import torch
from torch import nn

import gattn
from gattn import Cut, Restrict, TokenGraph, Use, capturing, edited
from gattn.errors import EditError

WIDTH, CHUNK, TOKENS = 8, 2, 8


def near(tokens):
    """Say which tokens are in the chunk of another, or in one beside it."""
    chunk = torch.arange(tokens) // CHUNK
    return (chunk[:, None] - chunk).abs() <= 1


class Sliding(nn.Module):
    """Each chunk of queries attends to its own keys and to those of the chunks beside it."""

    def __init__(self):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x):
        rows = self.query(x).unflatten(1, (-1, CHUNK))
        padded = (nn.functional.pad(of(x), (0, 0, CHUNK, CHUNK)) for of in (self.key, self.value))
        key, value = (y.unfold(1, 3 * CHUNK, CHUNK).mT for y in padded)
        scores = rows @ key.mT / WIDTH**0.5
        ends = torch.arange(-CHUNK, x.shape[1] + CHUNK).unfold(0, 3 * CHUNK, CHUNK)
        is_end = (ends < 0) | (ends >= x.shape[1])
        scores = scores.masked_fill(is_end[:, None], -torch.inf)
        return (scores.softmax(-1) @ value).flatten(1, 2)

    def attention(self, x, allowed):
        """Compute the attention between all tokens, where it is allowed."""
        scores = self.query(x) @ self.key(x).mT / WIDTH**0.5
        return scores.masked_fill(~(allowed & near(x.shape[1])), -torch.inf).softmax(-1)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList([Sliding(), Sliding()])

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return x

    def dense(self, x, change):
        """Compute the output by the formula; `change` gives each layer's attention."""
        for number, layer in enumerate(self.layers):
            x = x + change(number, layer, x) @ layer.value(x)
        return x


def given(batch=2):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(batch, TOKENS, WIDTH, generator=generator, dtype=torch.double)


@pytest.fixture(scope="module")
def model():
    return Model().double().eval()


@torch.no_grad()
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("graph", [TokenGraph.causal(TOKENS), TokenGraph.window(TOKENS, 1)])
def test_attention_is_restricted_to_a_graph_of_the_whole_text(model, graph, batch):
    x, allowed = given(batch), torch.as_tensor(graph.mask())
    wanted = model.dense(x, lambda number, layer, x: layer.attention(x, allowed))
    with edited(model, Restrict(graph)), capturing(model) as run:
        found = model(x)
    torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-9)
    own = model.layers[0].attention(x, allowed)
    for element, trace in enumerate(run.traces):
        shown = torch.as_tensor(trace[0, 0].to_dense()).double()
        torch.testing.assert_close(shown, own[element], rtol=1e-6, atol=1e-9)


@torch.no_grad()
def test_a_graph_takes_the_place_of_attention(model):
    x = given(1)
    with edited(model, Cut(layer=0, key=3)), capturing(model) as run:
        model(x)
    everything = torch.ones(TOKENS, TOKENS, dtype=torch.bool)
    without = everything & (torch.arange(TOKENS) != 3)

    def change(number, layer, y):
        return model.layers[0].attention(x, without) if number else layer.attention(y, everything)

    with edited(model, Use(run.trace[0, 0], layer=1)):
        found = model(x)
    torch.testing.assert_close(found, model.dense(x, change), rtol=1e-6, atol=1e-9)


@torch.no_grad()
def test_a_graph_that_leaves_the_windows_is_refused(model):
    row, key = torch.ones(TOKENS, TOKENS).nonzero(as_tuple=True)
    whole = gattn.AttentionGraph.from_edges(
        torch.stack((key, row)), torch.full((len(row),), 1 / TOKENS), num_tokens=TOKENS
    )
    says = r"query 0 of the graph reads a key that is not among .* window, \[0, 1, 2, 3\]"
    with pytest.raises(EditError, match=says), edited(model, Use(whole, layer=0)):
        model(given())


@torch.no_grad()
def test_a_graph_of_fewer_tokens_is_refused(model):
    says = "has 6 queries and 6 keys, but the sequence now has 8 and 8"
    with pytest.raises(EditError, match=says), edited(model, Restrict(TokenGraph.causal(6))):
        model(given())
