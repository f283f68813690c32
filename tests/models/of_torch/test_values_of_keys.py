"""Values that are not those of the keys' tokens: an edge would carry what another token gave."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import gattn
from gattn.errors import CaptureError

TOKENS = 6


class Layer(nn.Module):
    """Attention that meets its values in some way, (batch, heads, tokens, dim)."""

    def __init__(self, meet, heads: int = 2) -> None:
        super().__init__()
        self.qkv, self.meet, self.kept = nn.Linear(4 * heads, 12 * heads), meet, None

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, -1, 4)).permute(2, 0, 3, 1, 4)
        self.kept = (q @ k.mT).softmax(-1)
        return x + self.meet(self.kept, v).transpose(1, 2).flatten(2)


class Given(nn.Module):
    """A module around torch's, which gives it other values than keys."""

    def __init__(self, move) -> None:
        super().__init__()
        self.attn, self.move = nn.MultiheadAttention(8, 2, batch_first=True), move

    def forward(self, x: Tensor) -> Tensor:
        k, v = x * 2, self.move(x * 3)
        return x + self.attn(x, k, v)[0]


def by_kernel(move):
    """Attention by torch's kernel, whose values are moved."""

    class Kernel(Layer):
        def forward(self, x: Tensor) -> Tensor:
            q, k, v = self.qkv(x).unflatten(-1, (3, -1, 4)).permute(2, 0, 3, 1, 4)
            y = nn.functional.scaled_dot_product_attention(q, k, move(v))
            return x + y.transpose(1, 2).flatten(2)

    return Kernel(None)


def given_heads(heads: int, batch: int, model: nn.Module | None = None, meet=None):
    torch.manual_seed(0)
    layer = model or Layer(meet, heads)
    return layer.eval(), torch.randn(batch, TOKENS, 4 * heads)


def refused(model: nn.Module, x: Tensor) -> None:
    with (
        pytest.raises(CaptureError, match="values are those of other tokens than its keys"),
        torch.no_grad(),
        gattn.capturing(model),
    ):
        model(x)


MOVES = {
    "other tokens": lambda v: v.flip(-2),
    "shifted": lambda v: v.roll(1, -2),
    "some": lambda v: v[..., [0, 1, 3, 2, 4, 5], :],
    "other text": lambda v: v.flip(0),
    "first text": lambda v: v[:1].expand_as(v),
    "one head's": lambda v: torch.cat([v[:, :1], v[:, 1:].flip(-2)], 1),
}


@pytest.mark.parametrize("move", MOVES.values(), ids=MOVES)
@pytest.mark.parametrize("is_kernel", [False, True])
def test_values_moved_in_the_module_are_refused(move, is_kernel):
    model = by_kernel(move) if is_kernel else None
    refused(*given_heads(2, 2, model, lambda a, v: a @ move(v)))


@pytest.mark.parametrize(("heads", "batch"), [(2, 2), (6, 2), (6, 6)])
def test_views_that_pair_attention_with_another_text_are_refused(heads, batch):
    def meet(a: Tensor, v: Tensor) -> Tensor:
        a = a.view(heads, batch, TOKENS, TOKENS).transpose(0, 1)
        return a @ v

    refused(*given_heads(heads, batch, meet=meet))


@pytest.mark.parametrize("batch", [1, 2])
def test_views_that_take_heads_for_queries_are_refused(batch):
    def meet(a: Tensor, v: Tensor) -> Tensor:
        return a.view(batch, TOKENS, TOKENS, TOKENS).transpose(1, 2) @ v

    model, x = given_heads(TOKENS, batch, meet=meet)
    with (
        pytest.raises(CaptureError, match="heads and queries change places"),
        torch.no_grad(),
        gattn.capturing(model),
    ):
        model(x)


@pytest.mark.parametrize("batch", [1, 2])
def test_values_of_images_moved_are_refused(batch):
    class Image(Layer):
        def forward(self, x: Tensor) -> Tensor:  # (batch, channels, rows, columns)
            q, k, v = self.qkv(x.movedim(1, -1)).flatten(1, 2).chunk(3, -1)
            y = (q @ k.mT).softmax(-1) @ v.flip(1)
            return x + y.unflatten(1, x.shape[2:]).movedim(-1, 1)

    torch.manual_seed(0)
    refused(Image(None).eval(), torch.randn(batch, 8, 2, 3))


def test_values_of_a_loop_over_texts_moved_are_refused():
    class Loop(Layer):
        def forward(self, x: Tensor) -> Tensor:
            q, k, v = self.qkv(x).chunk(3, -1)
            y = [(q[n] @ k[n].mT).softmax(-1) @ v[n].flip(0) for n in range(len(x))]
            return x + torch.stack(y)

    refused(*given_heads(2, 2, Loop(None)))


def test_values_moved_before_another_module_are_refused():
    refused(*given_heads(2, 2, Given(MOVES["other tokens"])))


KEPT = {
    "own": lambda a, v: a @ v,
    "mixed": lambda a, v: a @ (v + v.roll(1, -2)),
    "one": lambda a, v: a @ (v - v + 1),
    "mean": lambda a, v: a @ (v + v.mean(-2, keepdim=True)),
    "heads shared": lambda a, v: a @ v[:, :1],
    "rows folded": lambda a, v: a.view(-1, a.shape[-1]).view(a.shape) @ v,
    "partly shifted": lambda a, v: a @ torch.cat([v[..., :2].roll(1, -2), v[..., 2:]], -1),
}


@pytest.mark.parametrize("meet", KEPT.values(), ids=KEPT)
@pytest.mark.parametrize("batch", [1, 2, 3])
def test_other_values_are_shown_as_they_are(meet, batch):
    model, x = given_heads(2, batch, meet=meet)
    with torch.no_grad():
        model(x)
        want = model.kept
        with gattn.capturing(model) as run:
            model(x)
    for trace, own in zip(run.traces, want, strict=True):
        for head in range(2):
            assert torch.allclose(torch.as_tensor(trace[0, head].to_dense()).to(own), own[head])


def test_values_of_another_input_are_shown():
    class Tracing(nn.Module):  # As AKT: exercises are keys, and answers to them values.
        def __init__(self) -> None:
            super().__init__()
            self.q, self.v = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: Tensor, answers: Tensor) -> Tensor:
            self.kept = (self.q(x) @ self.q(x).mT).softmax(-1)
            return x + self.kept @ self.v(answers)

    torch.manual_seed(0)
    model, x = Tracing().eval(), torch.randn(2, TOKENS, 8)
    with torch.no_grad(), gattn.capturing(model) as run:
        model(x, torch.randn(2, TOKENS, 8))
    for trace, own in zip(run.traces, model.kept, strict=True):
        assert torch.allclose(torch.as_tensor(trace[0, 0].to_dense()).to(own), own)


def test_values_that_heads_share_are_shown_where_heads_are_given_apart():
    class Heads(nn.Module):
        def forward(self, x: Tensor) -> Tensor:  # (batch, heads, tokens, dim)
            self.kept = (x @ x.mT).softmax(-1)
            return x + self.kept @ x[:, :1]

    torch.manual_seed(0)
    model, x = (
        nn.Sequential(nn.Linear(8, 8), nn.Unflatten(-1, (2, 4)), Turned(), Heads()),
        (torch.randn(2, TOKENS, 8)),
    )
    with torch.no_grad(), gattn.capturing(model) as run:
        model(x)
    for trace, own in zip(run.traces, model[-1].kept, strict=True):
        for head in range(2):
            assert torch.allclose(torch.as_tensor(trace[0, head].to_dense()).to(own), own[head])


class Turned(nn.Module):
    """Heads before tokens."""

    def forward(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2)
