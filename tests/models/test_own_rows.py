"""Rows of attention that stand for no token: learned and pooled queries, by models' own numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from gattn import Cut, capturing, edited
from gattn.errors import CaptureError

WIDTH, TOKENS = 8, 6


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


class Pool(nn.Module):
    """Embeds ids if it is given some, mixes tokens, and pools them; keeps its attention."""

    def __init__(self, mix, way):
        super().__init__()
        self.embed, self.score = nn.Embedding(20, WIDTH), nn.Linear(WIDTH, 1)
        self.mix, self.way, self.cut = mix(), way, None

    def forward(self, x):
        x = x if x.is_floating_point() else self.embed(x)
        h = self.mix(x.mT).mT if isinstance(self.mix, nn.Conv1d) else self.mix(x)
        h = h[0] if isinstance(h, tuple) else h
        scores = self.score(torch.tanh(h))
        if self.cut is not None:
            scores = scores.index_fill(1, torch.tensor(self.cut), -torch.inf)
        weights = scores.softmax(1)
        self.seen = weights.mT.detach()
        return self.way(weights, h)


def convolution():
    return nn.Conv1d(WIDTH, WIDTH, 3, padding=1)


def recurrent():
    return nn.GRU(WIDTH, WIDTH, batch_first=True)


def summed(weights, h):
    return (weights * h).sum(1)


def multiplied(weights, h):
    return torch.bmm(weights.mT, h)[:, 0]


def inputs(batch, kind):
    if kind == "ids":
        return torch.randint(0, 20, (batch, TOKENS))
    return torch.randn(batch, TOKENS, WIDTH)


def shown(run):
    """Attention of each element of the batch, the only stack and head of a trace."""
    (places,) = {tuple(trace.stacks) for trace in run.traces}
    (stack,) = places
    return np.stack([trace[stack][0, 0].to_dense() for trace in run.traces])


@pytest.mark.parametrize("way", [summed, multiplied])
@pytest.mark.parametrize(
    ("mix", "kind"),
    [
        (recurrent, "ids"),
        (convolution, "ids"),
        (recurrent, "vectors"),
        (convolution, "vectors"),
        (nn.Identity, "vectors"),
    ],
)
def test_a_learned_query_is_no_token(mix, way, kind):
    model, x = Pool(mix, way).eval(), inputs(2, kind)
    with torch.no_grad(), capturing(model) as run:
        model(x)
    np.testing.assert_allclose(shown(run), model.seen, atol=1e-6)
    with torch.no_grad(), edited(model, Cut(layer=0, query=0, key=[0, 3])):
        found = model(x)
    model.cut = [0, 3]
    torch.testing.assert_close(found, model(x).detach())


class Queries(nn.Module):
    """Learned queries read tokens, perhaps each only the first ones, or mixed ones."""

    def __init__(self, count, causal=False, mix=nn.Identity):
        super().__init__()
        self.query = nn.Parameter(torch.randn(count, WIDTH))
        self.key, self.value = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mix, self.causal, self.cut = mix(), causal, None

    def forward(self, x):
        x = self.mix(x)
        x = x[0] if isinstance(x, tuple) else x
        scores = self.query @ self.key(x).mT / WIDTH**0.5
        if self.causal:
            mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
            scores = scores.masked_fill(~mask, -torch.inf)
        if self.cut is not None:
            scores = scores.clone()
            scores[..., self.cut[0], self.cut[1]] = -torch.inf
        weights = scores.softmax(-1)
        self.seen = weights.detach()
        return weights @ self.value(x)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize(
    "model", [lambda: Queries(4), lambda: Queries(TOKENS, True), lambda: Queries(4, mix=recurrent)]
)
def test_learned_queries_of_scores_belong_to_the_tokens_that_they_read(model, batch):
    model, x = model().eval(), inputs(batch, "vectors")
    with torch.no_grad(), capturing(model) as run:
        model(x)
    np.testing.assert_allclose(shown(run), model.seen, atol=1e-6)
    assert all(head.graph.is_bipartite for trace in run.traces for head in trace.heads())
    with torch.no_grad(), edited(model, Cut(layer=0, query=2, key=1)):
        found = model(x)
    model.cut = 2, 1
    torch.testing.assert_close(found, model(x).detach())


class OneSlot(nn.Module):
    """One side has one slot, made of all tokens: their last state, or what a convolution gives."""

    def __init__(self, side):
        super().__init__()
        self.gru, self.pool = recurrent(), nn.Conv1d(WIDTH, WIDTH, TOKENS)
        self.side = side

    def forward(self, x):
        if self.side == "query":
            h = self.gru(x)[0]
            q, k = h[:, -1:], h
        else:
            q, k = x, self.pool(x.mT).mT
        self.seen = (q @ k.mT / WIDTH**0.5).softmax(-1).detach()
        return F.scaled_dot_product_attention(q, k, k)


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("side", ["query", "key"])
def test_a_side_with_one_slot_has_none_to_tell_apart(side, batch):
    model, x = OneSlot(side).eval(), inputs(batch, "vectors")
    with torch.no_grad(), capturing(model) as run:
        model(x)
    np.testing.assert_allclose(shown(run), model.seen, atol=1e-6)


class PooledInWindows(nn.Module):
    """Queries are the largest of two tokens each, within windows of four, as in Hiera."""

    def __init__(self):
        super().__init__()
        self.qkv, self.cut = nn.Linear(WIDTH, 3 * WIDTH), None

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(1, (-1, 4)).chunk(3, -1)
        q = q.unflatten(2, (2, 2)).amax(2)
        scores = q @ k.mT / WIDTH**0.5
        self.seen = scores.softmax(-1).detach()
        if self.cut is not None:
            scores = scores.clone()
            window, query, key = self.cut
            scores[:, window, query, key] = -torch.inf
            return scores.softmax(-1) @ v
        return F.scaled_dot_product_attention(q, k, v)


class Shared(nn.Module):
    """All windows have the same queries, which come from elsewhere, as in GC ViT."""

    def __init__(self):
        super().__init__()
        self.first, self.few = nn.Linear(WIDTH, WIDTH), nn.Conv1d(WIDTH, WIDTH, 2, stride=2)
        self.attention = SharedAttention()

    def forward(self, x):
        queries = self.few(x[:, :8].mT).mT
        return self.attention(self.first(x), queries)


class SharedAttention(PooledInWindows):
    def forward(self, x, q):
        k, v = self.qkv(x).unflatten(1, (-1, 4))[..., :-WIDTH].chunk(2, -1)
        q = q[:, None].expand(-1, k.shape[1], -1, -1)
        scores = q @ k.mT / WIDTH**0.5
        self.seen = scores.softmax(-1).detach()
        if self.cut is not None:
            window, query, key = self.cut
            scores = scores.clone()
            scores[:, window, query, key] = -torch.inf
        return scores.softmax(-1) @ v


@pytest.mark.filterwarnings("ignore:Beside the softmax that meets the values")
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("kind", [PooledInWindows, Shared])
def test_queries_that_are_no_tokens_are_numbered_window_by_window(kind, batch):
    model = kind().eval()
    inner = model.attention if kind is Shared else model
    x = torch.randn(batch, 12, WIDTH)
    with torch.no_grad(), capturing(model) as run:
        model(x)
    windows, queries, keys = inner.seen.shape[1:]
    wanted = torch.zeros(batch, windows, queries, windows, keys)
    wanted[:, range(windows), :, range(windows)] = inner.seen.transpose(0, 1)
    wanted = wanted.flatten(3).flatten(1, 2)
    np.testing.assert_allclose(shown(run), wanted, atol=1e-6)
    with torch.no_grad(), edited(model, Cut(layer=0, query=2 * queries + 1, key=10)):
        found = model(x)
    inner.cut = 2, 1, 2
    torch.testing.assert_close(found, model(x).detach())


class Twice(nn.Module):
    """A batch that the model makes itself, of mixed queries or of the same ones for both parts."""

    def __init__(self, mix):
        super().__init__()
        self.qkv, self.mix = nn.Linear(WIDTH, 3 * WIDTH), mix()

    def forward(self, x):
        q, k, v = self.qkv(torch.cat([x, x.flip(1)])).chunk(3, -1)
        q = torch.cat([q[: len(x), :3]] * 2) if isinstance(self.mix, nn.Identity) else q
        return F.scaled_dot_product_attention(self.mix(q.mT).mT, k, v)


@pytest.mark.parametrize("mix", [convolution, nn.Identity])
def test_keys_that_two_groups_of_queries_read_tell_no_queries(mix):
    model = Twice(mix).eval()
    with pytest.raises(CaptureError, match="cannot be"), torch.no_grad(), capturing(model):
        model(inputs(2, "vectors"))


class Prompted(nn.Module):
    """Tokens attend to each other, and to a few more keys: learned ones, or embedded ids."""

    def __init__(self):
        super().__init__()
        self.qkv, self.prompt = nn.Linear(WIDTH, 3 * WIDTH), nn.Parameter(torch.randn(1, 3, WIDTH))
        self.embed, self.cut = nn.Embedding(20, WIDTH), None

    def forward(self, x, ids=None):
        x = self.embed(x) if not x.is_floating_point() else x
        more = self.prompt.expand(len(x), -1, -1) if ids is None else self.embed(ids)
        q, k, v = self.qkv(x).chunk(3, -1)
        _, more_k, more_v = self.qkv(more).chunk(3, -1)
        scores = q @ more_k.mT / WIDTH**0.5
        self.seen = scores.softmax(-1).detach()
        if self.cut is not None:
            scores = scores.clone()
            scores[:, self.cut[0], self.cut[1]] = -torch.inf
            return F.scaled_dot_product_attention(q, k, v) + scores.softmax(-1) @ more_v
        return sum(F.scaled_dot_product_attention(q, *kv) for kv in ((k, v), (more_k, more_v)))


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("kind", ["ids", "vectors"])
def test_learned_keys_belong_to_the_tokens_that_read_them(kind, batch):
    model, x = Prompted().eval(), inputs(batch, kind)
    with torch.no_grad(), capturing(model) as run:
        model(x)
    for trace, wanted in zip(run.traces, model.seen, strict=True):
        assert list(trace.stacks) == ["Prompted", "Prompted 2"]
        head = trace["Prompted 2"][0, 0]
        assert head.graph.is_bipartite
        np.testing.assert_allclose(head.to_dense(), wanted, atol=1e-6)
    with torch.no_grad(), edited(model, Cut(layer=0, query=4, key=1, stack="Prompted 2")):
        found = model(x)
    model.cut = 4, 1
    torch.testing.assert_close(found, model(x).detach())


@pytest.mark.filterwarnings("ignore:Beside the softmax that meets the values")
def test_keys_made_of_ids_that_a_module_embeds_itself_are_theirs():
    model, x, ids = Prompted().eval(), inputs(2, "vectors"), torch.randint(0, 20, (2, 3))
    with torch.no_grad(), capturing(model) as run:
        model(x, ids)
    for trace, wanted in zip(run.traces, model.seen, strict=True):
        assert list(trace.stacks) == ["Prompted", "Prompted 2"]
        head = trace["Prompted 2"][0, 0]
        assert head.graph.is_bipartite
        np.testing.assert_allclose(head.to_dense(), wanted, atol=1e-6)
    with torch.no_grad(), edited(model, Cut(layer=0, query=4, key=1, stack="Prompted 2")):
        found = model(x, ids)
    model.cut = 4, 1
    torch.testing.assert_close(found, model(x, ids).detach())


class HeadsOfCache(nn.Module):
    """Reads keys and values whose heads are given as a dimension of their own."""

    def __init__(self):
        super().__init__()
        self.q = nn.Linear(WIDTH, WIDTH)

    def forward(self, x, cache):
        q = self.q(x).unflatten(-1, (2, -1)).transpose(1, 2)
        self.seen = (q @ cache.mT / q.shape[-1] ** 0.5).softmax(-1).detach()
        return F.scaled_dot_product_attention(q, cache, cache)


@pytest.mark.parametrize("batch", [1, 2])
def test_heads_that_share_their_queries_are_no_windows(batch):
    model = HeadsOfCache().eval()
    x, cache = inputs(batch, "vectors"), torch.randn(batch, 2, 5, WIDTH // 2)
    said = pytest.raises(CaptureError, match="same tokens several times")
    with said, torch.no_grad(), capturing(model):
        model(x, cache)


class Features(nn.Module):
    """Several sums over tokens by learned weights: answers, or features for a linear attention."""

    def __init__(self, is_linear):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(WIDTH, 5), nn.Linear(WIDTH, 5), nn.Linear(WIDTH, WIDTH)
        self.is_linear = is_linear

    def forward(self, x):
        weights = self.k(x).softmax(1).mT
        self.seen = weights.detach()
        found = weights @ self.v(x)
        return (
            self.q(x)[:, None].expand(-1, 2, -1, -1) @ found[:, None] if self.is_linear else found
        )


def test_sums_by_learned_weights_are_rows():
    model = Features(is_linear=False).eval()
    with torch.no_grad(), capturing(model) as run:
        model(inputs(2, "vectors"))
    np.testing.assert_allclose(shown(run), model.seen, atol=1e-6)


def test_features_of_linear_attention_are_no_rows():
    model = Features(is_linear=True).eval()
    said = pytest.raises(CaptureError, match=r"as linear \(efficient\) attention does")
    with said, torch.no_grad(), capturing(model):
        model(inputs(2, "vectors"))


class Branches(nn.Module):
    """Weighs two branches of a convolution, each channel by itself, after attention."""

    def __init__(self) -> None:
        super().__init__()
        self.attend = nn.MultiheadAttention(8, 2, batch_first=True)
        self.convs = nn.ModuleList(nn.Conv1d(8, 8, size, padding=size // 2) for size in (1, 3))
        self.weigh = nn.Conv1d(8, 16, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.attend(x, x, x)[0].mT
        paths = torch.stack([conv(x) for conv in self.convs], 1)
        weights = self.weigh(paths.sum(1).mean(-1, keepdim=True)).view(-1, 2, 8, 1).softmax(1)
        return (paths * weights).sum(1).mT


@torch.no_grad()
def test_branches_are_no_tokens() -> None:
    model = Branches().eval()
    with capturing(model) as run:
        model(torch.randn(2, 5, 8))
    assert [set(trace.stacks) for trace in run.traces] == [{"attend"}] * 2


class Inline(nn.Module):
    """Attention, and after a projection more of it, whose values are no product of keys."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(8, 8) for _ in range(3))

    def forward(self, x):
        x = (x @ x.mT).softmax(-1) @ x
        scores = (self.q(x) @ self.k(x).mT).exp()
        return scores / scores.sum(-1, keepdim=True) @ self.v(x)


def test_attention_to_projected_attention_is_not_said_to_be_linear():
    model = Inline().eval()
    left_out = pytest.warns(UserWarning, match=r"was not proved: (?!.*linear)")
    x = torch.randn(1, 5, 8)
    with torch.no_grad(), left_out, capturing(model) as run:
        model(x)
    (head,) = run.trace.stacks["Inline"].values()
    np.testing.assert_allclose(head.to_dense(), (x @ x.mT).softmax(-1)[0], atol=1e-6)


class OfQueriesAlone(nn.Module):
    """Each query scores all places by itself, as in the dense Synthesizer."""

    def __init__(self):
        super().__init__()
        self.scores, self.v = nn.Linear(WIDTH, 6), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return self.scores(x).softmax(-1) @ self.v(x)


class Recurrent(nn.Module):
    """A recurrent decoder, whose states read those of the encoder."""

    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = (nn.GRU(WIDTH, WIDTH, batch_first=True) for _ in range(2))

    def forward(self, x):
        keys, state = self.encoder(x)
        queries, _ = self.decoder(x[:, :4], state)
        return (queries @ keys.mT).softmax(-1) @ keys


@torch.no_grad()
@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (OfQueriesAlone, "or scores are made of queries alone"),
        (Recurrent, "runs a recurrent network, .* in a module of its own"),
    ],
)
def test_reasons_name_what_hides_tokens(kind, says):
    torch.manual_seed(0)
    model, x = nn.Sequential(kind()).eval(), torch.randn(2, 6, WIDTH)
    with pytest.raises(CaptureError, match=says), capturing(model):
        model(x)
