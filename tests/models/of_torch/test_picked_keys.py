"""Attention to the nearest tokens, which values pick: shown as a graph on the true keys."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from gattn import Cut, Scale, capturing, edited
from gattn.errors import CaptureError

TEXTS, TOKENS, WIDTH, NEAREST = 2, 7, 8, 3
Find = Callable[[Tensor, Tensor], Tensor]


def by_distance(points: Tensor, x: Tensor) -> Tensor:
    return torch.cdist(points, points).argsort(-1)[..., :NEAREST]


def by_squares(points: Tensor, x: Tensor) -> Tensor:
    squares = (points[:, :, None] - points[:, None]).square().sum(-1)
    return squares.topk(NEAREST, -1, largest=False).indices


def by_features(points: Tensor, x: Tensor) -> Tensor:
    return (x @ x.mT).topk(NEAREST, -1).indices


FINDS: dict[str, Find] = {
    "distance": by_distance,
    "squares": by_squares,
    "features": by_features,
}


def gathered(x: Tensor, index: Tensor) -> Tensor:
    wide = index[..., None].expand(*index.shape, x.shape[-1])
    return x[:, None].expand(-1, index.shape[1], -1, -1).gather(2, wide)


def indexed(x: Tensor, index: Tensor) -> Tensor:
    return x[torch.arange(len(x))[:, None, None], index]


class Near(nn.Module):
    """Attends to a few tokens, all features alike or each by itself, with places in the values."""

    def __init__(self, find: Find, *, is_vector: bool, take: Callable[[Tensor, Tensor], Tensor]):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.place = nn.Sequential(nn.Linear(3, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
        self.find, self.is_vector, self.take = find, is_vector, take
        self.seen: tuple[Tensor, Tensor] | None = None
        self.change: Callable[[Tensor, Tensor], Tensor] = lambda attention, index: attention

    def forward(self, points: Tensor, x: Tensor) -> Tensor:
        index = self.find(points, x)
        place = self.place(points[:, :, None] - self.take(points, index))
        keys, values = self.take(self.k(x), index) + place, self.take(self.v(x), index) + place
        scores = self.q(x)[:, :, None] * keys
        scores = scores if self.is_vector else scores.sum(-1, keepdim=True)
        attention = self.change(scores.softmax(2), index)
        if self.change is not Near.kept:
            self.seen = attention.detach(), index
        if self.is_vector:
            return x + torch.einsum("bqkd,bqkd->bqd", attention, values)
        return x + (attention * values).sum(2)

    @staticmethod
    def kept(attention: Tensor, index: Tensor) -> Tensor:
        return attention


class Net(nn.Module):
    def __init__(self, find: Find, *, is_vector: bool = False, take: object = gathered) -> None:
        super().__init__()
        torch.manual_seed(0)
        made = partial(Near, find, is_vector=is_vector, take=take)
        self.layers = nn.ModuleList([made(), made()])
        self.double().eval()

    def forward(self, points: Tensor, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(points, x)
        return x

    def watch(self, *, is_on: bool) -> None:
        for layer in self.layers:
            layer.change = (lambda attention, index: attention) if is_on else Near.kept


def _given() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    shapes = (TEXTS, TOKENS, 3), (TEXTS, TOKENS, WIDTH)
    points, x = (torch.randn(shape, generator=generator).double() for shape in shapes)
    return points, x


@torch.no_grad()
@pytest.mark.parametrize("name", FINDS)
@pytest.mark.parametrize("is_vector", [True, False])
@pytest.mark.parametrize("take", [gathered, indexed])
def test_keys_that_values_pick_are_the_true_ones(name: str, is_vector: bool, take: object) -> None:
    net, given = Net(FINDS[name], is_vector=is_vector, take=take), _given()
    plain = net(*given)
    wanted = [layer.seen for layer in net.layers]
    net.watch(is_on=False)
    with capturing(net) as run:
        assert torch.equal(net(*given), plain)
    assert len(run.traces) == TEXTS
    picked = [index for _, index in wanted]
    assert (name == "features") == (not torch.equal(*picked))
    for text, trace in enumerate(run.traces):
        assert len(trace.only_stack.heads) == 2 * (WIDTH if is_vector else 1)
        for (layer, head), graph in trace.only_stack.items():
            attention, index = wanted[layer]
            dense = torch.zeros(TOKENS, TOKENS).double()
            dense = dense.scatter(1, index[text], attention[text, ..., head])
            found = torch.tensor(graph.to_dense())
            torch.testing.assert_close(found, dense, atol=1e-12, rtol=0)
            assert graph.graph.num_tokens == TOKENS


@torch.no_grad()
@pytest.mark.parametrize("is_cut", [True, False])
def test_an_edge_to_a_picked_key_is_edited(is_cut: bool) -> None:
    net, given = Net(by_distance), _given()
    plain = net(*given)
    key = int(net.layers[1].seen[1][0, 2, 1])

    def change(attention: Tensor, index: Tensor) -> Tensor:
        is_it = (index == key)[..., None] & (torch.arange(TOKENS) == 2)[:, None, None]
        changed = torch.where(is_it, 0.0 if is_cut else 0.3 * attention, attention)
        return changed / changed.sum(2, keepdim=True) if is_cut else changed

    net.layers[1].change = change
    wanted = net(*given)
    net.watch(is_on=False)
    place = {"layer": 1, "query": 2, "key": key}
    with edited(net, Cut(**place) if is_cut else Scale(0.3, **place)):
        found = net(*given)
    assert not torch.allclose(wanted, plain)
    torch.testing.assert_close(found, wanted, atol=1e-12, rtol=0)


@torch.no_grad()
def test_an_edit_that_lets_values_pick_others_is_refused() -> None:
    net, given = Net(by_features), _given()
    net.watch(is_on=False)
    with pytest.raises(CaptureError, match="pick others in this run"):  # noqa: SIM117
        with edited(net, Scale(50.0, layer=0)), capturing(net):
            net(*given)


@torch.no_grad()
def test_keys_that_chance_picks_are_refused() -> None:
    net, given = Net(lambda points, x: torch.rand(x.shape[0], TOKENS, TOKENS).argsort(-1)), _given()
    net.watch(is_on=False)
    with pytest.raises(CaptureError, match="values or chance pick its tokens"), capturing(net):
        net(*given)


@torch.no_grad()
def test_layers_may_keep_their_attention() -> None:
    model, given = Net(by_distance), _given()
    model.watch(is_on=True)
    with capturing(model) as run:
        model(*given)
    for n, trace in enumerate(run.traces):
        for layer, one in enumerate(model.layers):
            attention, index = one.seen
            wanted = torch.zeros(TOKENS, TOKENS).double().scatter(1, index[n], attention[n, ..., 0])
            torch.testing.assert_close(torch.tensor(trace[layer, 0].to_dense()), wanted)
    cuts = Cut(layer=0, query=2, key=2), Scale(0.5, layer=1, query=3)
    with edited(model, cuts[0]), edited(model, cuts[1]):
        first = model(*given)
        again = model(*given)
    torch.testing.assert_close(first, again, rtol=0, atol=0)
