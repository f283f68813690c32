"""Whether queries and keys are the same tokens, where each row of scores is changed as a whole."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gattn import Restrict, TokenGraph, capturing, edited
from gattn.errors import CaptureError


class Causal(nn.Module):
    """Attends causally, its queries made of other tokens by `moved`."""

    def __init__(self, softmax, moved=lambda x: x):
        super().__init__()
        self.to_q, self.to_k = nn.Linear(16, 16), nn.Linear(16, 16)
        self.softmax, self.moved = softmax, moved

    def attention(self, x):
        scores = self.to_q(self.moved(x)) @ self.to_k(x).mT / 4
        later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        return self.softmax(scores.masked_fill(later, -torch.inf))

    def forward(self, x):
        return self.attention(x) @ x


def _without_largest(scores):
    return (scores - scores.amax(-1, keepdim=True)).softmax(-1)


def _without_largest_detached(scores):
    return (scores - scores.max(-1, keepdim=True).values.detach()).softmax(-1)


def _exponentials(scores):
    found = scores.exp()
    return found / found.sum(-1, keepdim=True)


def _exponentials_without_largest(scores):
    return _exponentials(scores - scores.amax(-1, keepdim=True))


@pytest.mark.parametrize(
    "softmax",
    [
        _without_largest,
        _without_largest_detached,
        _exponentials,
        _exponentials_without_largest,
    ],
)
@pytest.mark.parametrize("is_cross", [False, True])
def test_a_row_less_its_maximum_keeps_its_sides(softmax, is_cross):
    torch.manual_seed(0)
    first = (lambda x: x[:, :1].expand_as(x)) if is_cross else (lambda x: x)
    model, x = Causal(softmax, first).eval(), torch.randn(2, 6, 16)
    with torch.no_grad(), capturing(model) as run:
        model(x)
    wanted = model.attention(x).detach()
    for n, trace in enumerate(run.traces):
        assert trace[0, 0].graph.is_bipartite is is_cross
        found = torch.tensor(trace[0, 0].to_dense())
        torch.testing.assert_close(found, wanted[n], atol=1e-5, rtol=0)


class Gated(nn.Module):
    """A Forgetting Transformer's layer: what gates leave of each key is added to its score."""

    def __init__(self, *, causal):
        super().__init__()
        self.to_q, self.to_k, self.gate = (nn.Linear(16, size) for size in (16, 16, 1))
        self.causal, self.lost = causal, None

    def attention(self, x):
        left = nn.functional.logsigmoid(self.gate(x))[..., 0].cumsum(-1)
        scores = self.to_q(x) @ self.to_k(x).mT / 4 + left[:, :, None] - left[:, None]
        if self.causal:
            later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
            scores = scores.masked_fill(later, -torch.inf)
        if self.lost is not None:
            scores = scores.masked_fill(self.lost, -torch.inf)
        return scores.softmax(-1)

    def forward(self, x):
        return self.attention(x) @ x


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("batch", "tokens"), [(1, 8), (2, 5)])
def test_scores_with_gates_that_add_up_are_of_one_text(batch, tokens, causal):
    torch.manual_seed(0)
    model, x = Gated(causal=causal).eval(), torch.randn(batch, tokens, 16)
    with torch.no_grad(), capturing(model) as run:
        model(x)
        wanted = model.attention(x)
    for element, trace in enumerate(run.traces):
        head = trace[0, 0]
        assert not head.graph.is_bipartite
        torch.testing.assert_close(torch.as_tensor(head.to_dense()), wanted[element])
    apart = torch.arange(tokens)[:, None] - torch.arange(tokens)
    with torch.no_grad(), edited(model, Restrict(TokenGraph.window(tokens, 1, causal=False))):
        found = model(x)
    model.lost = apart.abs() > 1
    torch.testing.assert_close(found, model(x))


class Mixed(nn.Module):
    """Causal attention whose queries, keys and values are made of several tokens each."""

    def __init__(self, query, key, value):
        super().__init__()
        self.to_q, self.to_k, self.to_v = (nn.Linear(16, 16) for _ in range(3))
        self.query, self.key, self.value = query, key, value

    def parts(self, x):
        return self.to_q(self.query(x)), self.to_k(self.key(x)), self.to_v(self.value(x))

    def forward(self, x):
        return nn.functional.scaled_dot_product_attention(*self.parts(x), is_causal=True)


def _neighbours(x):
    padded = nn.functional.pad(x, (0, 0, 1, 1))
    return padded[:, :-2] + x + 2 * padded[:, 2:]


def _so_far(x):
    return x.cumsum(1)


def _plain(x):
    return x


@pytest.mark.parametrize(
    "parts",
    [
        (_so_far, _plain, _plain),
        (_so_far, _neighbours, _plain),
        (_neighbours, _so_far, _so_far),
    ],
)
@torch.no_grad()
def test_queries_and_keys_that_mix_the_tokens_of_their_places_are_of_one_text(parts):
    torch.manual_seed(0)
    model, x = Mixed(*parts).eval(), torch.randn(2, 6, 16)
    with capturing(model) as run:
        model(x)
    query, key, _ = model.parts(x)
    later = torch.ones(6, 6, dtype=torch.bool).triu(1)
    wanted = (query @ key.mT / 4).masked_fill(later, -torch.inf).softmax(-1)
    for element, trace in enumerate(run.traces):
        assert not trace[0, 0].graph.is_bipartite
        found = torch.as_tensor(trace[0, 0].to_dense())
        torch.testing.assert_close(found, wanted[element])


@torch.no_grad()
def test_as_many_pooled_queries_of_other_places_are_not_the_keys():
    torch.manual_seed(0)
    model = Mixed(lambda x: x.roll(1, 1) + x.roll(2, 1), _plain, _plain).eval()
    with pytest.raises(CaptureError, match="mixed and moved"), capturing(model):
        model(torch.randn(2, 6, 16))
