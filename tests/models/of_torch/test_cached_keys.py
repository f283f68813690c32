"""Keys that a cache of a model's own rounds or rotates, and texts whose keys are equal."""

import pytest
import torch
from caching_models import (
    HEADS,
    WIDTH,
    Attending,
    Text,
    check,
    compare,
    dense,
    in_tuples,
    made,
    stepped,
)
from torch import nn

import gattn
from gattn.errors import CaptureError

SIZE = WIDTH // HEADS


class Rounding(Attending):
    """Keeps keys and values in another precision; a token reads those of its own call exactly."""

    def __init__(self, rounded):
        super().__init__(None)
        self.rounded = rounded

    def forward(self, x, past=None, at=None):
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        kept = self.rounded(k), self.rounded(v)
        if past is not None:
            k, v = (torch.cat([y.to(x.dtype), z], 2) for y, z in zip(past, (k, v), strict=True))
            kept = tuple(torch.cat(pair, 2) for pair in zip(past, kept, strict=True))
        hides = torch.arange(k.shape[2]) > at[:, None]
        a = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=~hides)
        return self.out(a.transpose(1, 2).flatten(2)), kept


def rounded_by(dtype, first):
    """Compute attention whose tokens read exact keys of their own call, and rounded older ones."""

    def at_once(model, ids, cut=None):
        count, found = ids.shape[1], []
        x = model.embed(ids) + model.place(torch.arange(count))
        query, key = torch.arange(count)[:, None], torch.arange(count)
        is_own = (query == key) | ((query < first) & (key < first))
        for n, layer in enumerate(model.layers):
            q, k, v = layer.qkv(x).view(len(ids), count, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
            near, far = k.to(dtype).to(k.dtype), v.to(dtype).to(v.dtype)
            scores = torch.where(is_own, q @ k.mT, q @ near.mT) / SIZE**0.5
            scores = scores.masked_fill(key > query, -torch.inf)
            if cut is not None and cut[0] == n:
                scores[:, cut[1], cut[2], cut[3]] = -torch.inf
            a = scores.softmax(-1).nan_to_num()
            found.append(a)
            mixed = (a * is_own) @ v + (a * ~is_own) @ far
            x = x + layer.out(mixed.transpose(1, 2).flatten(2))
        return torch.stack(found), x

    return at_once


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("batch", [1, 2])
def test_a_cache_may_be_in_half_precision(batch, dtype):
    torch.manual_seed(0)
    layers = (Rounding(lambda x: x.to(dtype)) for _ in range(2))
    model, ids = Text(*layers).double().eval(), torch.randint(0, 9, (batch, 5))

    def run(model):
        return torch.cat(stepped(model, ids, 3, True), 1)

    compare(model, ids, run, rounded_by(dtype, 3))


def test_keys_rounded_in_another_way_are_refused():
    torch.manual_seed(0)
    layers = (Rounding(lambda x: (x * 16).round() / 16) for _ in range(2))
    model = Text(*layers).double().eval()
    with (
        torch.no_grad(),
        pytest.raises(CaptureError, match="changed, compressed, dropped or computed anew"),
        gattn.edited(model, gattn.Cut(layer=1, head=2, key=1)),
    ):
        stepped(model, torch.tensor([[1, 2, 3, 4, 5]]), 3, True)


class Rotating(Attending):
    """Keeps keys as they are, and rotates them as they are read."""

    def forward(self, x, past=None, at=None):
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        if past is not None:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        first = int(at[-1]) + 1 - k.shape[2] if self.extended == "in the text" else 0
        of_keys = torch.arange(first, first + k.shape[2])
        turned = turn(q, at), turn(k, of_keys), v
        hides = torch.arange(k.shape[2]) > at[:, None] - (int(at[-1]) + 1 - k.shape[2])
        a = nn.functional.scaled_dot_product_attention(*turned, attn_mask=~hides)
        kept = slice(None) if self.extended == "in the text" else slice(-3, None)
        return self.out(a.transpose(1, 2).flatten(2)), (k[:, :, kept], v[:, :, kept])


def turn(x, at):
    angles = at[:, None] * torch.tensor([1.0, 0.25])
    one, other = x.chunk(2, -1)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    return torch.cat([one * cos - other * sin, one * sin + other * cos], -1)


def rotated(model, ids, cut=None):
    count, found = ids.shape[1], []
    at = torch.arange(count)
    x = model.embed(ids) + model.place(at)
    for n, layer in enumerate(model.layers):
        q, k, v = layer.qkv(x).view(len(ids), count, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        scores = (turn(q, at) @ turn(k, at).mT / SIZE**0.5).masked_fill(
            at > at[:, None], -torch.inf
        )
        if cut is not None and cut[0] == n:
            scores[:, cut[1], cut[2], cut[3]] = -torch.inf
        found.append(scores.softmax(-1).nan_to_num())
        x = x + layer.out((found[-1] @ v).transpose(1, 2).flatten(2))
    return torch.stack(found), x


def test_keys_may_be_rotated_as_they_are_read():
    """By their positions in the text they are the same each time."""
    torch.manual_seed(0)
    layers = (Rotating("in the text") for _ in range(2))
    model, ids = Text(*layers).double().eval(), torch.randint(0, 9, (2, 5))

    def run(model):
        return torch.cat(stepped(model, ids, 3, True), 1)

    compare(model, ids, run, rotated)


def test_keys_rotated_by_their_place_in_the_cache_are_refused():
    torch.manual_seed(0)
    model = Text(*(Rotating("in the cache") for _ in range(2))).double().eval()
    with (
        torch.no_grad(),
        pytest.raises(CaptureError, match="changed, compressed, dropped or computed anew"),
        gattn.capturing(model),
    ):
        stepped(model, torch.tensor([[1, 2, 3, 4, 5, 6]]), 3, True)


A, B, C = torch.tensor([[0, 1, 2, 3]]), torch.tensor([[0, 4, 5, 6]]), torch.tensor([[0, 1, 7, 8]])


@pytest.mark.parametrize("texts", [[A, B], [A, A], [A, B, C], [A, A, A]])
@pytest.mark.parametrize("first", [1, 2])
def test_texts_that_begin_alike_may_go_on_side_by_side(first, texts):
    """Equal prompts are told apart by which of them goes on."""
    model = made(in_tuples)
    with torch.no_grad():
        with gattn.capturing(model) as run:
            pasts = [model(ids[:, :first], torch.arange(first))[1] for ids in texts]
            for n in range(first, 4):
                for row, ids in enumerate(texts):
                    pasts[row] = model(ids[:, n : n + 1], torch.tensor([n]), pasts[row])[1]
        assert len(run.traces) == len(texts)
        left = [dense(model, ids)[0] for ids in texts]
        for trace in run.traces:
            matching = next(n for n, wanted in enumerate(left) if is_of(trace, wanted))
            check(trace, left.pop(matching))


def is_of(trace, wanted):
    found = torch.tensor(trace[1, 0].to_dense())
    return found.shape == wanted.shape[-2:] and torch.allclose(found, wanted[1, 0, 0])


class Apart(nn.Module):
    """Attends to what modules of their own made queries, keys and values of."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.attend = Scores()

    def forward(self, x, past=None):
        q, k, v = (
            part(x).unflatten(-1, (HEADS, SIZE)).transpose(1, 2)
            for part in (self.q, self.k, self.v)
        )
        if past is not None:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        return self.attend(q, k, v).transpose(1, 2).flatten(2), (k, v)


class Scores(nn.Module):
    def forward(self, q, k, v):
        count = k.shape[2]
        hides = torch.ones(count, count, dtype=torch.bool).triu(1)[-q.shape[2] :]
        scores = torch.einsum("bhid,bhjd->bhij", q, k) / SIZE**0.5
        weights = scores.masked_fill(hides, -1e9).softmax(-1)
        return torch.einsum("bhij,bhjd->bhid", weights, v)


@pytest.mark.parametrize("batch", [1, 2])
def test_queries_keys_and_values_may_come_from_modules_of_their_own(batch):
    """Queries that do not depend on what made the keys are not learned ones."""
    torch.manual_seed(0)
    model, x = Apart().double().eval(), torch.randn(batch, 6, WIDTH, dtype=torch.float64)
    with torch.no_grad():
        with gattn.capturing(model) as run:
            _, past = model(x[:, :4])
            for n in (4, 5):
                _, past = model(x[:, n : n + 1], past)
        q, k = (part(x).unflatten(-1, (HEADS, SIZE)).transpose(1, 2) for part in (model.q, model.k))
        scores = (q @ k.mT / SIZE**0.5).masked_fill(torch.ones(6, 6).triu(1).bool(), -torch.inf)
    assert len(run.traces) == batch
    for n, trace in enumerate(run.traces):
        check(trace, scores.softmax(-1)[None], n)
        assert not trace[0, 0].graph.is_bipartite
