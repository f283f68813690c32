"""Generation loops with a cache of the model's own, one new token at a time."""

import pytest
import torch
from torch import nn

import gattn

WIDTH, HEADS, ROOM = 16, 4, 12


class Attending(nn.Module):
    """Causal attention; `extended` says where keys and values of earlier tokens are kept."""

    def __init__(self, extended, is_fused=False):
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.extended, self.is_fused = extended, is_fused

    def forward(self, x, past=None, at=None):
        batch, count, _ = x.shape
        q, k, v = self.qkv(x).view(batch, count, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        k, v, past, at = self.extended(self, k, v, past, at)
        hides = torch.arange(k.shape[2]) > at[:, None]
        if self.is_fused:
            a = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=~hides)
        else:
            scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(hides, -torch.inf)
            a = scores.softmax(-1) @ v
        return self.out(a.transpose(1, 2).flatten(2)), past


def counted(k, before):
    return torch.arange(before, before + k.shape[2])


def in_tuples(layer, k, v, past, at):
    before = 0 if past is None else past[0].shape[2]
    at = counted(k, before)
    if before:
        k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
    return k, v, (k, v), at


def in_dicts(layer, k, v, past, at):
    k, v, pair, at = in_tuples(layer, k, v, past and (past["k"], past["v"]), at)
    return k, v, {"k": pair[0], "v": pair[1]}, at


def in_buffers(layer, k, v, past, at):
    batch = len(k)
    layer.held[0][:batch, :, at], layer.held[1][:batch, :, at] = k, v
    return layer.held[0][:batch], layer.held[1][:batch], None, at


def in_attributes(layer, k, v, past, at):
    k, v, layer.held, at = in_tuples(layer, k, v, getattr(layer, "held", None), at)
    return k, v, None, at


def in_objects(layer, k, v, past, at):
    k, v, layer.held.pair, at = in_tuples(layer, k, v, layer.held.pair, at)
    return k, v, None, at


class Cache:
    def __init__(self):
        self.pair = None


class Text(nn.Module):
    """Embeds ids, and attends twice."""

    def __init__(self, *layers):
        super().__init__()
        self.embed, self.place = nn.Embedding(9, WIDTH), nn.Embedding(ROOM, WIDTH)
        self.layers = nn.ModuleList(layers)

    def forward(self, ids, at, past=None):
        x, found = self.embed(ids) + self.place(at), []
        for n, layer in enumerate(self.layers):
            y, kept = layer(x, past and past[n], at)
            x = x + y
            found.append(kept)
        return x, found


def stepped(model, ids, first, is_given):
    """Run a prompt, and then token by token."""
    _, past = model(ids[:, :first], torch.arange(first))
    for n in range(first, ids.shape[1]):
        _, past = model(ids[:, n : n + 1], torch.tensor([n]), past if is_given else None)


def compare(model, whole, ids, first, is_given=True):
    """Compare each step with the last row of its text, run at once without a cache."""
    with torch.no_grad():
        with gattn.capturing(whole) as all_at_once:
            whole(ids, torch.arange(ids.shape[1]))
        with gattn.capturing(model) as run:
            stepped(model, ids, first, is_given)
    batch = len(ids)
    assert len(run.traces) == batch * (1 + ids.shape[1] - first)
    for b, wanted in enumerate(all_at_once.traces):
        rows = {(h.layer, h.head): h.to_dense() for h in wanted.only_stack.heads.values()}
        for n in range(first, ids.shape[1]):
            stacks = run.traces[(n - first + 1) * batch + b].stacks.values()
            heads = [(i, h) for i, stack in enumerate(stacks) for h in stack.heads.values()]
            assert len(heads) == len(rows)
            for layer, h in heads:
                row = torch.tensor(rows[layer, h.head][n : n + 1, : n + 1])
                torch.testing.assert_close(torch.tensor(h.to_dense()), row)


def made(extended, is_fused=False):
    torch.manual_seed(0)
    whole = Text(Attending(in_tuples, is_fused), Attending(in_tuples, is_fused)).double().eval()
    model = Text(Attending(extended, is_fused), Attending(extended, is_fused)).double().eval()
    model.load_state_dict(whole.state_dict())
    return model, whole


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("is_fused", [False, True])
@pytest.mark.parametrize("extended", [in_tuples, in_dicts])
def test_a_cache_that_is_given_is_counted_as_it_lies(extended, is_fused, batch):
    model, whole = made(extended, is_fused)
    compare(model, whole, torch.randint(0, 9, (batch, 5)), 3)


@pytest.mark.parametrize("batch", [1, 2])
def test_a_text_may_begin_with_one_token(batch):
    model, whole = made(in_tuples)
    compare(model, whole, torch.randint(0, 9, (batch, 3)), 1)


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("is_fused", [False, True])
def test_modules_may_hold_the_cache(is_fused, batch):
    ids = torch.randint(0, 9, (batch, 5))
    model, whole = made(in_attributes, is_fused)
    compare(model, whole, ids, 3, is_given=False)
    assert model.layers[0].held[0].shape[2] == 5
    model, whole = made(in_objects, is_fused)
    for layer in model.layers:
        layer.held = Cache()
    compare(model, whole, ids, 3, is_given=False)
    assert model.layers[0].held.pair[0].shape[2] == 5


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("is_fused", [False, True])
def test_a_cache_may_have_room_for_more(is_fused, batch):
    model, whole = made(in_buffers, is_fused)
    for layer in model.layers:
        layer.register_buffer("held", torch.zeros(2, 2, HEADS, ROOM, WIDTH // HEADS).double())
    compare(model, whole, torch.randint(0, 9, (batch, 5)), 3, is_given=False)
