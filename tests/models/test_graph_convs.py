"""Attention in torch-geometric's convs: cutting an edge is the conv without that edge."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gattn import Cut, Restrict, Scale, TokenGraph, TopK, capturing, edited
from gattn.errors import CaptureError, EditError

pyg = pytest.importorskip("torch_geometric.nn")

NODES = 7
EDGES = torch.tensor([[0, 1, 2, 3, 4, 5, 0, 2, 6, 4, 5], [1, 2, 3, 4, 5, 0, 3, 5, 1, 1, 6]])
COUNT = EDGES.shape[1]
GENERATOR = torch.Generator().manual_seed(1)
X = torch.rand(NODES, 5, generator=GENERATOR) + 0.1
POSITIONS = torch.randn(NODES, 3, generator=GENERATOR)
FEATURES = torch.randn(COUNT, 3, generator=GENERATOR)
TYPES = torch.arange(COUNT) % 3
NODE_TYPES = torch.arange(NODES) % 2

Call = Callable[[nn.Module, Tensor], Any]


def on_graph(conv: nn.Module, keep: Tensor, **given: Tensor) -> Any:
    """Call a conv on the edges to keep; what has one number per edge is cut along."""
    given = {n: x[keep] if len(x) == COUNT else x for n, x in given.items()}
    return conv(X, EDGES[:, keep], **given)


def at_positions(conv: nn.Module, keep: Tensor) -> Any:
    return conv(X, POSITIONS, EDGES[:, keep])


def gate() -> nn.Module:
    return pyg.aggr.AttentionalAggregation(nn.Linear(5, 1))


FEATURED = partial(on_graph, edge_attr=FEATURES)
TYPED = partial(on_graph, edge_type=TYPES)
CONVS: dict[str, tuple[Callable[[], nn.Module], Call, int]] = {
    "GATConv": (lambda: pyg.GATConv(5, 4, heads=2), on_graph, 2),
    "GATConv, edge features": (
        lambda: pyg.GATConv(5, 4, heads=2, edge_dim=3, add_self_loops=False),
        FEATURED,
        2,
    ),
    "GATConv, reversed": (
        lambda: pyg.GATConv(5, 4, heads=2, flow="target_to_source"),
        on_graph,
        2,
    ),
    "GATv2Conv": (lambda: pyg.GATv2Conv(5, 4, heads=2, residual=True), on_graph, 2),
    "TransformerConv": (
        lambda: pyg.TransformerConv(5, 4, heads=3, edge_dim=3, beta=True),
        FEATURED,
        3,
    ),
    "SuperGATConv, MX": (lambda: pyg.SuperGATConv(5, 4, heads=2), on_graph, 2),
    "SuperGATConv, SD": (
        lambda: pyg.SuperGATConv(5, 4, heads=2, attention_type="SD"),
        on_graph,
        2,
    ),
    "RGATConv": (lambda: pyg.RGATConv(5, 4, 3, heads=2), TYPED, 2),
    "RGATConv, multiplicative": (
        lambda: pyg.RGATConv(
            5, 4, 3, heads=2, dim=2, attention_mode="multiplicative-self-attention"
        ),
        TYPED,
        4,
    ),
    "AGNNConv": (lambda: pyg.AGNNConv(), on_graph, 1),
    "GeneralConv, additive": (
        lambda: pyg.GeneralConv(5, 4, attention=True, heads=2),
        on_graph,
        2,
    ),
    "GeneralConv, dot product": (
        lambda: pyg.GeneralConv(5, 4, attention=True, heads=2, attention_type="dot_product"),
        on_graph,
        2,
    ),
    "HEATConv": (
        lambda: pyg.HEATConv(5, 4, 2, 3, 4, 3, 4, heads=2),
        partial(on_graph, node_type=NODE_TYPES, edge_type=TYPES, edge_attr=FEATURES),
        2,
    ),
    "PointTransformerConv": (lambda: pyg.PointTransformerConv(5, 4), at_positions, 4),
    "GENConv": (lambda: pyg.GENConv(5, 4, aggr="softmax", learn_t=True, t=0.5), on_graph, 4),
    "SAGEConv, softmax": (lambda: pyg.SAGEConv(5, 4, aggr="softmax"), on_graph, 5),
    "SAGEConv, attentional": (lambda: pyg.SAGEConv(5, 4, aggr=gate()), on_graph, 1),
    "SAGEConv, mean and softmax": (
        lambda: pyg.SAGEConv(5, 4, aggr=["softmax", gate()]),
        on_graph,
        6,
    ),
    "GATEConv": (lambda: pyg.models.attentive_fp.GATEConv(5, 5, 3), FEATURED, 1),
}


def built(name: str) -> tuple[nn.Module, Call, int]:
    make, call, heads = CONVS[name]
    torch.manual_seed(0)
    return make().eval(), call, heads


def assert_close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)


ALL = torch.ones(COUNT, dtype=torch.bool)


@pytest.mark.parametrize("name", [name for name in CONVS if "mean" not in name])
def test_a_watched_conv_is_unchanged_and_each_cut_is_the_conv_without_that_edge(name: str) -> None:
    conv, call, heads = built(name)
    plain = call(conv, ALL)
    with capturing(conv, scores=True) as run:
        watched = call(conv, ALL)
    assert torch.equal(watched, plain)
    (stack,) = run.trace.stacks.values()
    assert stack.layers == [0]
    assert stack.head_numbers == list(range(heads))
    pairs = EDGES if getattr(conv, "flow", "") == "source_to_target" else EDGES.flip(0)
    assert set(map(tuple, pairs.T.tolist())) <= set(stack[0, 0].to_networkx().edges)
    effects = []
    for edge, (key, query) in enumerate(pairs.T.tolist()):
        keep = ALL.clone()
        keep[edge] = False
        expected = call(conv, keep)
        with edited(conv, Cut(layer=0, query=query, key=key)):
            assert_close(call(conv, ALL), expected)
        effects.append(float((expected - plain).abs().max().detach()))
    assert min(effects) > 1e-4  # each edge matters


@pytest.mark.parametrize("name", ["GATConv", "GATv2Conv", "TransformerConv", "RGATConv"])
def test_attention_is_what_the_conv_returns(name: str) -> None:
    conv, call, heads = built(name)
    with capturing(conv) as run:
        _, (edge_index, alpha) = call(partial(conv, return_attention_weights=True), ALL)
    for head in range(heads):
        dense = torch.zeros(NODES, NODES).index_put((edge_index[1], edge_index[0]), alpha[:, head])
        found = torch.from_numpy(run.trace[0, head].to_dense())
        assert_close(found, dense.detach())
        assert run.trace[0, head].graph.num_edges == edge_index.shape[1]


@pytest.mark.parametrize("kind", ["GATConv", "GATv2Conv", "SuperGATConv", "PointTransformerConv"])
def test_self_loops_that_a_conv_adds_are_edges_and_can_be_cut(kind: str) -> None:
    torch.manual_seed(0)
    conv = getattr(pyg, kind)(5, 4).eval()
    loops = torch.cat([EDGES, torch.arange(NODES).expand(2, -1)], dim=1)
    more = (POSITIONS,) if kind == "PointTransformerConv" else ()
    for node in range(NODES):
        conv.add_self_loops = True
        with edited(conv, Cut(layer=0, query=node, key=node)):
            found = conv(X, *more, EDGES)
        keep = (loops != node).any(0)
        conv.add_self_loops = False
        assert_close(found, conv(X, *more, loops[:, keep]))


def test_a_cut_edge_still_counts_in_features_of_self_loops_that_are_means_of_edges() -> None:
    torch.manual_seed(0)
    conv = pyg.GATConv(5, 4, edge_dim=3, fill_value="mean").eval()
    with edited(conv, Cut(layer=0, query=1, key=0)):
        found = conv(X, EDGES, FEATURES)
    keep = torch.arange(COUNT) > 0
    assert not torch.allclose(found, conv(X, EDGES[:, keep], FEATURES[keep]), atol=1e-4)
    means = [FEATURES[EDGES[1] == n].mean(0).nan_to_num() for n in range(NODES)]
    loops = torch.arange(NODES).expand(2, -1)
    conv.add_self_loops = False
    everything = torch.cat([FEATURES[keep], torch.stack(means)])
    assert_close(found, conv(X, torch.cat([EDGES[:, keep], loops], dim=1), everything))


def test_each_relation_of_a_conv_that_attends_within_relations_is_a_stack() -> None:
    torch.manual_seed(0)
    conv = pyg.RGATConv(5, 4, 3, heads=2, attention_mechanism="within-relation").eval()
    with capturing(conv) as run:
        conv(X, EDGES, edge_type=TYPES)
    assert list(run.trace.stacks) == ["relation 0", "relation 1", "relation 2"]
    for edge, (key, query) in enumerate(EDGES.T.tolist()):
        keep = torch.arange(COUNT) != edge
        stack = f"relation {int(TYPES[edge])}"
        with edited(conv, Cut(layer=0, query=query, key=key, stack=stack)):
            found = conv(X, EDGES, edge_type=TYPES)
        assert_close(found, conv(X, EDGES[:, keep], edge_type=TYPES[keep]))


def test_a_dense_conv_is_seen_along_its_own_dimension() -> None:
    torch.manual_seed(0)
    conv = pyg.DenseGATConv(5, 4, heads=2).eval()
    adjacency = torch.zeros(NODES, NODES)
    adjacency[EDGES[1], EDGES[0]] = 1.0
    plain = conv(X[None], adjacency)
    with capturing(conv) as run:
        assert torch.equal(conv(X[None], adjacency), plain)
    assert run.trace[0, 1].graph.num_edges == COUNT + NODES
    for key, query in EDGES.T.tolist():
        without = adjacency.clone()
        without[query, key] = 0.0
        with edited(conv, Cut(layer=0, query=query, key=key)):
            assert_close(conv(X[None], adjacency), conv(X[None], without))


VALUES = {name for name in CONVS if not name.startswith(("GENConv", "SAGEConv"))}


@pytest.mark.parametrize("name", sorted(VALUES))
def test_contributions_are_the_lengths_of_messages(name: str) -> None:
    conv, call, heads = built(name)
    messages: list[Tensor] = []
    handle = conv.register_message_forward_hook(lambda _, given, out: messages.append(out.detach()))
    plain = call(conv, ALL)
    handle.remove()
    with capturing(conv, contributions="value", keep=TopK(2)) as run:
        assert torch.equal(call(conv, ALL), plain)
    assert not conv._message_forward_hooks
    (message,) = messages
    lengths = message.reshape(len(message), heads, -1).norm(dim=-1)
    pairs = EDGES if getattr(conv, "flow", "") == "source_to_target" else EDGES.flip(0)
    loops = torch.arange(NODES).expand(2, -1)
    pairs = pairs if len(message) == COUNT else torch.cat([pairs, loops], dim=1)
    for head in range(heads):
        graph = run.trace[0, head]
        expected = torch.zeros(NODES, NODES).index_put((pairs[1], pairs[0]), lengths[:, head])
        key, query = graph.graph.edge_index
        assert graph.value_norm is not None
        assert_close(torch.from_numpy(graph.value_norm), expected[query, key])


def test_contributions_that_cannot_be_proved_are_refused() -> None:
    conv, call, _ = built("SAGEConv, softmax")
    with pytest.raises(CaptureError, match="does not weigh its messages"):
        capture_with(conv, call, "value")
    conv, call, _ = built("GATConv")
    with pytest.raises(CaptureError, match="no output projection"):
        capture_with(conv, call, True)
    shifted = pyg.RGATConv(5, 4, 3, heads=2, mod="additive").eval()
    with pytest.raises(CaptureError, match="not the attention times a value"):
        capture_with(shifted, TYPED, "value")


def capture_with(conv: nn.Module, call: Call, contributions: Any) -> None:
    with capturing(conv, contributions=contributions):
        call(conv, ALL)


@pytest.mark.parametrize("aggr", ["mean", "max"])
@pytest.mark.parametrize("kind", [pyg.GATConv, pyg.GATv2Conv, pyg.TransformerConv])
def test_edges_that_count_without_attention_are_not_cut(kind, aggr):
    """In a mean, the layer without the edge has one message less."""
    conv = kind(5, 4, heads=2, aggr=aggr).double().eval()
    x = X.double()
    with torch.no_grad():
        plain = conv(x, EDGES)
        with capturing(conv) as run:
            assert torch.equal(conv(x, EDGES), plain)
        for edit in (Cut(layer=0, query=1, key=0), Restrict(TokenGraph.causal(NODES))):
            with pytest.raises(EditError, match="still counts there"), edited(conv, edit):
                conv(x, EDGES)
        with edited(conv, Scale(0.5, layer=0)):
            halved = conv(x, EDGES)
    assert len(run.trace) == 2
    if kind is not pyg.TransformerConv:  # which adds the node itself
        torch.testing.assert_close(halved - conv.bias, 0.5 * (plain - conv.bias))
