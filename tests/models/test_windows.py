"""Traces and edits of attention within windows: nodes are patches, whatever the slots."""

from __future__ import annotations

import pytest
import torch
from attending_models import HEADS, WIDTH, Residual, Stack, Windows
from torch import nn

from gattn import Cut, Restrict, TokenGraph, Use, capturing, edited
from gattn.errors import CaptureError

HEIGHT, BREADTH = 4, 6
PATCHES = HEIGHT * BREADTH


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Stack(Windows(2), Windows(2, 1, kernel=False)).eval()


def dense(model, x, change=lambda attention, layer: attention):
    """Compute attention of all patches, with numbers only within windows, by the formula."""
    found = []
    for n, block in enumerate(model):
        own = block.positions(HEIGHT, BREADTH)
        inside = torch.zeros(PATCHES, PATCHES, dtype=torch.bool)
        for window in own:
            inside[window[:, None], window] = True
        tokens = block.norm(x).flatten(1, 2)
        q, k, v = block.attn.qkv(tokens).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~inside, -torch.inf)
        attention = change(scores, n).softmax(-1).nan_to_num()
        found.append(attention)
        y = block.attn.out((attention @ v).transpose(1, 2).flatten(2))
        x = x + y.reshape(x.shape)
    return found, x


def heads(trace):
    """The heads of a trace by layer and head; the layers are stacks of their own or not."""
    graphs = [graph for stack in trace.stacks.values() for graph in stack.values()]
    return {(n // HEADS, n % HEADS): graph for n, graph in enumerate(graphs)}


@pytest.mark.parametrize("batch", [1, 2])
def test_patches_of_windows(model, batch):
    x = torch.randn(batch, HEIGHT, BREADTH, WIDTH)
    with torch.no_grad():
        wanted, output = dense(model, x)
        with capturing(model, scores=True) as run:
            assert torch.equal(model(x), model(x))
    torch.testing.assert_close(model(x), output)
    assert len(run.traces) == 2 * batch
    for element, trace in enumerate(run.traces[:batch]):
        for (layer, head), graph in heads(trace).items():
            assert not graph.graph.is_bipartite
            assert (graph.graph.num_tokens, graph.graph.num_edges) == (PATCHES, PATCHES * 4)
            true = wanted[layer][element, head].numpy()
            assert graph.to_dense() == pytest.approx(true, abs=1e-6)
            assert graph.total_mass == pytest.approx(1, abs=1e-6)
            key, query = graph.graph.edge_index.numpy()
            assert graph.score[0] - graph.score[1] == pytest.approx(
                float(
                    torch.log(
                        wanted[layer][element, head][query[0], key[0]]
                        / wanted[layer][element, head][query[1], key[1]]
                    )
                ),
                abs=1e-4,
            )


def test_kept_edges_of_windows(model):
    from gattn import TopK

    x = torch.randn(1, HEIGHT, BREADTH, WIDTH)
    with torch.no_grad(), capturing(model, keep=TopK(1), contributions="value") as run:
        model(x)
    with torch.no_grad():
        wanted, _ = dense(model, x)
    for (layer, head), graph in heads(run.trace).items():
        best = wanted[layer][0, head].max(-1)
        key, query = graph.graph.edge_index
        assert torch.equal(query, torch.arange(PATCHES))
        assert torch.equal(key, best.indices)
        assert graph.attention == pytest.approx(best.values.numpy(), abs=1e-6)
        assert graph.value_norm is not None


def test_a_cut_names_patches(model):
    x = torch.randn(2, HEIGHT, BREADTH, WIDTH)
    query, key = 8, 7  # of one window, once it is shifted

    def cut(scores, layer):
        scores = scores.clone()
        scores[:, :, query, key] = -torch.inf
        return scores

    stack = "1.attn"
    with torch.no_grad():
        _, wanted = dense(model, x, lambda scores, n: cut(scores, n) if n == 1 else scores)
        plain = model(x)
        with capturing(model) as run:
            model(x)
        stack = list(run.traces[0].stacks)[-1]
        layer = max(layer for layer, _ in run.traces[0].stacks[stack])
        with edited(model, Cut(layer=layer, query=query, key=key, stack=stack)):
            found = model(x)
    torch.testing.assert_close(found, wanted)
    changed = (found != plain).any(-1).flatten(1).any(0).nonzero().flatten().tolist()
    assert changed == [query]


def test_restrictions_and_graphs_of_patches(model):
    x = torch.randn(1, HEIGHT, BREADTH, WIDTH)
    allowed = TokenGraph.causal(PATCHES)
    inside = torch.ones(PATCHES, PATCHES, dtype=torch.bool).tril()
    with torch.no_grad():
        _, wanted = dense(model, x, lambda scores, n: scores.masked_fill(~inside, -torch.inf))
        with edited(model, Restrict(allowed)):
            torch.testing.assert_close(model(x), wanted)
        with capturing(model) as run:
            plain = model(x)
        stack = next(iter(run.trace.stacks))
        graph = run.trace.stacks[stack][0, 0]
        with edited(model, Use(graph, layer=0, head=0, stack=stack)):
            torch.testing.assert_close(model(x), plain)


def test_padding_stands_after_the_patches():
    torch.manual_seed(0)
    model = Residual(Windows(2)).eval()
    x = torch.randn(1, 3, 4, WIDTH)
    with torch.no_grad(), capturing(model) as run:
        model(x)
    graph = run.trace[0, 0]
    assert graph.graph.num_tokens == 16
    assert graph.geometry.cells.tolist() == [*range(12), -1, -1, -1, -1]
    assert graph.total_mass == pytest.approx(1, abs=1e-6)
    assert sorted(graph.graph.edge_index[0][graph.graph.edge_index[1] == 8].tolist()) == [
        8,
        9,
        12,
        13,
    ]


class Weighing(nn.Module):
    """Weighs several vectors for each token and head: other tokens' (shifts), or its own."""

    def __init__(self, is_own):
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.maps, self.is_own = nn.Linear(WIDTH, 3 * WIDTH), is_own

    def parts(self, x):
        return self.qkv(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)

    def forward(self, x):
        q, k, v = self.parts(x)
        if self.is_own:
            k = v = self.maps(x).unflatten(-1, (3, HEADS, -1)).permute(0, 3, 1, 2, 4)
        else:
            k, v = (torch.stack([y.roll(n, 2) for n in range(3)], 3) for y in (k, v))
        attention = (q[:, :, :, None] * k).sum(-1).softmax(-1)
        return self.out((attention[..., None] * v).sum(3).transpose(1, 2).flatten(2))


@torch.no_grad()
@pytest.mark.parametrize("batch", [1, 2])
def test_shifts_of_tokens_that_are_weighed(batch):
    torch.manual_seed(0)
    model, x = nn.Sequential(Weighing(is_own=False)).double().eval(), torch.randn(batch, 7, WIDTH)
    x = x.double()
    q, k, v = model[0].parts(x)
    places = torch.arange(7)
    is_near = (places[:, None] - places) % 7 < 3
    wanted = (q @ k.mT).masked_fill(~is_near, -torch.inf).softmax(-1)
    with capturing(model) as run:
        plain = model(x)
    dense = model[0].out((wanted @ v).transpose(1, 2).flatten(2))
    torch.testing.assert_close(plain, dense, rtol=0, atol=1e-12)
    assert len(run.traces) == batch
    for row, trace in enumerate(run.traces):
        for (_, head), graph in trace.only_stack.items():
            assert graph.graph.num_edges == 7 * 3
            close = pytest.approx(wanted[row, head].numpy(), rel=0, abs=1e-12)
            assert graph.to_dense() == close
    with edited(model, Cut(layer=0, head=1, query=4, key=3)):
        now = model(x)
    wanted[:, 1, 4, 3] = 0
    wanted = wanted / wanted.sum(-1, keepdim=True)
    dense = model[0].out((wanted @ v).transpose(1, 2).flatten(2))
    torch.testing.assert_close(now, dense, rtol=0, atol=1e-12)


def test_several_vectors_of_a_token_that_are_weighed_are_no_tokens():
    torch.manual_seed(0)
    model, x = nn.Sequential(Weighing(is_own=True)).eval(), torch.randn(2, 7, WIDTH)
    with pytest.raises(CaptureError, match="nothing to capture"), capturing(model):
        model(x)
