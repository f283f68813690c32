"""Layers whose attention is computed in several calls: by head, element of the batch, or query."""

from __future__ import annotations

import pytest
import torch
from hand_written import CAUSAL, DIM, HEADS, ROOT, TOKENS, WIDTH, check, halved, made
from torch import nn
from torch.nn import functional as F  # noqa: N812

from gattn import Cut, Scale, capturing, edited, effect
from gattn.errors import CaptureError, SelectionError

sdpa = F.scaled_dot_product_attention


def attend(q, k, v):
    return (q @ k.mT / ROOT).softmax(-1) @ v


def linear(q, k, v):
    return F.linear((q @ k.mT / ROOT).softmax(-1), v.T)


def added(q, k, v):
    return torch.addmm(torch.zeros_like(q), torch.softmax(q @ k.mT / ROOT, -1), v)


def heads(q, k, v, one=attend):
    return torch.stack([one(q[:, h], k[:, h], v[:, h]) for h in range(HEADS)], 1)


def elements(q, k, v, one=attend):
    return torch.stack([one(*each) for each in zip(q, k, v, strict=True)])


def elements_of_one(q, k, v):
    parts = zip(*(x.split(1) for x in (q, k, v)), strict=True)
    return torch.cat([sdpa(*each) for each in parts])


def chunks(q, k, v, size=2, one=attend):
    return torch.cat([one(some, k, v) for some in q.split(size, -2)], -2)


def queries(q, k, v):
    output = torch.empty_like(q)
    for n in range(q.shape[2]):
        output[:, :, n : n + 1] = attend(q[:, :, n : n + 1], k, v)
    return output


def heads_of_attention(q, k, v):
    attention = (q @ k.mT / ROOT).softmax(-1)
    return torch.stack([attention[:, h] @ v[:, h] for h in range(HEADS)], 1)


def pieces_of_attention(q, k, v):
    attention = (q @ k.mT / ROOT).softmax(-1)
    return torch.stack([a @ b for a, b in zip(attention.unbind(1), v.unbind(1), strict=True)], 1)


def rows_of_attention(q, k, v):
    attention = (q @ k.mT / ROOT).softmax(-1)
    return torch.cat([some @ v for some in attention.chunk(3, 2)], 2)


def one_by_one(attention):
    return lambda q, k, v: elements(q, k, v, lambda *x: elements(*x, attention))


def masked(q, k, v):
    rows = zip(q.split(2, 2), CAUSAL.split(2), strict=True)
    return torch.cat([sdpa(some, k, v, attn_mask=mask) for some, mask in rows], 2)


WAYS = {
    "heads": heads,
    "heads, kernel": lambda *x: heads(*x, sdpa),
    "elements": elements,
    "elements, kernel": elements_of_one,
    "chunks": chunks,
    "chunks, kernel": lambda *x: chunks(*x, one=sdpa),
    "uneven chunks": lambda *x: chunks(*x, size=4),
    "queries": queries,
    "heads of attention": heads_of_attention,
    "pieces of attention": pieces_of_attention,
    "rows of attention": rows_of_attention,
    "heads, then chunks": lambda *x: heads(*x, one=chunks),
    "chunks, then heads": lambda *x: chunks(*x, one=heads),
    "elements, then chunks": lambda *x: elements(*x, one=chunks),
    "linear": one_by_one(linear),
    "added": one_by_one(added),
}


@pytest.mark.parametrize("way", WAYS)
def test_calls_of_a_loop_are_one_layer(way):
    check(WAYS[way])


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("way", ["heads", "elements", "chunks", "queries", "heads, then chunks"])
def test_a_loop_over_other_batches(way, batch):
    check(WAYS[way], batch=batch)


@pytest.mark.parametrize("way", [masked, lambda *x: heads(*x, lambda *y: sdpa(*y, is_causal=True))])
def test_masks_of_a_loop(way):
    check(way, is_causal=True)


@pytest.mark.parametrize("way", ["elements", "chunks"])
def test_contributions_of_a_loop(way):
    model, x = made(WAYS[way])
    with torch.no_grad(), capturing(model, contributions=True) as run:
        model(x)
    q, k, v = model.blocks[0].parts(x)
    attention = attend(q, k, torch.eye(x.shape[1]).double())
    projection = model.blocks[0].out.weight.unflatten(1, (HEADS, DIM)).transpose(0, 1)
    norms = torch.einsum("bhjd,hcd->bhjc", v, projection).norm(dim=-1)
    for row, trace in enumerate(run.traces):
        for head in range(HEADS):
            graph = trace.only_stack[0, head]
            dense = attention[row, head] * norms[row, head]
            key, query = graph.graph.edge_index
            assert graph.contribution == pytest.approx(dense[query, key].detach().numpy())


def test_contributions_of_a_loop_over_heads_are_refused():
    model, x = made(heads)
    says = "attends head after head"
    with (
        torch.no_grad(),
        pytest.raises(CaptureError, match=says),
        capturing(model, contributions="value"),
    ):
        model(x)


def test_heads_of_a_loop_are_chosen_and_counted():
    model, x = made(heads)
    with torch.no_grad():
        with capturing(model, heads=[1, 3]) as run:
            model(x)
        assert sorted(head for (_, head), _ in run.traces[0].only_stack.items()) == [1, 1, 3, 3]
        says = r"names head 4, but the heads are 0 \.\. 3"
        with pytest.raises(SelectionError, match=says), edited(model, Cut(layer=0, head=4)):
            model(x)
        with capturing(model) as run, edited(model, Cut(layer=0, head=3, query=2, key=1)):
            model(x)
    assert run.traces[0].only_stack[0, 3].to_dense()[2, 1] == 0
    assert run.traces[0].only_stack[0, 2].to_dense()[2, 1] > 0


def test_the_effect_of_a_cut_in_a_loop():
    model, x = made(heads, batch=1)
    with torch.no_grad():
        cut = Cut(layer=1, head=2, query=4, key=3)
        found = effect(lambda: model(x)[0, 4, :3].sum(), [cut], model=model)
        plain = model(x)[0, 4, :3].sum()
        with edited(model, cut):
            change = model(x)[0, 4, :3].sum() - plain
    assert abs(float(found["effect"].iloc[0])) == pytest.approx(abs(float(change)), rel=1e-6)


@pytest.mark.parametrize("way", ["heads", "elements", "chunks", "queries", "heads, then chunks"])
def test_queries_of_a_loop_are_counted_from_the_end(way):
    model, x = made(WAYS[way])
    with torch.no_grad():
        plain = model(x)
        with edited(model, Cut(layer=1, query=TOKENS - 1, key=3)):
            wanted = model(x)
        with edited(model, Cut(layer=1, query=-1, key=-3)):
            found = model(x)
        with edited(model, Cut(layer=1, query=slice(-1, None), key=3)):
            sliced = model(x)
    assert not torch.equal(wanted, plain)
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)
    torch.testing.assert_close(sliced, wanted, rtol=0, atol=0)


class Cascade(nn.Module):
    """Each head attends to what the one before gave."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH) for _ in range(2))

    def forward(self, x):
        for qkv in self.qkv:
            x = x + attend(*qkv(x).chunk(3, -1))
        return x


class Crossing(nn.Module):
    """Chunks of queries that read another text."""

    def __init__(self):
        super().__init__()
        self.q, self.kv = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2 * WIDTH)

    def forward(self, x, other):
        return chunks(self.q(x), *self.kv(other).chunk(2, -1))


def test_heads_that_read_what_others_gave_are_layers_of_their_own():
    torch.manual_seed(0)
    model, x = Cascade().double().eval(), torch.randn(2, 5, WIDTH).double()
    with torch.no_grad(), capturing(model) as run:
        model(x)
    assert len(run.traces[0].stacks) == 2


def test_chunks_of_queries_that_read_another_text():
    torch.manual_seed(0)
    model = Crossing().double().eval()
    x, other = torch.randn(2, 6, WIDTH).double(), torch.randn(2, 9, WIDTH).double()

    def dense():
        k, _ = model.kv(other).chunk(2, -1)
        return (model.q(x) @ k.mT / ROOT).softmax(-1)

    with torch.no_grad():
        with capturing(model) as run:
            model(x, other)
        attention = dense()
        for row, trace in enumerate(run.traces):
            graph = trace.only_stack[0, 0]
            assert graph.graph.is_bipartite
            assert graph.to_dense() == pytest.approx(attention[row].numpy(), rel=1e-10)
        with edited(model, Cut(layer=0, query=5, key=8)):
            now = model(x, other)
        attention[:, 5, 8] = 0
        attention = attention / attention.sum(-1, keepdim=True)
        wanted = attention @ model.kv(other).chunk(2, -1)[1]
    torch.testing.assert_close(now, wanted, rtol=1e-10, atol=1e-12)


class PerText(nn.Module):
    """Runs all layers on one text after another, or each layer on them."""

    def __init__(self, is_outside, size):
        super().__init__()
        self.inner, self.is_outside, self.size = made(attend)[0], is_outside, size

    def forward(self, x):
        if self.is_outside:
            return torch.cat([self.inner(some) for some in x.split(self.size)])
        for block in self.inner.blocks:
            x = torch.cat([some + block(some) for some in x.split(self.size)])
        return x


@pytest.mark.parametrize("is_outside", [True, False])
@pytest.mark.parametrize("size", [1, 2])
def test_layers_that_run_for_each_text(is_outside, size):
    model, (_, x) = PerText(is_outside, size), made(attend, batch=4)

    def cut(attention, layer):
        if layer == 1:
            attention = attention.clone()
            attention[:, 2, 4, 3] = 0
            attention = attention / attention.sum(-1, keepdim=True)
        return attention

    with torch.no_grad():
        with capturing(model) as run:
            model(x)
        wanted = model.inner.dense(x)[0]
        assert len(run.traces) == 4
        for row, trace in enumerate(run.traces):
            assert len(trace.only_stack) == 2 * HEADS
            for (layer, head), graph in trace.only_stack.items():
                own = wanted[layer][row, head].numpy()
                assert graph.to_dense() == pytest.approx(own, rel=0, abs=1e-12)
        with edited(model, Cut(layer=1, head=2, query=4, key=3)):
            now = model(x)
        torch.testing.assert_close(now, model.inner.dense(x, cut)[1], rtol=0, atol=1e-10)


class Residual(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return x + self.inner(x)


class BlockPerText(nn.Module):
    """Runs each block, with its residual stream, on one text of ids after another."""

    def __init__(self, between):
        super().__init__()
        self.inner = made(attend)[0]
        self.blocks = nn.ModuleList(map(Residual, self.inner.blocks))
        self.embed, self.between = nn.Embedding(9, WIDTH).double(), between

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = torch.cat([self.between(block(some)) for some in x.split(1)])
        return x


@torch.no_grad()
@pytest.mark.parametrize("between", [nn.Identity(), torch.clone])
@pytest.mark.parametrize("batch", [1, 3])
def test_blocks_that_run_for_each_text_of_ids(between, batch):
    model = BlockPerText(between).eval()
    ids = torch.randint(9, (batch, TOKENS), generator=torch.Generator().manual_seed(0))
    with capturing(model) as run:
        plain = model(ids)
    wanted, output = model.inner.dense(model.embed(ids))
    torch.testing.assert_close(plain, output, rtol=1e-10, atol=1e-12)
    assert len(run.traces) == batch
    for row, trace in enumerate(run.traces):
        assert len(trace.only_stack) == 2 * HEADS
        for (layer, head), graph in trace.only_stack.items():
            own = wanted[layer][row, head].numpy()
            assert graph.to_dense() == pytest.approx(own, rel=0, abs=1e-12)
    with edited(model, Scale(0.5, layer=0, head=1, query=slice(2, None))):
        now = model(ids)
    wanted = model.inner.dense(model.embed(ids), halved)[1]
    torch.testing.assert_close(now, wanted, rtol=1e-10, atol=1e-12)


class Packed(nn.Module):
    """Texts one after another, without padding; each reads itself."""

    def __init__(self, one):
        super().__init__()
        self.qkv, self.out, self.one = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH), one

    def parts(self, x):
        return self.qkv(x).unflatten(-1, (3, HEADS, DIM)).permute(1, 2, 0, 3)

    def forward(self, x, stops):
        sizes = stops.diff().tolist()
        texts = zip(*(y.split(sizes, 1) for y in self.parts(x)), strict=True)
        return self.out(
            torch.cat([self.one(*text) for text in texts], 1).transpose(0, 1).flatten(1)
        )


@pytest.mark.parametrize("one", [attend, sdpa])
@pytest.mark.parametrize("contributions", [False, "value", True])
def test_packed_texts_of_different_lengths(one, contributions):
    torch.manual_seed(0)
    model = Packed(one).double().eval()
    for sizes in [[2, 5, 2], [4, 4], [3, 2, 3]][: 1 if contributions else None]:
        x, stops = torch.randn(sum(sizes), WIDTH).double(), torch.tensor([0, *sizes]).cumsum(0)
        q, k, v = model.parts(x)
        text = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
        own = text[:, None] == text
        attention = (q @ k.mT / ROOT).masked_fill(~own, -torch.inf).softmax(-1).detach()
        with torch.no_grad(), capturing(model, contributions=contributions) as run:
            model(x, stops)
        for (_, head), graph in run.trace.only_stack.items():
            assert graph.graph.num_edges == own.sum()
            assert graph.to_dense() == pytest.approx(attention[head].numpy(), rel=1e-10)
        if contributions:
            projection = model.out.weight.unflatten(1, (HEADS, DIM))[:, 1]
            values = v[1] if contributions == "value" else v[1] @ projection.T
            graph = run.trace.only_stack[0, 1]
            key, query = graph.graph.edge_index
            found = graph.value_norm if contributions == "value" else graph.contribution
            wanted = (attention[1] * values.norm(dim=-1))[query, key]
            assert found == pytest.approx(wanted.detach().numpy(), rel=1e-10)
        with torch.no_grad(), edited(model, Cut(layer=0, head=1, query=1, key=0)):
            now = model(x, stops)
        attention[1, 1, 0] = 0
        attention = attention / attention.sum(-1, keepdim=True)
        wanted = model.out((attention @ v).transpose(0, 1).flatten(1))
        torch.testing.assert_close(now, wanted, rtol=1e-10, atol=1e-12)


class Apart(nn.Module):
    """One head that attends twice: `sides` says from which input to which, as of two texts."""

    def __init__(self, sides):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(6, 6) for _ in range(3))
        self.sides = sides

    def parts(self, inputs):
        for one, other in self.sides:
            x, y = inputs[one], inputs[other]
            scores = self.q(x) @ self.k(y).mT / 6**0.5
            yield x, scores.softmax(-1), self.v(y)

    def forward(self, *inputs):
        return torch.cat([x + attention @ value for x, attention, value in self.parts(inputs)], -1)


SIDES = {
    "both ways": [(0, 1), (1, 0)],
    "each to itself": [(0, 0), (1, 1)],
    "to two texts": [(0, 1), (0, 2)],
    "from two texts": [(0, 2), (1, 2)],
}


@pytest.mark.parametrize("sides", SIDES.values(), ids=list(SIDES))
@pytest.mark.parametrize("batch", [1, 2])
def test_calls_on_other_inputs_are_no_heads_of_one_layer(sides, batch):
    torch.manual_seed(0)
    model = Apart(sides).double().eval()
    inputs = torch.randn(3, batch, 4, 6).double()
    with torch.no_grad():
        wanted = [attention for _, attention, _ in model.parts(inputs)]
        with capturing(model) as run:
            plain = model(*inputs)
        with edited(model, Cut(stack="Apart 2", key=1)):
            now = model(*inputs)
    for row, trace in enumerate(run.traces):
        assert list(trace.stacks) == ["Apart", "Apart 2"]
        for stack, true in zip(trace.stacks.values(), wanted, strict=True):
            assert list(stack) == [(0, 0)]
            assert stack[0, 0].to_dense() == pytest.approx(true[row].numpy(), abs=1e-12)
    assert torch.equal(now[..., :6], plain[..., :6])
    assert not torch.equal(now[..., 6:], plain[..., 6:])
