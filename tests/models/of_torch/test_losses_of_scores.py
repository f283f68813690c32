"""Losses of scores beside attention, as z-losses and entropies; and softmaxes that are merged."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from gattn import Cut, capturing, edited
from gattn.errors import CaptureError

LOSSES: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], str]] = {
    "z-loss": (lambda s, p: s.logsumexp(-1).square().mean(), "logsumexp"),
    "mean z": (lambda s, p: torch.stack([x.logsumexp(-1).mean() for x in s]).sum(), "logsumexp"),
    "written out": (lambda s, p: s.exp().sum(-1).log().square().mean(), "sums of exponentials"),
    "log_softmax": (lambda s, p: -(p * s.log_softmax(-1)).sum(-1), "log_softmax"),
    "keepdim": (lambda s, p: -(p * s.log_softmax(-1)).sum(-1, keepdim=True), "log_softmax"),
    "scores": (lambda s, p: (p * s).sum(-1).mean(), ""),
    "probabilities": (lambda s, p: -torch.xlogy(p, p).sum(-1), ""),
    "logits": (
        lambda s, p: torch.distributions.Categorical(logits=s).entropy().mean(),
        "another softmax and log_softmax",
    ),
}


class Losing(nn.Module):
    """Attends, and returns a loss of its scores."""

    def __init__(self, heads: int, loss: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.qkv, self.heads, self.loss = nn.Linear(12, 36), heads, loss
        self.cut: tuple[int, ...] = ()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        scores = q @ k.mT
        scores[..., self.cut] = -torch.inf
        attention = scores.softmax(-1)
        loss = self.loss(scores, attention)
        return (attention @ v).transpose(1, 2).flatten(2), loss


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("name", LOSSES)
def test_losses_of_scores_are_beside_the_attention(name: str, heads: int, layers: int) -> None:
    torch.manual_seed(0)
    loss, told = LOSSES[name]
    stack = nn.ModuleList(Losing(heads, loss) for _ in range(layers))
    model, x = Several(stack).double(), torch.randn(2, 5, 12).double()
    with torch.no_grad(), capturing(model) as run:
        plain, _ = model(x)
    q, k, _ = stack[0].qkv(x).unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)
    for text, trace in zip((q @ k.mT).softmax(-1), run.traces, strict=True):
        for head, wanted in enumerate(text):
            found = torch.tensor(trace[0, head].to_dense())
            torch.testing.assert_close(found, wanted, check_dtype=False)
    with torch.no_grad(), warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        with edited(model, Cut(key=1)):
            cut, losses = model(x)
    said = [str(one.message) for one in given]
    assert [f"computes {told} of the scores" in one for one in said] == [True] * bool(told)
    for layer in stack:
        layer.cut = (1,)
    with torch.no_grad():
        wanted, wanted_losses = model(x)
    torch.testing.assert_close(cut, wanted)
    assert not torch.allclose(cut, plain)
    if name == "probabilities":
        torch.testing.assert_close(losses, wanted_losses)


class Pooling(nn.Module):
    """Pools states by one query, and returns the entropy of its attention."""

    def __init__(self, dims: int) -> None:
        super().__init__()
        self.score, self.dims = nn.Linear(12, 1), dims

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        scores = self.score(x.tanh())
        scores, dim = (scores, 1) if self.dims == 3 else (scores[..., 0], -1)
        weights = scores.softmax(dim)
        entropy = -(weights * functional.log_softmax(scores, dim)).sum(dim)
        weights = weights if self.dims == 3 else weights[..., None]
        return (weights * x).sum(1), entropy


@pytest.mark.parametrize("dims", [2, 3])
def test_the_entropy_of_pooling_is_no_value(dims: int) -> None:
    torch.manual_seed(0)
    model, x = Pooling(dims), torch.randn(3, 5, 12)
    with torch.no_grad(), capturing(model) as run:
        model(x)
    wanted = model.score(x.tanh())[..., 0].softmax(1)
    for text, trace in zip(wanted, run.traces, strict=True):
        found = torch.tensor(trace[0, 0].to_dense())[0]
        torch.testing.assert_close(found, text, check_dtype=False)


@pytest.mark.parametrize("shape", [(3, 5), (3, 5, 1), (3, 2, 5)])
def test_numbers_that_are_pooled_are_values(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    model, x = Numbers(shape), torch.randn(3, 5, 12)
    with torch.no_grad(), capturing(model) as run:
        model(x)
    wanted, _ = model.parts(x)
    wanted = wanted.movedim(shape.index(5), -1).reshape(3, -1, 5)
    for text, trace in zip(wanted, run.traces, strict=True):
        for head, one in enumerate(text):
            found = torch.tensor(trace[0, head].to_dense())[0]
            torch.testing.assert_close(found, one, check_dtype=False)


class Numbers(nn.Module):
    """Pools one number of each token and head."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        heads = shape[1] if shape[2:] == (5,) else 1
        self.score, self.value = nn.Linear(12, heads), nn.Linear(12, heads)
        self.dim = shape.index(5)
        self.shape = shape

    def parts(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return attention and values."""
        score, value = (part(x).mT.reshape(self.shape) for part in (self.score, self.value))
        return score.softmax(self.dim), value

    def forward(self, x: Tensor) -> Tensor:
        weights, value = self.parts(x)
        return (weights * value).sum(self.dim)


class Several(nn.Module):
    """Adds up the losses of its layers, as a model does that is trained on all of them."""

    def __init__(self, layers: nn.ModuleList) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        total = torch.zeros(())
        for layer in self.layers:
            now, loss = layer(x)
            x, total = x + now, total + 1e-3 * loss
        return x, total


def _weighed(outs: list[Tensor], sums: list[Tensor]) -> Tensor:
    whole = torch.stack(sums).logsumexp(0)
    return sum(
        ((one - whole).exp()[..., None] * out for out, one in zip(outs, sums, strict=True)),
        torch.zeros(()),
    )


def _stacked(outs: list[Tensor], sums: list[Tensor]) -> Tensor:
    return torch.einsum("nbij,nbi->bij", torch.stack(outs), torch.stack(sums).softmax(0))


def _in_buffers(outs: list[Tensor], sums: list[Tensor]) -> Tensor:
    kept, logs = outs[0].new_zeros(2, *outs[0].shape), sums[0].new_zeros(2, *sums[0].shape)
    for n, (out, one) in enumerate(zip(outs, sums, strict=True)):
        kept[n], logs[n] = out, one
    return (kept * logs.softmax(0)[..., None]).sum(0)


def _packed(outs: list[Tensor], sums: list[Tensor]) -> Tensor:
    both = [torch.cat([out, one[..., None]], -1) for out, one in zip(outs, sums, strict=True)]
    (a, b), size = both, outs[0].shape[-1]
    share = torch.sigmoid(a[..., size:] - b[..., size:])
    return share * a[..., :size] + (1 - share) * b[..., :size]


def _lerped(outs: list[Tensor], sums: list[Tensor]) -> Tensor:
    return outs[0].lerp(outs[1], torch.sigmoid(sums[1] - sums[0])[..., None])


def _by_number(outs: list[Tensor], sums: list[Tensor]) -> Tensor:
    share = torch.sigmoid(sums[0] - sums[1]).mean().item()
    return share * outs[0] + (1 - share) * outs[1]


def _by_list(outs: list[Tensor], sums: list[Tensor]) -> Tensor:
    share = torch.tensor(torch.sigmoid(sums[0] - sums[1]).tolist())[..., None]
    return share * outs[0] + (1 - share) * outs[1]


class Chunk(nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        scores = q @ k.mT
        return scores.softmax(-1) @ v, scores.logsumexp(-1)


class FusedChunk(nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        heads = [x[:, None] for x in (q, k, v)]  # With heads, it is one kernel.
        out = functional.scaled_dot_product_attention(*heads, scale=1.0)
        return out[:, 0], (q @ k.mT).logsumexp(-1)


class Chunks(nn.Module):
    """Attends to two chunks of keys, and merges what they give by their normalizers."""

    def __init__(
        self, merged: Callable[[list[Tensor], list[Tensor]], Tensor], chunk: nn.Module
    ) -> None:
        super().__init__()
        self.qkv, self.chunk, self.merged = nn.Linear(12, 36), chunk, merged

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        some = zip(k.chunk(2, 1), v.chunk(2, 1), strict=True)
        outs, sums = zip(*[self.chunk(q, *one) for one in some], strict=True)
        return self.merged(list(outs), list(sums))


@pytest.mark.parametrize(
    "merged",
    [_weighed, _stacked, _in_buffers, _packed, _lerped, _by_number, _by_list],
    ids=lambda x: x.__name__,
)
@pytest.mark.parametrize("chunk", [Chunk, FusedChunk])
def test_softmaxes_of_chunks_are_refused_however_they_are_merged(merged, chunk) -> None:
    torch.manual_seed(0)
    model = Chunks(merged, chunk())
    with (
        pytest.raises(CaptureError, match="its softmax divides"),
        torch.no_grad(),
        capturing(model),
    ):
        model(torch.randn(2, 6, 12))
