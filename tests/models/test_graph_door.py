"""Attention over the edges of a graph in live models: stacks, edits, types of edges, restoring."""

import sys
import types
from contextlib import suppress

import pytest
import torch
from torch import nn

import gattn
from gattn import (
    AttentionGraph,
    Cut,
    ModelScore,
    Restrict,
    Scale,
    Softmax,
    Sparsemax,
    Swap,
    TokenGraph,
    TopK,
    Use,
    capturing,
    edited,
)
from gattn.errors import CaptureError, EditError, ModelError

pyg = pytest.importorskip("torch_geometric.nn")
import torch_geometric  # noqa: E402
from torch_geometric import EdgeIndex, utils  # noqa: E402

NODES = 6
EDGES = torch.tensor([[0, 1, 2, 3, 4, 5, 0, 2, 4], [1, 2, 3, 4, 5, 0, 3, 5, 1]])
X = torch.randn(NODES, 8, generator=torch.Generator().manual_seed(0))


def assert_close(found, expected):
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)


TWICE = torch.cat([EDGES, EDGES[:, :3]], dim=1)
FEATURES = torch.randn(TWICE.shape[1], 2, generator=torch.Generator().manual_seed(2))


def conv(kind=pyg.GATv2Conv, *sizes, **options):
    torch.manual_seed(0)
    return kind(*(sizes or (8, 4)), **options).eval()


def plain_gat(heads=2):
    return conv(pyg.GATConv, heads=heads, add_self_loops=False)


def dense(alpha, edges=EDGES):
    return torch.zeros(NODES, NODES).index_put((edges[1], edges[0]), alpha, accumulate=True)


def weighed(conv, edges=EDGES, **given):
    """The attention that a conv returns, (heads, nodes, nodes)."""
    _, (edges, alpha) = conv(X, edges, return_attention_weights=True, **given)
    return torch.stack([dense(one, edges).detach() for one in alpha.T])


def output(gat, attention):
    """GATConv's output for some attention (heads, nodes, nodes)."""
    values = gat.lin(X).view(NODES, gat.heads, -1)
    joined = torch.einsum("hij,jhc->ihc", attention, values).flatten(1)
    return joined + gat.bias


# Stacks, layers, nodes


class Net(nn.Module):
    def __init__(self, kind=pyg.GATConv):
        super().__init__()
        self.conv1, self.conv2 = kind(8, 4, heads=2), kind(8, 3)

    def forward(self, x, edge_index):
        return self.conv2(self.conv1(x, edge_index).relu(), edge_index)


def test_convs_on_the_same_nodes_are_layers_of_one_stack():
    torch.manual_seed(0)
    net = Net().eval()
    with capturing(net) as run:
        net(X, EDGES)
    assert list(run.trace.stacks["graph"]) == [(0, 0), (0, 1), (1, 0)]
    network = run.trace[1, 0].to_networkx()
    assert sorted(network.nodes) == list(range(NODES))
    loops = [(n, n) for n in range(NODES)]
    assert set(network.edges) == {*map(tuple, EDGES.T.tolist()), *loops}
    with edited(net, Cut(layer=1, query=3, key=0)):
        found = net(X, EDGES)
    first = net.conv1(X, EDGES).relu()
    assert_close(found, net.conv2(first, EDGES[:, (torch.tensor([[0], [3]]) != EDGES).any(0)]))


def test_a_model_of_torch_geometric_unrolls():
    torch.manual_seed(0)
    net = pyg.GAT(8, 8, 3, heads=2, v2=True).eval()
    with capturing(net) as run:
        net(X, EDGES)
    assert run.trace.stacks["graph"].layers == [0, 1, 2]
    rollout = gattn.analysis.rollout(run.trace)
    expected = torch.eye(NODES)
    for layer in range(3):
        heads = [torch.from_numpy(run.trace[layer, head].to_dense()) for head in range(2)]
        expected = (torch.eye(NODES) + (heads[0] + heads[1]) / 2) / 2 @ expected
    assert_close(torch.from_numpy(rollout.values[-1]).float(), expected)


def test_nodes_are_named_by_position_or_as_told():
    gat, square = plain_gat(), EDGES[:, :NODES]  # as many edges as nodes
    with capturing(gat) as run:
        gat(X, square)
    assert run.trace[0, 0].tokens == ()
    with capturing(gat, tokens=list("abcdef")) as run:
        gat(X, square)
    assert run.trace[0, 0].to_networkx().nodes[2]["token"] == "c"
    own = gattn.GraphAttention(8, 4).eval()
    with capturing(own) as run:
        own(X, square)
    assert run.trace[0, 0].tokens == ()


def test_a_batch_of_graphs_is_one_disjoint_graph():
    both = torch.cat([EDGES, EDGES + NODES], dim=1)
    gat = plain_gat()
    with capturing(gat) as run:
        gat(torch.cat([X, X]), both)
    one = run.trace[0, 0].to_dense()
    assert (one[:NODES, :NODES] == one[NODES:, NODES:]).all()
    assert not one[:NODES, NODES:].any()


def test_each_call_is_a_trace_whatever_its_graph():
    gat = plain_gat()
    with capturing(gat) as run:
        gat(X, EDGES)
        gat(X[:3], EDGES[:, :2])
    assert [trace[0, 0].graph.num_queries for trace in run.traces] == [6, 3]


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("form", ["csr", "coo", "edge index", "sorted"])
def test_edges_come_in_any_form(form):
    gat = plain_gat()
    given = {
        "csr": lambda: utils.to_torch_csr_tensor(EDGES.flip(0), size=(NODES, NODES)),
        "coo": lambda: utils.to_torch_coo_tensor(EDGES.flip(0), size=(NODES, NODES)),
        "edge index": lambda: EdgeIndex(EDGES, sparse_size=(NODES, NODES)),
        "sorted": lambda: EdgeIndex(EDGES, sparse_size=(NODES, NODES)).sort_by("col").values,
    }[form]()
    with capturing(gat) as run:
        gat(X, given)
    for head, expected in enumerate(weighed(gat)):
        assert_close(torch.from_numpy(run.trace[0, head].to_dense()), expected)
    with edited(gat, Cut(layer=0, query=3, key=2)):
        found = gat(X, given)
    assert_close(found, gat(X, EDGES[:, [0, 1, 3, 4, 5, 6, 7, 8]]))


# Edits


def test_scores_and_keep():
    gat = plain_gat()
    with capturing(gat, keep=TopK(1), scores=True) as run:
        gat(X, EDGES)
    for head, whole in enumerate(weighed(gat)):
        graph = run.trace[0, head]
        key, query = graph.graph.edge_index
        rows = (whole > 0).any(1)
        assert (whole[rows].argmax(1) == key[torch.argsort(query)]).all()
        alpha = (gat.lin(X).view(NODES, 2, 4) * gat.att_src).sum(-1)[key, head]
        alpha = alpha + (gat.lin(X).view(NODES, 2, 4) * gat.att_dst).sum(-1)[query, head]
        expected = nn.functional.leaky_relu(alpha, 0.2).detach()
        assert_close(torch.from_numpy(graph.score), expected)


def test_one_head_is_edited_and_the_other_stays():
    gat = plain_gat()
    with edited(gat, Cut(layer=0, head=1, query=3, key=0)):
        found = gat(X, EDGES)
    plain, without = gat(X, EDGES), gat(X, EDGES[:, [0, 1, 2, 3, 4, 5, 7, 8]])
    assert torch.equal(found[:, :4], plain[:, :4])
    assert_close(found[:, 4:], without[:, 4:])
    others = torch.arange(NODES) != 3
    assert torch.equal(found[others], plain[others])  # bit for bit


@pytest.mark.parametrize("is_cut", [False, True])
def test_attention_is_scaled_after_the_softmax(is_cut):
    gat = plain_gat()
    where = {"layer": 0, "head": 0, "query": 3, "key": 2}
    edit = Cut(**where, renormalize=False) if is_cut else Scale(0.25, **where)
    with edited(gat, edit):
        found = gat(X, EDGES)
    attention = weighed(gat)
    attention[0, 3, 2] *= 0.0 if is_cut else 0.25
    assert_close(found, output(gat, attention))


def test_a_node_without_edges_left_gets_nothing():
    gat = plain_gat()
    with edited(gat, Cut(layer=0, query=2)):
        assert_close(gat(X, EDGES)[2], gat.bias)


def test_restricting_keeps_common_edges():
    gat = plain_gat()
    allowed = TokenGraph.window(NODES, 2)
    with edited(gat, Restrict(allowed, layer=0)):
        found = gat(X, EDGES)
    keep = allowed.mask()[EDGES[1], EDGES[0]]
    assert 0 < int(keep.sum()) < EDGES.shape[1]
    assert_close(found, gat(X, EDGES[:, keep]))


def test_a_given_graph_is_used():
    gat = plain_gat()
    attention = torch.rand(EDGES.shape[1])
    graph = AttentionGraph.from_edges(EDGES, attention, num_tokens=NODES)
    with edited(gat, Use(graph, layer=0)):
        found = gat(X, EDGES)
    assert_close(found, output(gat, dense(attention).expand(2, -1, -1)))
    absent = AttentionGraph.from_edges([[5], [2]], torch.ones(1), num_tokens=NODES)
    with (
        pytest.raises(EditError, match="edge from key 5 to query 2"),
        edited(gat, Use(absent, layer=0)),
    ):
        gat(X, EDGES)


def test_scores_are_swapped_on_the_same_graph():
    gat = plain_gat()
    with edited(gat, Swap(layer=0, weight=0.0 * ModelScore())):
        found = gat(X, EDGES)
    adjacency = dense(torch.ones(EDGES.shape[1]))
    even = adjacency / adjacency.sum(1, keepdim=True).clamp_min(1)
    assert_close(found, output(gat, even.expand(2, -1, -1)))
    with edited(gat, Swap(layer=0, normalizer=Softmax(temperature=0.5))):
        found = gat(X, EDGES)
    squared = weighed(gat) ** 2
    squared = squared / squared.sum(-1, keepdim=True).clamp_min(1e-30)
    assert_close(found, output(gat, squared))


def test_another_normalizer_shares_scores_out():
    gat = plain_gat()
    with capturing(gat, scores=True) as run, edited(gat, Swap(layer=0, normalizer=Sparsemax())):
        found = gat(X, EDGES)
    scores = torch.full((2, NODES, NODES), -torch.inf)
    for head in range(2):
        graph = run.trace[0, head]
        key, query = graph.graph.edge_index
        scores[head, query, key] = torch.from_numpy(graph.score)
    assert_close(found, output(gat, Sparsemax()(scores)))


def test_a_weight_function_of_vectors_is_refused():
    gat = plain_gat()
    with (
        pytest.raises(EditError, match="reads queries and keys"),
        edited(gat, Swap(layer=0, weight=gattn.Dot())),
    ):
        gat(X, EDGES)


def test_an_edit_of_no_edge_is_an_error():
    gat = plain_gat()
    with (
        pytest.raises(EditError, match="had nothing to edit"),
        edited(gat, Cut(layer=0, query=2, key=5)),
    ):
        gat(X, EDGES)


def test_the_gradient_of_a_cut_is_that_without_the_edge():
    gat, x = plain_gat(), X.clone().requires_grad_()
    with edited(gat, Cut(layer=0, query=3, key=2)):
        found = torch.autograd.grad(gat(x, EDGES).square().sum(), [x, gat.att_src])
    without = EDGES[:, [0, 1, 3, 4, 5, 6, 7, 8]]
    expected = torch.autograd.grad(gat(x, without).square().sum(), [x, gat.att_src])
    for one, other in zip(found, expected, strict=True):
        assert_close(one, other)


def test_training_goes_on_with_edits_and_is_not_captured_with_dropout():
    gat = plain_gat().train()
    with edited(gat, Cut(layer=0, query=3, key=2)):
        gat(X, EDGES).sum().backward()
    assert gat.att_src.grad is not None
    drops = conv(pyg.GATConv, heads=2, dropout=0.5).train()
    with pytest.raises(ModelError, match="training"), capturing(drops):
        drops(X, EDGES)


def test_effects_are_measured():
    gat = plain_gat()
    cuts = [Cut(layer=0, query=3, key=key) for key in (0, 2)]
    found = gattn.effect(lambda: gat(X, EDGES)[3].sum(), cuts, model=gat)
    keeps = [[0, 1, 2, 3, 4, 5, 7, 8], [0, 1, 3, 4, 5, 6, 7, 8]]
    expected = [float(gat(X, EDGES[:, keep])[3].sum().detach()) for keep in keeps]
    assert found["edited"].tolist() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("renormalize", [False, True])
@pytest.mark.parametrize("is_doubled", [False, True])
def test_estimates_are_exact_where_the_answer_is_linear_in_attention(renormalize, is_doubled):
    gat = conv(pyg.GATv2Conv, heads=2, edge_dim=2, add_self_loops=False)
    edges = TWICE if is_doubled else EDGES
    features = FEATURES[: edges.shape[1]]

    def answer():
        return (gat(X, edges, features)[[1, 3]] * torch.arange(8.0)).sum()

    plain = answer()
    table = gattn.estimate(answer, model=gat, renormalize=renormalize)
    assert len(table) == 2 * EDGES.shape[1]
    assert table["estimate"].abs().max() > 0.1
    for row in table.itertuples():
        where = {"layer": 0, "head": row.head, "query": row.query, "key": row.key}
        with edited(gat, Cut(**where, renormalize=renormalize)):
            effect = answer() - plain
        assert row.estimate == pytest.approx(float(effect.detach()), abs=1e-4)
    assert torch.equal(answer(), plain)


# Parallel edges


def test_parallel_edges_are_shown_as_one_and_cut_together():
    gat = conv(pyg.GATv2Conv, heads=2, edge_dim=2, add_self_loops=False)
    plain = gat(X, TWICE, FEATURES)
    with capturing(gat, scores=True) as run:
        assert torch.equal(gat(X, TWICE, FEATURES), plain)
    for head, expected in enumerate(weighed(gat, TWICE, edge_attr=FEATURES)):
        graph = run.trace[0, head]
        assert graph.graph.num_edges == EDGES.shape[1]
        assert_close(torch.from_numpy(graph.to_dense()), expected)
        key, query = graph.graph.edge_index
        powers = torch.from_numpy(graph.score).exp()
        totals = torch.zeros(NODES).index_add(0, query, powers)
        assert_close(torch.from_numpy(graph.attention), powers / totals[query])
    for key, query in EDGES[:, :5].T.tolist():
        with edited(gat, Cut(layer=0, query=query, key=key)):
            found = gat(X, TWICE, FEATURES)
        keep = (torch.tensor([[key], [query]]) != TWICE).any(0)
        assert_close(found, gat(X, TWICE[:, keep], FEATURES[keep]))
    for edit in (Swap(layer=0, weight=2 * ModelScore()), Use(run.trace[0, 0], layer=0)):
        with pytest.raises(EditError, match="several edges run from"), edited(gat, edit):
            gat(X, TWICE, FEATURES)


# Types of nodes and edges

XS = {"a": torch.randn(4, 8), "p": torch.randn(5, 8)}
TYPED = {
    ("a", "w", "p"): torch.tensor([[0, 1, 2, 3, 0, 2], [0, 1, 2, 3, 4, 3]]),
    ("p", "r", "a"): torch.tensor([[0, 1, 2, 3, 4, 4], [0, 1, 2, 3, 0, 2]]),
    ("p", "c", "p"): torch.tensor([[0, 1, 2, 3, 4, 0], [1, 2, 3, 4, 0, 3]]),
}
META = list(XS), list(TYPED)


def without(kind, edge):
    some = torch.arange(TYPED[kind].shape[1]) != edge
    return TYPED | {kind: TYPED[kind][:, some]}


def each_cut(model, call=None):
    """Cut each edge of each type in its own stack; the model on the graph without it."""
    call = call or (lambda edges: model(XS, edges))
    for kind, edges in TYPED.items():
        for edge, (key, query) in enumerate(edges.T.tolist()):
            cut = Cut(layer=0, query=query, key=key, stack=" ".join(kind))
            with edited(model, cut):
                found = call(TYPED)
            expected = call(without(kind, edge))
            for name in XS:
                assert_close(found[name], expected[name])


OLD = pytest.mark.skipif(
    tuple(map(int, torch_geometric.__version__.split(".")[:2])) < (2, 7),
    reason="this torch-geometric reads a name that torch no longer has",
)


@pytest.mark.parametrize("kind", ["HANConv", "HeteroConv", pytest.param("to_hetero", marks=OLD)])
def test_each_type_of_edges_is_a_stack(kind):
    torch.manual_seed(0)
    if kind == "HANConv":
        model = pyg.HANConv(8, 8, META, heads=2)
    elif kind == "HeteroConv":
        convs = {of: pyg.GATv2Conv((8, 8), 4, add_self_loops=False) for of in TYPED}
        model = pyg.HeteroConv(convs)
    else:
        model = pyg.to_hetero(Typed(), META)
    model.eval()
    plain = model(XS, TYPED)
    with capturing(model) as run:
        watched = model(XS, TYPED)
    assert all(torch.equal(watched[name], plain[name]) for name in XS)
    assert list(run.trace.stacks) == ["a w p", "p r a", "p c p"]
    graphs = [stack[0, 0].graph for stack in run.trace.stacks.values()]
    assert [(g.num_queries, g.num_keys) for g in graphs] == [(5, 4), (4, 5), (5, 5)]
    assert [g.is_bipartite for g in graphs] == [True, True, False]
    each_cut(model)


class Typed(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = pyg.GATv2Conv((8, 8), 4, add_self_loops=False)

    def forward(self, x, edge_index):
        return self.conv(x, edge_index)


def test_attention_across_types_is_one_bipartite_graph():
    torch.manual_seed(0)
    model = pyg.HGTConv(8, 8, META, heads=2).eval()
    plain = model(XS, TYPED)
    with capturing(model) as run:
        watched = model(XS, TYPED)
    assert all(torch.equal(watched[name], plain[name]) for name in XS)
    head = run.trace[0, 0]
    assert head.graph.is_bipartite
    assert (head.graph.num_queries, head.graph.num_keys) == (9, 14)
    assert head.tokens[4] == "p 0 r"
    assert head.query_tokens[5] == "p 1"
    key_of = dict(zip(TYPED, (0, 4, 9), strict=True))  # the keys of each type, one after another
    query_of = {"a": 0, "p": 4}
    for kind, edges in TYPED.items():
        for edge, (key, query) in enumerate(edges.T.tolist()):
            cut = Cut(layer=0, query=query_of[kind[2]] + query, key=key_of[kind] + key)
            with edited(model, cut):
                found = model(XS, TYPED)
            expected = model(XS, without(kind, edge))
            assert all(torch.allclose(found[n], expected[n], atol=1e-6) for n in XS)


def test_nodes_of_several_types_are_named_in_edits():
    torch.manual_seed(0)
    model = pyg.HGTConv(8, 8, META, heads=2).eval()
    pairs = [
        (Cut(layer=0, query="p 1"), Cut(layer=0, query=5)),
        (Cut(layer=0, key="p 0 r"), Cut(layer=0, key=4)),
        (Cut(layer=0, key="p 0"), Cut(layer=0, key=[4, 9])),  # in both types of edges
    ]
    for by_name, by_position in pairs:
        with edited(model, by_name):
            found = model(XS, TYPED)
        with edited(model, by_position):
            expected = model(XS, TYPED)
        assert all(torch.equal(found[n], expected[n]) for n in XS)
    with pytest.raises(EditError, match="no query is 'p 9'"), edited(model, Cut(query="p 9")):
        model(XS, TYPED)


@pytest.mark.parametrize("kind", [pyg.HANConv, pyg.HGTConv])
def test_contributions_over_types_of_edges_are_known(kind):
    torch.manual_seed(0)
    model = kind(8, 8, META, heads=2).eval()
    messages = []
    with capturing(model, contributions="value") as run:
        handle = model.register_message_forward_hook(lambda _, given, out: messages.append(out))
        model(XS, TYPED)
        handle.remove()
    found = torch.cat([torch.from_numpy(s[0, 1].value_norm) for s in run.trace.stacks.values()])
    lengths = torch.cat(messages).view(-1, 2, 4)[:, 1].norm(dim=-1).detach()
    assert_close(found.sort().values, lengths.sort().values)


def test_what_a_layer_returns_stays_while_its_messages_are_measured():
    layer = conv(pyg.TransformerConv, heads=2)
    _, (_, plain) = layer(X, EDGES, return_attention_weights=True)
    with capturing(layer, contributions="value"):
        _, (_, alpha) = layer(X, EDGES, return_attention_weights=True)
    assert torch.equal(alpha, plain)


@pytest.mark.parametrize("is_same", [False, True])
def test_pairs_of_features_are_cross_attention_unless_they_are_the_same_nodes(is_same):
    gat = conv(pyg.GATv2Conv, (8, 8), 4, add_self_loops=False)
    pair = (X, X[:]) if is_same else (X, torch.flip(X, [0]))
    with capturing(gat) as run:
        gat(pair, EDGES)
    (stack,) = run.trace.stacks.values()
    assert stack[0, 0].graph.is_bipartite != is_same


# Readouts, and softmaxes that are no attention


class Readout(nn.Module):
    def __init__(self, pool):
        super().__init__()
        self.conv, self.pool = pyg.GATConv(8, 8), pool

    def forward(self, x, edge_index, batch):
        return self.pool(self.conv(x, edge_index), batch)


BATCH = torch.tensor([0, 0, 0, 0, 1, 1])


def test_each_graph_of_a_batch_reads_its_nodes():
    torch.manual_seed(0)
    model = Readout(pyg.aggr.AttentionalAggregation(nn.Linear(8, 1))).eval()
    with capturing(model) as run:
        model(X, EDGES, BATCH)
    assert list(run.trace.stacks) == ["graph", "pool"]
    graph = run.trace.stacks["pool"][0, 0].graph
    assert graph.is_bipartite
    assert graph.edge_index.tolist() == [[0, 1, 2, 3, 4, 5], BATCH.tolist()]
    hidden = model.conv(X, EDGES)
    for node in range(NODES):
        with edited(model, Cut(stack="pool", layer=0, key=node)):
            found = model(X, EDGES, BATCH)
        some = torch.arange(NODES) != node
        assert_close(found, model.pool(hidden[some], BATCH[some]))


def test_the_steps_of_set2set_are_stacks():
    torch.manual_seed(0)
    model = Readout(pyg.aggr.Set2Set(8, processing_steps=2)).eval()
    with capturing(model) as run:
        model(X, EDGES, BATCH)
    assert list(run.trace.stacks) == ["graph", "pool", "pool 2"]


def test_a_molecule_model_has_edges_and_readouts():
    torch.manual_seed(0)
    model = pyg.AttentiveFP(8, 8, 4, edge_dim=2, num_layers=2, num_timesteps=2).eval()
    with capturing(model) as run:
        model(X, EDGES, FEATURES[: EDGES.shape[1]], BATCH)
    shapes = {
        name: [stack[n, 0].graph.num_queries for n in stack.layers]
        for name, stack in run.trace.stacks.items()
    }
    assert shapes == {"graph": [6, 6], "mol_conv": [2, 2]}


def test_a_softmax_written_without_message_passing_is_found_by_its_edge_index():
    class Written(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin, self.att = nn.Linear(8, 4), nn.Linear(8, 1)

        def forward(self, x, edge_index):
            source, target = edge_index
            hidden = self.lin(x)
            scores = self.att(torch.cat([hidden[source], hidden[target]], -1))
            alpha = utils.softmax(scores, target, num_nodes=len(x))
            return torch.zeros_like(hidden).index_add(0, target, alpha * hidden[source])

    torch.manual_seed(0)
    model = Written().eval()
    for edge, (key, query) in enumerate(EDGES.T.tolist()):
        with edited(model, Cut(layer=0, query=query, key=key)):
            found = model(X, EDGES)
        assert_close(found, model(X, EDGES[:, torch.arange(EDGES.shape[1]) != edge]))


def test_scores_that_choose_nodes_or_edges_are_no_attention():
    class Pooled(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = pyg.GATConv(8, 8)
            self.top, self.contract = pyg.TopKPooling(8, min_score=0.1), pyg.EdgePooling(8)

        def forward(self, x, edge_index):
            x, edge_index, *_ = self.contract(self.conv(x, edge_index), edge_index, BATCH * 0)
            return self.top(x, edge_index)

    model = Pooled().eval()
    with capturing(model) as run:
        model(X, EDGES)
    assert list(run.trace.stacks["graph"]) == [(0, 0)]


@pytest.mark.parametrize(
    ("make", "given"),
    [
        (lambda: pyg.FAConv(8), (X, X, EDGES)),
        (lambda: pyg.DNAConv(8, heads=2), (X[:, None].repeat(1, 3, 1), EDGES)),
        (lambda: pyg.FeaStConv(8, 4, heads=2), (X, EDGES)),
        (lambda: pyg.MemPooling(8, 4, heads=2, num_clusters=2), (X,)),
        (lambda: pyg.GCNConv(8, 4), (X, EDGES)),
    ],
    ids=["FAConv", "DNAConv", "FeaStConv", "MemPooling", "GCNConv"],
)
def test_what_shares_nothing_out_over_neighbours_is_not_seen(make, given):
    torch.manual_seed(0)
    model = make().eval()
    with pytest.raises(CaptureError, match=r"cannot be (seen|read)|changed by"), capturing(model):
        model(*given)


def test_hyperedges_are_read_and_not_edited():
    torch.manual_seed(0)
    model = pyg.HypergraphConv(8, 4, use_attention=True, heads=2).eval()
    incidence, features = torch.tensor([[0, 1, 2, 2, 3, 4], [0, 0, 0, 1, 1, 1]]), torch.randn(2, 8)
    with capturing(model) as run:
        model(X, incidence, hyperedge_attr=features)
    head = run.trace[0, 0]
    assert head.graph.is_bipartite
    assert sorted(map(tuple, head.graph.edge_index.T.tolist())) == sorted(
        map(tuple, incidence.T.tolist())
    )
    with pytest.raises(EditError, match="twice"), edited(model, Cut(layer=0, query=0, key=1)):
        model(X, incidence, hyperedge_attr=features)


class Plain(pyg.MessagePassing):
    def forward(self, x, edge_index):
        return self.propagate(edge_index, x=x)


def test_what_cannot_be_told_is_refused():
    class Other(Plain):
        def message(self, x_j, index):
            return utils.softmax(x_j, index.flip(0), num_nodes=NODES) * x_j

    model = Other().eval()
    with pytest.raises(CaptureError, match="not the targets of the edges"), capturing(model):
        model(X, EDGES)
    mean = conv(pyg.SAGEConv, aggr="softmax")
    with pytest.raises(CaptureError, match="several graphs"), capturing(mean):
        mean(X.expand(2, -1, -1), EDGES)
    split = Plain(aggr="softmax", decomposed_layers=2).eval()
    with pytest.raises(CaptureError, match="decomposed_layers"), capturing(split):
        split(X, EDGES)
    gat = plain_gat()
    with pytest.raises(CaptureError, match="NaN"), capturing(gat):
        gat(X * torch.nan, EDGES)
    with pytest.raises(CaptureError, match="contributions"), capturing(gat, contributions=True):
        gat(X, EDGES)


# What is left behind


def state():
    home = utils.softmax
    names = {
        (name, of)
        for name, module in list(sys.modules.items())
        if name.startswith("torch_geometric")
        for of, value in list(vars(module).items())
        if value is home
    }
    return home, home.__code__, set(home.__globals__), names, dict(vars(pyg.GATConv))


def test_everything_is_as_before_also_after_errors():
    before, gat = state(), plain_gat()
    hooks = [dict(m._forward_pre_hooks) for m in gat.modules()]
    with capturing(gat):
        with edited(gat, Cut(layer=0, query=3, key=2)):
            gat(X, EDGES)
        inside = gat(X, EDGES)
    assert torch.equal(inside, gat(X, EDGES))
    with pytest.raises(RuntimeError), capturing(gat):
        gat(X[:, :3], EDGES)
    with suppress(KeyboardInterrupt), edited(gat, Cut(layer=0, query=3, key=2)):
        gat(X, EDGES)
        raise KeyboardInterrupt
    assert state() == before
    assert [dict(m._forward_pre_hooks) for m in gat.modules()] == hooks
    assert_close(utils.softmax(torch.zeros(2), torch.tensor([0, 0])), torch.full((2,), 0.5))


def test_functions_that_hold_the_softmax_are_seen_wherever_they_got_it():
    class Held(Plain):
        held = staticmethod(utils.softmax)

        def message(self, x_j, index, size_i):
            return self.held(x_j, index, num_nodes=size_i) * x_j

    late = types.ModuleType("late")
    model = Held().eval()
    with capturing(model) as run:
        exec("from torch_geometric.utils import softmax", vars(late))
        model(X, EDGES)
    assert run.trace[0, 7].graph.num_edges == EDGES.shape[1]
    assert late.softmax is utils.softmax


def test_another_model_is_not_seen():
    gat, other = plain_gat(), Net().eval()
    with capturing(gat) as run:
        other(X, EDGES)
        gat(X, EDGES)
    assert len(run.traces) == 1


def test_half_precision_and_double():
    for dtype in (torch.bfloat16, torch.float64):
        gat = plain_gat().to(dtype)
        x = X.to(dtype)
        plain = gat(x, EDGES)
        with capturing(gat) as run:
            assert torch.equal(gat(x, EDGES), plain)
        with edited(gat, Cut(layer=0, query=3, key=2)):
            found = gat(x, EDGES)
        expected = gat(x, EDGES[:, [0, 1, 3, 4, 5, 6, 7, 8]])
        torch.testing.assert_close(found, expected)
        wanted = "float64" if dtype == torch.float64 else "float32"
        assert run.trace[0, 0].attention.dtype == wanted


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (Cut(query=3, key=0), "the graph has no edge from key 0 to query 3"),
        (Cut(query=0, key=3), "the graph has no edge from key 3 to query 0"),
        (Cut(query=[2, 3], key=0), "no edge from key 0 to any of these queries"),
        (Cut(query=4), "the graph has no edge to query 4"),
        (Cut(key=3), "the graph has no edge from key 3"),
        (Cut(query=9, key=0), r"at query 9: the queries are 0 \.\. 4"),
    ],
)
def test_an_edge_that_the_graph_lacks_is_said_to_be_missing(edit, says):
    gat = pyg.GATConv(4, 2, add_self_loops=False).eval()
    with pytest.raises(EditError, match=rf"{says}\. A trace \(gattn\.capture"), edited(gat, edit):
        gat(torch.randn(5, 4), torch.tensor([[0, 1, 2, 4], [1, 2, 3, 0]]))
