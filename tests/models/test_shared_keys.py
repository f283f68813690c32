"""Multi-query attention whose heads are more queries, since all of them read the same keys."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gattn import Cut, capturing, edited
from gattn.errors import CaptureError

HEADS, DIM, TOKENS = 4, 8, 7
WIDTH = HEADS * DIM


def heads_first(q, k, v, hidden):
    scores = q.transpose(1, 2).flatten(1, 2) @ k.mT
    scores = scores.unflatten(1, (HEADS, -1)).masked_fill(hidden, -torch.inf)
    rows = scores.softmax(-1).flatten(1, 2)
    return (rows @ v).unflatten(1, (HEADS, -1)).transpose(1, 2)


def queries_first(q, k, v, hidden):
    scores = torch.baddbmm(q.new_zeros(1, 1, 1), q.flatten(1, 2), k.mT, beta=0).view(
        *q.shape[:3], -1
    )
    weights = scores.masked_fill(hidden[:, None], -torch.inf).softmax(-1)
    return torch.bmm(weights.view(len(q), -1, k.shape[1]), v).view(q.shape)


def unfolded(q, k, v, hidden):
    scores = (q @ k[:, None].mT).masked_fill(hidden[:, None], -torch.inf)
    return scores.softmax(-1) @ v[:, None]


def in_letters(q, k, v, hidden):
    scores = torch.einsum("bqhd,bkd->bqhk", q, k).masked_fill(hidden[:, None], -torch.inf)
    return torch.einsum("bqhk,bkd->bqhd", scores.softmax(-1), v)


def summed(q, k, v, hidden):
    scores = (q @ k[:, None].mT).masked_fill(hidden[:, None], -torch.inf)
    return (scores.softmax(-1)[..., None] * v[:, None, None]).sum(-2)


def all_rows(q, k, v, hidden):
    scores = q.transpose(1, 2).flatten(1, 2) @ k.mT
    rows = scores.masked_fill(hidden.repeat(HEADS, 1), -torch.inf).softmax(-1)
    return (rows @ v).unflatten(1, (HEADS, -1)).transpose(1, 2)


class SharedKeys(nn.Module):
    def __init__(self, way):
        super().__init__()
        self.q, self.kv = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2 * DIM)
        self.out, self.way = nn.Linear(WIDTH, WIDTH), way

    def parts(self, x):
        return self.q(x).unflatten(-1, (HEADS, DIM)), *self.kv(x).chunk(2, -1)

    def forward(self, x):
        hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        return self.out(self.way(*self.parts(x), hidden).flatten(2))

    def dense(self, x, change=lambda attention: attention):
        q, k, v = self.parts(x)
        scores = q.transpose(1, 2) @ k[:, None].mT
        hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        attention = change(scores.masked_fill(hidden, -torch.inf).softmax(-1))
        return attention, self.out((attention @ v[:, None]).transpose(1, 2).flatten(2))


def made(way, batch):
    torch.manual_seed(0)
    return SharedKeys(way).double().eval(), torch.randn(batch, TOKENS, WIDTH).double()


def without(attention):
    attention[:, 1, 5, 2] = 0
    return attention / attention.sum(-1, keepdim=True)


@torch.no_grad()
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("way", [heads_first, queries_first, unfolded, in_letters, summed])
def test_heads_that_are_more_queries(way, batch):
    model, x = made(way, batch)
    wanted, output = model.dense(x)
    with capturing(model, contributions="value") as run:
        torch.testing.assert_close(model(x), output, rtol=0, atol=1e-12)
    assert len(run.traces) == batch
    lengths = model.parts(x)[2].norm(dim=-1)
    for row, trace in enumerate(run.traces):
        assert len(trace.only_stack) == HEADS
        for (_, head), graph in trace.only_stack.items():
            own = wanted[row, head].numpy()
            assert graph.to_dense() == pytest.approx(own, rel=0, abs=1e-12)
            key = graph.graph.edge_index[0]
            close = pytest.approx(graph.attention * lengths[row, key].numpy(), rel=1e-9)
            assert graph.value_norm == close
    with edited(model, Cut(layer=0, head=1, query=5, key=2)):
        now = model(x)
    torch.testing.assert_close(now, model.dense(x, without)[1], rtol=0, atol=1e-12)


@pytest.mark.parametrize("batch", [1, 3])
def test_rows_of_unknown_heads_are_refused(batch):
    model, x = made(all_rows, batch)
    with torch.no_grad(), pytest.raises(CaptureError, match="heads are more"), capturing(model):
        model(x)


class Latent(SharedKeys):
    """Reads tokens from the first of them alone."""

    def __init__(self, way, count):
        super().__init__(way)
        self.rows = nn.Parameter(torch.randn(count, WIDTH))

    def parts(self, x):
        q = self.q(self.rows + x[:, : len(self.rows)]).unflatten(-1, (HEADS, DIM))
        return q, *self.kv(x).chunk(2, -1)

    def forward(self, x):
        hidden = torch.zeros(len(self.rows), x.shape[1], dtype=torch.bool)
        return self.out(self.way(*self.parts(x), hidden).flatten(2))

    def dense(self, x, change=lambda attention: attention):
        q, k, v = self.parts(x)
        attention = change((q.transpose(1, 2) @ k[:, None].mT).softmax(-1))
        return attention, self.out((attention @ v[:, None]).transpose(1, 2).flatten(2))


def by_heads(q, k, v, hidden):
    scores = (q.transpose(1, 2) @ k[:, None].mT).masked_fill(hidden, -torch.inf)
    return (scores.softmax(-1) @ v[:, None]).transpose(1, 2)


def kernel(q, k, v, hidden):
    k, v = (x[:, None].expand(-1, q.shape[1], -1, -1) for x in (k, v))
    attend = nn.functional.scaled_dot_product_attention
    return attend(q, k, v, attn_mask=~hidden[None, :, None], scale=1.0)


@torch.no_grad()
@pytest.mark.parametrize(
    ("tokens", "queries"), [(HEADS, HEADS), (HEADS, 3), (2 * HEADS, HEADS), (HEADS + 1, HEADS - 1)]
)
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("way", [unfolded, in_letters, summed, by_heads, kernel])
def test_queries_are_proved_to_be_no_heads_where_sizes_do_not_tell(way, batch, tokens, queries):
    """As many tokens as heads, or fewer queries than keys."""
    torch.manual_seed(0)
    model, x = Latent(way, queries).double().eval(), torch.randn(batch, tokens, WIDTH).double()
    wanted, output = model.dense(x)
    with capturing(model) as run:
        torch.testing.assert_close(model(x), output, rtol=0, atol=1e-12)
    for row, trace in enumerate(run.traces):
        assert len(trace.only_stack) == HEADS
        for (_, head), graph in trace.only_stack.items():
            own = wanted[row, head].numpy()
            assert graph.to_dense()[:queries] == pytest.approx(own, rel=0, abs=1e-12)
    with edited(model, Cut(layer=0, head=1, query=2, key=2)):
        now = model(x)

    def cut(attention):
        attention[:, 1, 2, 2] = 0
        return attention / attention.sum(-1, keepdim=True)

    torch.testing.assert_close(now, model.dense(x, cut)[1], rtol=0, atol=1e-12)


class Latents(nn.Module):
    """Learned queries read tokens, in heads that share their keys and values."""

    def __init__(self):
        super().__init__()
        self.queries = nn.Parameter(torch.randn(2, HEADS, DIM))
        self.k, self.v = nn.Linear(WIDTH, DIM), nn.Linear(WIDTH, DIM)

    def forward(self, x):
        a = torch.einsum("qhd,bkd->bqhk", self.queries, self.k(x)).softmax(-1)
        return torch.einsum("bqhk,bkd->bqhd", a, self.v(x))


@torch.no_grad()
def test_learned_queries_may_be_heads():
    """Both ways are proved, since no token tells the queries."""
    model = Latents().eval()
    with pytest.warns(UserWarning, match="which of the two are heads"), capturing(model):
        model(torch.randn(1, TOKENS, WIDTH))
