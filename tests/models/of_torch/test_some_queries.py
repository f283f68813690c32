"""Attention of some tokens only: the last one, every second one, a class token."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from gattn import Cut, capturing, edited

WIDTH = 8
CHOICES: dict[str, Callable[[Tensor], Tensor]] = {
    "last": lambda x: x[:, -1:],
    "class": lambda x: x[:, :1],
    "steps": lambda x: x[:, ::2],
    "listed": lambda x: x[:, [0, 3]],
    "listed backwards": lambda x: x[:, [3, 0]],
    "selected": lambda x: x.index_select(1, torch.tensor([3, 1])),
}


class Attends(nn.Module):
    def __init__(self, choice: str, way: str = "product") -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.choose, self.way = CHOICES[choice], way
        self.seen = torch.empty(0)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.q(self.choose(x)), self.k(x), self.v(x)
        if self.way == "product":
            weights = (q @ k.mT).softmax(-1)
            output = weights @ v
        else:  # Of one query.
            columns = (k * q).sum(-1, keepdim=True).softmax(1)
            weights, output = columns.mT, (columns * v).sum(1, keepdim=True)
        places = self.choose(torch.arange(x.shape[1])[None])[0]
        self.seen = torch.zeros(len(x), x.shape[1], x.shape[1]).index_copy(1, places, weights)
        return output


class Twice(nn.Module):
    """Layers of the last token, each of which is added to all tokens or put back."""

    def __init__(self, way: str, *, puts_back: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Attends("last", way) for _ in range(2))
        self.puts_back = puts_back

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            y = layer(x)
            x = torch.cat([x[:, :-1], x[:, -1:] + y], 1) if self.puts_back else x + y
        return x


def check(seen: Tensor, found: Tensor) -> None:
    torch.testing.assert_close(found, seen, atol=1e-6, rtol=0)


@pytest.mark.parametrize("tokens", [4, 5])
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("choice", CHOICES)
@torch.no_grad()
def test_queries_are_the_tokens_that_were_picked(choice: str, batch: int, tokens: int) -> None:
    torch.manual_seed(0)
    model, x = Attends(choice).eval(), torch.randn(batch, tokens, WIDTH)
    with capturing(model) as run:
        model(x)
    for trace, wanted in zip(run.traces, model.seen, strict=True):
        check(wanted, torch.tensor(trace[0, 0].to_dense()))
    places = CHOICES[choice](torch.arange(tokens)[None])[0].tolist()
    with edited(model, Cut(layer=0, query=places[-1], key=1)):
        output = model(x)
    weights = model.seen[:, places].clone()
    weights[:, -1, 1] = 0
    wanted = weights / weights.sum(-1, keepdim=True) @ model.v(x)
    torch.testing.assert_close(output, wanted, atol=1e-6, rtol=0)


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("way", ["product", "sum"])
@pytest.mark.parametrize("puts_back", [False, True])
@torch.no_grad()
def test_layers_of_the_last_token(way: str, batch: int, puts_back: bool) -> None:
    torch.manual_seed(0)
    model, x = Twice(way, puts_back=puts_back).eval(), torch.randn(batch, 5, WIDTH)
    with capturing(model) as run:
        model(x)
    for n, trace in enumerate(run.traces):
        assert len(trace.only_stack) == 2
        for layer in range(2):
            check(model.layers[layer].seen[n], torch.tensor(trace[layer, 0].to_dense()))


class Recurrent(nn.Module):
    """The last state of a recurrent network reads all states: it is made of all tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.LSTM(WIDTH, WIDTH, batch_first=True)
        self.seen = torch.empty(0)

    def forward(self, x: Tensor) -> Tensor:
        states, (last, _) = self.network(x)
        weights = (last[-1][:, None] @ states.mT).softmax(-1)
        self.seen = weights.detach()
        return weights @ states


@pytest.mark.parametrize("batch", [1, 2])
@torch.no_grad()
def test_a_query_of_all_tokens_is_none_of_them(batch: int) -> None:
    model = Recurrent().eval()
    with capturing(model) as run:
        model(torch.randn(batch, 5, WIDTH))
    for trace, wanted in zip(run.traces, model.seen, strict=True):
        head = trace[0, 0]
        assert head.graph.is_bipartite
        check(wanted, torch.tensor(head.to_dense()))
