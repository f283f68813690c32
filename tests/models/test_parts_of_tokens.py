"""Softmaxes that weigh what one token has after several layers are no attention between tokens."""

from __future__ import annotations

import pytest
import torch
from hand_written import Layer
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from gattn import Cut, capturing, edited

_D = 16


class Attends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(_D, _D) for _ in range(3))
        self.own: Tensor | None = None

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        y = x if y is None else y
        attention = (self.q(x) @ self.k(y).mT / 4).softmax(-1)
        self.own = attention.detach()
        return attention @ self.v(y)


class Layers(nn.Module):
    """Sums what a token was after each layer, with weights of its own, for queries, keys, values.

    As the layer integrators of LIMe do.
    """

    def __init__(self, count: int, views: int = 1) -> None:
        super().__init__()
        self.views = views
        self.to_weights = nn.Sequential(nn.Linear(_D, views * count), nn.Unflatten(-1, (views, -1)))

    def forward(self, x: Tensor, parts: list[Tensor]) -> Tensor:
        weights = self.to_weights(x).softmax(-1)
        return torch.einsum("lbnd,bnvl->vbnd", torch.stack(parts), weights).mean(0)


class Residual(nn.Module):
    """A learned query of each token attends to what it was after each layer."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.attend, self.query = Attends(), nn.Parameter(torch.randn(_D))

    def forward(self, x: Tensor, parts: list[Tensor]) -> Tensor:
        context = torch.stack(parts, 2).flatten(0, 1)
        query = (x + self.query).reshape(-1, 1, _D)
        return self.attend(query, context).view_as(x)


class Views(Layers):
    def __init__(self, count: int) -> None:
        super().__init__(count, views=3)


class Streams(Layers):
    """Normalizes its weights again, as manifold-constrained hyper-connections do."""

    def forward(self, x: Tensor, parts: list[Tensor]) -> Tensor:
        weights = F.normalize(self.to_weights(x).softmax(-2), p=1, dim=-1)
        return torch.einsum("lbnd,bnvl->vbnd", torch.stack(parts), weights).mean(0)


class Model(nn.Module):
    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.attends = nn.ModuleList(Attends() for _ in range(2))
        self.joins = nn.ModuleList(kind(n + 1) for n in range(2))

    def forward(self, x: Tensor) -> Tensor:
        parts = [x]
        for attend, join in zip(self.attends, self.joins, strict=True):
            parts.append(attend(join(parts[-1], parts)))
        return parts[-1]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", [Layers, Views, Streams, Residual])
@torch.no_grad()
def test_the_layers_of_a_token_are_no_tokens(kind: type[nn.Module]) -> None:
    model, x = Model(kind).eval(), torch.randn(2, 6, _D)
    with capturing(model) as run:
        model(x)
    for n, trace in enumerate(run.traces):
        assert list(trace.stacks) == ["attends"]
        for layer, attend in enumerate(model.attends):
            own = attend.own[n].numpy()
            assert trace[layer, 0].to_dense() == pytest.approx(own, abs=1e-6)


class Frames(nn.Module):
    """Each place of an image attends to itself in all frames, which are given one by one."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.attend = Attends()

    def forward(self, *frames: Tensor) -> Tensor:
        return self.attend(torch.stack(frames, 2).flatten(0, 1))


@torch.no_grad()
def test_frames_that_are_given_one_by_one_are_tokens() -> None:
    model, frames = Frames().eval(), torch.randn(3, 2, 5, _D).unbind()
    with capturing(model) as run:
        model(*frames)
    found = [graph.to_dense() for trace in run.traces for graph in trace.only_stack.values()]
    assert sum(graph.sum() for graph in found) == pytest.approx(2 * 5 * 3)


class Senses(nn.Module):
    """A learned query reads three vectors, a token each, and other attention reads words."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.senses, self.words = Attends(), Layer(F.scaled_dot_product_attention)
        self.query = nn.Parameter(torch.randn(_D))

    def forward(self, one: Tensor, two: Tensor, three: Tensor) -> Tensor:
        all_three = torch.stack((one, two, three), 1)
        return self.senses(self.query.expand(len(one), 1, -1), all_three)


@torch.no_grad()
def test_vectors_that_are_a_token_each_are_read() -> None:
    model, senses = Senses().eval(), torch.randn(3, 2, _D).unbind()
    with capturing(model) as run:
        model(*senses)
    for n, trace in enumerate(run.traces):
        own = model.senses.own[n].numpy()
        assert trace.only_stack[0, 0].to_dense() == pytest.approx(own, abs=1e-6)


class Mixing(nn.Module):
    """Two streams of each token, mixed before each layer by a method, not by a module's run."""

    def __init__(self, views: int) -> None:
        super().__init__()
        self.views = views
        self.norm, self.weigh = nn.LayerNorm(_D), nn.Linear(_D, views + 2)

    def prepare(self, streams: Tensor) -> tuple[Tensor, Tensor]:
        """Mix (2 * batch, tokens, dim) to what a layer reads, and to the streams after it."""
        parts = streams.unflatten(0, (2, -1)).permute(1, 2, 0, 3)  # (batch, tokens, 2, dim)
        weights = self.weigh(self.norm(parts)).mT.softmax(-1)
        weights = F.normalize(weights, p=1, dim=-2)
        mixed = torch.einsum("bnvs,bnsd->bnvd", weights, parts)
        read, rest = mixed[:, :, : self.views].mean(2), mixed[:, :, self.views :]
        return read, rest.permute(2, 0, 1, 3).flatten(0, 1)


class Hyper(nn.Module):
    """Each stream goes on through the weights that mix them, and nowhere else."""

    def __init__(self, moves: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.attends = nn.ModuleList(Attends() for _ in range(3))
        self.mixes = nn.ModuleList(Mixing(views) for views in (3, 3, 1))
        self.moves = moves

    def forward(self, x: Tensor, left_out: int | None = None) -> Tensor:
        streams = torch.cat([x, x + 1])
        for layer, (attend, mix) in enumerate(zip(self.attends, self.mixes, strict=True)):
            if self.moves and layer == 1:
                streams = streams.flip(1)
            read, rest = mix.prepare(streams)
            added = attend(read)
            if left_out is not None and layer == 1:
                scores = attend.q(read) @ attend.k(read).mT / 4
                scores[..., left_out] = -torch.inf
                added = scores.softmax(-1) @ attend.v(read)
            streams = rest + added.repeat(2, 1, 1)
        return streams.unflatten(0, (2, -1)).sum(0)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("moves", [False, True], ids=["in order", "flipped"])
@torch.no_grad()
def test_streams_that_are_mixed_carry_their_tokens_on(moves: bool) -> None:
    model, x = Hyper(moves).double().eval(), torch.randn(2, 6, _D).double()
    with capturing(model) as run:
        expected = model(x)
    for n, trace in enumerate(run.traces):
        assert list(trace.stacks) == ["attends"]
        for layer, attend in enumerate(model.attends):
            own = attend.own[n].numpy()
            own = own[::-1, ::-1] if moves and layer else own
            assert trace[layer, 0].to_dense() == pytest.approx(own, abs=1e-12)
    with edited(model, Cut(layer=1, key=1)):
        found = model(x)
    assert not torch.allclose(found, expected)
    torch.testing.assert_close(found, model(x, 4 if moves else 1), rtol=1e-12, atol=1e-12)
