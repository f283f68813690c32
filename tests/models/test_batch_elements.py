"""Which element of the batch each call of attention belongs to, by models' own numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from gattn import Cut, capturing, edited
from gattn.errors import CaptureError

HEADS, DIM = 2, 4
WIDTH = HEADS * DIM


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def heads(x):
    return x.unflatten(-1, (HEADS, DIM)).transpose(-3, -2)


class Attention(nn.Module):
    """Keeps its numbers, and cuts a connection by itself if it is told to."""

    def __init__(self, causal=False, number=0):
        super().__init__()
        self.number = number  # No two layers are alike.
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.causal, self.cut, self.seen = causal, None, None

    def forward(self, x, keys=None):
        keys = x if keys is None else keys
        scores = heads(self.q(x)) @ heads(self.k(keys)).mT / DIM**0.5
        if self.causal:
            mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
            scores = scores.masked_fill(~mask, -torch.inf)
        if self.cut is not None:
            head, query, key = self.cut
            scores = scores.clone()
            scores[..., head, query, key] = -torch.inf
        attention = scores.softmax(-1)
        self.seen = attention.detach()
        mixed = attention @ heads(self.v(keys))
        return mixed.transpose(-3, -2).flatten(-2)


class Experts(nn.Module):
    """Sends each token to one of several experts, which multiply the tokens that they are sent."""

    def __init__(self):
        super().__init__()
        self.router = nn.Linear(WIDTH, 3)
        self.parts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x):
        flat = x.flatten(0, 1)
        chosen = self.router(flat).argmax(-1)
        out = torch.zeros_like(flat)
        for n, part in enumerate(self.parts):
            own = (chosen == n).nonzero()[:, 0]
            out[own] = part(flat[own])
        # Matrices of other sizes round differently on some machines; here they always do.
        return (out * (1 + 1e-6 * chosen.float().mean())).view_as(x)


class Block(nn.Module):
    def __init__(self, number, experts):
        super().__init__()
        self.attention = Attention(causal=True, number=number)
        self.other = Experts() if experts else nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        x = x + self.attention(x)
        return x + self.other(x)


class Text(nn.Module):
    def __init__(self, dropout=0.0, experts=False):
        super().__init__()
        self.embedding, self.place = nn.Embedding(50, WIDTH), nn.Embedding(16, WIDTH)
        self.dropout = dropout
        self.blocks = nn.Sequential(*(Block(n, experts) for n in range(2)))

    def forward(self, ids):
        x = self.embedding(ids) + self.place(torch.arange(ids.shape[1]))
        return self.blocks(F.dropout(x, self.dropout, self.training))


def check_cut(model, *inputs, layer=1, cut=(1, 3, 2), by=None, stack=None):
    """An edit changes the output as the same change by hand does, with the same dropout."""
    head, query, key = cut
    torch.manual_seed(5)
    plain = model(*inputs)
    by.cut = cut
    torch.manual_seed(5)
    wanted = model(*inputs)
    by.cut = None
    torch.manual_seed(5)
    with edited(model, Cut(layer=layer, head=head, query=query, key=key, stack=stack)):
        found = model(*inputs)
    # A proof leaves random numbers as they were: else all dropout would be another.
    assert (wanted - plain).abs().max() > 1e-4
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


def check_shown(trace, element, layer, attention, stack=None):
    """What is shown of an element of the batch is what the module computed."""
    (shown,) = (one.heads.values() for name, one in trace.stacks.items() if stack in (None, name))
    of_layer = {one.head: one for one in shown if one.layer == layer}
    assert len(of_layer) == HEADS
    for head, one in of_layer.items():
        np.testing.assert_allclose(one.to_dense(), attention[element, head].numpy(), atol=1e-6)


def test_a_model_in_training_mode_has_the_same_dropout_in_each_run():
    model = Text(dropout=0.3).train()
    ids = torch.randint(50, (2, 9))
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    check_cut(model, ids, by=model.blocks[1].attention)
    assert (np.random.get_state()[1] == before).all()  # noqa: NPY002


def test_experts_that_round_by_what_others_are_sent():
    model = Text(experts=True).eval()
    ids = torch.randint(50, (2, 9))
    with torch.no_grad(), capturing(model) as run:
        model(ids)
    for element, trace in enumerate(run.traces):
        for layer, block in enumerate(model.blocks):
            check_shown(trace, element, layer, block.attention.seen)
    with torch.no_grad():
        check_cut(model, ids, by=model.blocks[1].attention)


class Latents(nn.Module):
    """Learned tokens attend to others, which may attend to them in turn."""

    def __init__(self, spread, inducing=False):
        super().__init__()
        self.tokens = nn.Parameter(torch.randn(3, WIDTH))
        self.read, self.write = Attention(), Attention() if inducing else None
        self.spread = spread

    def forward(self, x):
        found = self.read(self.spread(self.tokens, len(x)), x)
        return found if self.write is None else x + self.write(x, found)


SPREADS = {
    "expanded": lambda tokens, batch: tokens.expand(batch, -1, -1),
    "repeated": lambda tokens, batch: tokens[None].repeat(batch, 1, 1),
    "broadcast": lambda tokens, batch: tokens[None],
    "placed": lambda tokens, batch: tokens + torch.zeros(batch, 1, 1),
}


@pytest.mark.parametrize("spread", SPREADS)
@pytest.mark.parametrize("batch", [1, 3])
def test_learned_tokens_belong_to_the_element_that_they_read(spread, batch):
    model = Latents(SPREADS[spread]).eval()
    x = torch.randn(batch, 5, WIDTH)
    with torch.no_grad(), capturing(model) as run:
        model(x)
    assert len(run.traces) == batch
    for element, trace in enumerate(run.traces):
        check_shown(trace, element, 0, model.read.seen, "read")
    with torch.no_grad():
        check_cut(model, x, layer=0, cut=(1, 2, 4), by=model.read)


@pytest.mark.parametrize("depth", [1, 2])
def test_inducing_points_are_written_back(depth):
    some = (Latents(SPREADS["repeated"], inducing=True) for _ in range(depth))
    model = nn.Sequential(*some).eval()
    x = torch.randn(2, 5, WIDTH)
    with torch.no_grad(), capturing(model) as run:
        model(x)
    for element, trace in enumerate(run.traces):
        for layer, part in enumerate(model):
            check_shown(trace, element, layer, part.read.seen, "read")
            check_shown(trace, element, layer, part.write.seen, "write")
    with torch.no_grad():
        last = depth - 1
        check_cut(model, x, layer=last, cut=(0, 2, 4), by=model[last].read, stack="read")
        check_cut(model, x, layer=last, cut=(1, 4, 1), by=model[last].write, stack="write")


class Folded(nn.Module):
    """Learned seeds pool a set, with the heads folded into the batch, heads first."""

    def __init__(self):
        super().__init__()
        self.seeds = nn.Parameter(torch.randn(1, 2, WIDTH))
        self.pool = FoldedAttention()

    def forward(self, x):
        return self.pool(self.seeds.repeat(len(x), 1, 1), x)


class FoldedAttention(Attention):
    def forward(self, x, keys):
        some = self.q(x), self.k(keys), self.v(keys)
        q, k, v = (torch.cat(one.split(DIM, 2), 0) for one in some)
        attention = (q @ k.mT / DIM**0.5).softmax(-1)
        self.seen = attention.detach().unflatten(0, (HEADS, -1)).transpose(0, 1)
        return torch.cat((attention @ v).split(len(x), 0), 2)


def test_seeds_that_pool_with_heads_folded_into_the_batch():
    model = Folded().eval()
    with torch.no_grad(), capturing(model) as run:
        model(torch.randn(3, 5, WIDTH))
    for element, trace in enumerate(run.traces):
        check_shown(trace, element, 0, model.pool.seen)


class LastReads(nn.Module):
    """The last token of one text reads all: a row of scores, with or without a batch of one."""

    def __init__(self, in_batch):
        super().__init__()
        self.key, self.in_batch = nn.Linear(8, 8), in_batch

    def forward(self, x):
        scores = self.key(x) @ x[-1]
        return scores[None].softmax(-1) @ x if self.in_batch else scores.softmax(0) @ x


def test_a_softmax_of_one_dimension_is_refused_with_what_to_write():
    x = torch.randn(5, 8)
    alone, row = LastReads(in_batch=False).eval(), LastReads(in_batch=True).eval()
    says = r"a tensor of one dimension: softmax\(scores\[None\], -1\) is seen"
    with pytest.raises(CaptureError, match=says), capturing(alone):
        alone(x)
    with torch.no_grad(), capturing(row) as run:
        row(x)
    own = (row.key(x) @ x[-1]).softmax(0).detach().numpy()
    np.testing.assert_allclose(run.trace[0, 0].to_dense()[-1], own, atol=1e-6)


class OfArrays(nn.Module):
    """Takes ids as an array, as recommenders do that batch in NumPy."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(20, 8)
        self.attend = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, ids):
        x = self.table(torch.from_numpy(ids))
        return self.attend(x, x, x)


class MakesArrays(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, ids):
        return self.model(ids.numpy())


def test_a_batch_of_arrays_is_refused_and_read_in_a_module_that_makes_them():
    model, ids = OfArrays().eval(), torch.randint(20, (2, 6))
    says = "whose forward is given a tensor and makes them of it"
    with pytest.raises(CaptureError, match=says), capturing(model):
        model(ids.numpy())
    around = MakesArrays(model).eval()
    with torch.no_grad(), capturing(around, tokens=list("abcdef")) as run:
        around(ids)
        x = model.table(ids)
        own = model.attend(x, x, x, average_attn_weights=False)[1]
    for trace, wanted in zip(run.traces, own, strict=True):
        heads = [trace[0, head] for head in range(2)]
        assert heads[0].tokens == tuple("abcdef")
        np.testing.assert_allclose([one.to_dense() for one in heads], wanted.numpy(), atol=1e-6)
