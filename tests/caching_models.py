"""Small models with a cache of their own, and their attention computed densely."""

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
    x, past = model(ids[:, :first], torch.arange(first))
    found = [x]
    for n in range(first, ids.shape[1]):
        x, past = model(ids[:, n : n + 1], torch.tensor([n]), past if is_given else None)
        found.append(x)
    return found


def dense(model, ids, cut=None, keys=None):
    """Compute the attention of a whole text, (layer, batch, heads, queries, keys), and logits.

    `cut` is a layer, head, queries and key; `keys` (queries, keys) are those that may be read.
    """
    count, found = ids.shape[1], []
    x = model.embed(ids) + model.place(torch.arange(count))
    allowed = torch.ones(count, count, dtype=torch.bool).tril()
    allowed = allowed if keys is None else allowed & keys
    for n, layer in enumerate(model.layers):
        q, k, v = layer.qkv(x).view(len(ids), count, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        scores = torch.einsum("bhqd,bhkd->bhqk", q, k) / (WIDTH // HEADS) ** 0.5
        scores = scores.masked_fill(~allowed, -torch.inf)
        if cut is not None and cut[0] == n:
            scores[:, cut[1], cut[2], cut[3]] = -torch.inf
        found.append(scores.softmax(-1).nan_to_num())  # A fully cut query reads nothing.
        x = x + layer.out((found[-1] @ v).transpose(1, 2).flatten(2))
    return torch.stack(found), x


def check(trace, wanted, row=0):
    """Compare a trace of one stack with dense attention."""
    assert len(trace.only_stack.heads) == wanted.shape[0] * wanted.shape[2]
    for (layer, head), graph in trace.only_stack.heads.items():
        assert graph.graph.num_queries == graph.graph.num_keys == wanted.shape[3]
        torch.testing.assert_close(torch.tensor(graph.to_dense()), wanted[layer, row, head])


def compare(model, ids, run, at_once=dense, cuts=((1, 2, slice(None), 0), (0, 1, -1, 1))):
    """Compare a run in steps, as it is and edited, with the whole text at once."""
    last = ids.shape[1] - 1
    with torch.no_grad():
        wanted, whole = at_once(model, ids)
        with gattn.capturing(model) as seen:
            torch.testing.assert_close(run(model), whole)
        assert len(seen.traces) == len(ids)
        for n, trace in enumerate(seen.traces):
            check(trace, wanted, n)
        for layer, head, query, key in cuts:
            query = last if query == -1 else query
            cut = gattn.Cut(layer=layer, head=head, query=query, key=key)
            with gattn.edited(model, cut):
                found = run(model)
            torch.testing.assert_close(found, at_once(model, ids, (layer, head, query, key))[1])
    return seen.traces


def made(extended, is_fused=False, layers=2):
    torch.manual_seed(0)
    model = Text(*(Attending(extended, is_fused) for _ in range(layers))).double().eval()
    if extended is in_buffers:
        for layer in model.layers:
            layer.register_buffer("held", torch.zeros(2, 3, HEADS, ROOM, WIDTH // HEADS).double())
    if extended is in_objects:
        for layer in model.layers:
            layer.held = Cache()
    return model
