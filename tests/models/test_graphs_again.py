"""Layers and calls over the same edges: what is known of them is kept, and only as long as true."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

import gattn
from gattn import All, Cut, Threshold, TopK, capturing, edited
from gattn.errors import CaptureError
from gattn.models.doors.proof import plans
from gattn.models.read.on_graphs import merging
from gattn.models.read.on_graphs.readings import read_edges
from gattn.models.read.on_graphs.seen_edges import Ends, SeenEdges

pyg = pytest.importorskip("torch_geometric.nn")
from torch_geometric.utils import softmax  # noqa: E402

NODES, HEADS = 40, 3


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = pyg.GATConv(8, 4, heads=HEADS)
        self.second = pyg.GATConv(4 * HEADS, 4, heads=HEADS)

    def forward(self, x, edges):
        return self.second(self.first(x, edges).relu(), edges)


@pytest.fixture
def net():
    torch.manual_seed(0)
    return Net().eval()


def drawn(seed, count=6 * NODES):
    generator = torch.Generator().manual_seed(seed)
    edges = torch.randint(0, NODES, (2, count), generator=generator)
    return torch.randn(NODES, 8, generator=generator), edges


@torch.no_grad()
def own(conv, x, edges):
    """The attention that a layer returns, (heads, nodes, nodes); parallel edges add up."""
    _, (edges, attention) = conv(x, edges, return_attention_weights=True)
    whole = torch.zeros(NODES, NODES, HEADS)
    return whole.index_put((edges[1], edges[0]), attention, accumulate=True).permute(2, 0, 1)


def test_a_model_over_edges_is_proved_once(net, monkeypatch):
    proofs = []
    proved = plans._proved
    monkeypatch.setattr(plans, "_proved", lambda *given: proofs.append(1) or proved(*given))
    x, edges = drawn(1)
    for _ in range(3):
        with capturing(net, keep=TopK(2)):
            net(x, edges)
    assert len(proofs) == 1


def test_edges_that_change_in_place_are_another_graph(net):
    (x, edges), (_, others) = drawn(1), drawn(2)
    expected = [own(net.first, x, one) for one in (edges, others)]
    with capturing(net, keep=All()) as run:
        net(x, edges)
        edges.copy_(others)
        net(x, edges)
    for trace, whole in zip(run.traces, expected, strict=True):
        found = torch.stack([torch.tensor(trace[0, head].to_dense()) for head in range(HEADS)])
        torch.testing.assert_close(found, whole, rtol=1e-5, atol=1e-6)
    assert not torch.equal(*expected)


def test_graphs_of_as_many_edges_are_told_apart(net):
    runs = [drawn(seed) for seed in range(6)]
    with capturing(net, keep=All()) as run:
        for x, edges in runs:
            net(x, edges)
    for trace, (x, edges) in zip(run.traces, runs, strict=True):
        found = torch.stack([torch.tensor(trace[0, head].to_dense()) for head in range(HEADS)])
        torch.testing.assert_close(found, own(net.first, x, edges), rtol=1e-5, atol=1e-6)


def test_no_graph_stays_when_no_context_is_open(net):
    x, edges = drawn(1)
    with capturing(net):
        net(x, edges)
        assert merging._known
    with edited(net, Cut(layer=0, query=int(edges[1, 0]), key=int(edges[0, 0]))):
        net(x, edges)
    assert not merging._known


@pytest.mark.parametrize("keep", [TopK(3), Threshold(0.15)], ids=str)
def test_kept_edges_of_a_graph_are_those_of_the_whole_matrix(net, keep):
    x, edges = drawn(3)
    with capturing(net, keep=keep) as run:
        net(x, edges)
    whole = own(net.first, x, edges)
    for head in range(HEADS):
        graph = run.trace[0, head]
        assert graph.graph.num_edges < (whole[head] > 0).sum()
        if isinstance(keep, TopK):
            least = whole[head].sort(descending=True).values[:, keep.k - 1 : keep.k]
        else:
            least = torch.full((NODES, 1), keep.t)
        # No two of these numbers are closer than they are rounded.
        is_kept = (whole[head] > 0) & (whole[head] >= least * (1 - 1e-5))
        expected = whole[head].where(is_kept, 0.0)
        found = torch.tensor(graph.to_dense())
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
        mass = torch.tensor(graph.total_mass)
        torch.testing.assert_close(mass, whole[head].sum(1), rtol=1e-5, atol=1e-6)


def seen(attention_of):
    _, edges = drawn(4)
    scores = torch.randn(edges.shape[1], HEADS, generator=torch.Generator().manual_seed(5))
    attention = attention_of(softmax(scores, edges[1], num_nodes=NODES))
    ends = Ends(nn.Identity(), edges[0], edges[1], NODES, NODES)
    return SeenEdges.of("conv", ends, scores, attention)


PLACE = SimpleNamespace(sequences=[0], queries=[None], keys=[None])


def test_scores_of_parallel_edges_give_their_summed_attention():
    call = seen(lambda attention: attention)
    assert call.has_parallel_edges
    (reading,) = read_edges(call, PLACE, [[]])
    key, query = call.graph.edge_index
    expected = torch.zeros(NODES, NODES, HEADS).index_put(
        (call.ends.query, call.ends.key), call.attention, accumulate=True
    )
    torch.testing.assert_close(reading.unedited.T, expected[query, key])
    powers = torch.zeros(NODES, NODES, HEADS).index_put(
        (call.ends.query, call.ends.key), call.scores.exp(), accumulate=True
    )
    torch.testing.assert_close(call.merged_scores, powers[query, key].log())
    torch.testing.assert_close(call.spread(expected[query, key]), call.attention)


@pytest.mark.parametrize("wrong", [lambda a: a * 1.01, lambda a: a.flip(1)], ids=["size", "heads"])
def test_attention_that_is_no_softmax_of_its_scores_is_refused(wrong):
    with pytest.raises(CaptureError, match="does not share attention out"):
        read_edges(seen(wrong), PLACE, [[]])


def test_attention_that_is_no_number_is_refused():
    def broken(attention):
        return attention.index_fill(0, torch.tensor([7]), torch.nan)

    with pytest.raises(CaptureError, match="NaN or infinite"):
        read_edges(seen(broken), PLACE, [[]])


def test_what_is_captured_is_bit_for_bit_the_models_attention(net):
    x, edges = drawn(6)
    edges = edges.unique(dim=1)
    with capturing(net, keep=All()) as run:
        net(x, edges)
    whole = own(net.first, x, edges)
    for head in range(HEADS):
        assert torch.equal(torch.tensor(run.trace[0, head].to_dense()), whole[head])
    assert isinstance(run.trace[0, 0], gattn.AttentionGraph)
