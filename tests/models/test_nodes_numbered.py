"""Graph layers are shown on the nodes of the data, wherever a model has moved these before."""

import warnings

import pytest
import torch
from torch import nn

import gattn
from gattn import Cut, capturing, edited

pyg = pytest.importorskip("torch_geometric.nn")
from torch_geometric.data import Data  # noqa: E402
from torch_geometric.utils import k_hop_subgraph, scatter, softmax  # noqa: E402

NODES = 8
EDGES = torch.tensor([[0, 1, 2, 3, 4, 5, 6, 7, 0, 3, 5], [1, 2, 3, 4, 5, 6, 7, 0, 3, 0, 2]])
X = torch.randn(NODES, 8, generator=torch.Generator().manual_seed(0))
NAMES = list("abcdefgh")
ORDER = torch.tensor([3, 0, 5, 1, 2, 4, 7, 6])


def gat(*sizes, kind=pyg.GATConv, **options):
    return kind(*(sizes or (8, 8)), add_self_loops=False, **options)


class Model(nn.Module):
    """Two layers, with what a subclass does to nodes between them."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = gat(), gat(8, 4)
        self.eval()

    def between(self, x, edges):
        """Return nodes and edges, and which nodes of the data the nodes are."""
        return x, edges, torch.arange(len(x))

    def forward(self, x, edges):
        x, edges, self.nodes = self.between(self.first(x, edges), edges)
        return self.second(x, edges)


class Moved(Model):
    def between(self, x, edges):
        return x[ORDER], ORDER.argsort()[edges], ORDER


class AfterMixing(Model):
    """Layers that mix neighbours without attention, a norm and a residual come before."""

    def __init__(self):
        super().__init__()
        self.gcn, self.sage, self.norm = pyg.GCNConv(8, 8), pyg.SAGEConv(8, 8), pyg.GraphNorm(8)
        self.eval()

    def between(self, x, edges):
        x = self.norm(x + self.sage(self.gcn(x, edges).relu(), edges))
        return x[ORDER], ORDER.argsort()[edges], ORDER


class Hop(Model):
    def between(self, x, edges):
        nodes, edges, _, _ = k_hop_subgraph(0, 2, edges, relabel_nodes=True, num_nodes=len(x))
        return x[nodes], edges, nodes


class Pooled(Model):
    kind = pyg.TopKPooling

    def __init__(self):
        super().__init__()
        self.pool = self.kind(8, 0.6)
        self.eval()

    def between(self, x, edges):
        x, edges, _, _, nodes, _ = self.pool(x, edges)
        return x, edges, nodes


class PooledByAttention(Pooled):
    kind = pyg.SAGPooling


def captured(model, *inputs, names=NAMES):
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("error", UserWarning)
        with capturing(model, tokens=names) as run:
            model(*inputs)
    return run.trace


def weights(conv, x, edges, nodes):
    """A layer's own attention, (nodes of the data, nodes of the data)."""
    _, (edges, alpha) = conv(x, edges, return_attention_weights=True)
    found = torch.zeros(NODES, NODES)
    return found.index_put((nodes[edges[1]], nodes[edges[0]]), alpha[:, 0])


@pytest.mark.parametrize("kind", [Model, Moved, AfterMixing, Hop, Pooled, PooledByAttention])
@torch.no_grad()
def test_layers_are_shown_on_the_nodes_of_the_data(kind):
    model = kind()
    trace = captured(model, X, EDGES)
    assert list(trace.stacks) == ["graph"]
    moved, edges, nodes = model.between(model.first(X, EDGES), EDGES)
    expected = weights(model.second, moved, edges, nodes)
    torch.testing.assert_close(torch.from_numpy(trace[1, 0].to_dense()), expected)
    known = set(map(tuple, EDGES.T.tolist()))
    assert edges.numel()
    assert set(map(tuple, trace[1, 0].graph.edge_index.T.tolist())) <= known
    assert "".join(trace[1, 0].tokens) == "abcdefgh"


@pytest.mark.parametrize("kind", [Moved, AfterMixing, Hop, Pooled, PooledByAttention])
@torch.no_grad()
def test_cuts_speak_the_numbers_of_the_data(kind):
    model = kind()
    moved, edges, nodes = model.between(model.first(X, EDGES), EDGES)
    n = 1
    key, query = nodes[edges[:, n]].tolist()
    with edited(model, Cut(layer=1, query=query, key=key)):
        found = model(X, EDGES)
    kept = torch.arange(edges.shape[1]) != n
    torch.testing.assert_close(found, model.second(moved, edges[:, kept]))


@torch.no_grad()
def test_a_later_call_with_other_values_or_edges_is_numbered_anew():
    model = Pooled()
    for seed in range(2):
        x = torch.randn(NODES, 8, generator=torch.Generator().manual_seed(seed))
        trace = captured(model, x, EDGES)
        left = set(trace[1, 0].graph.edge_index.flatten().tolist())
        assert left <= set(model.nodes.tolist())
    hop = Hop()
    for edges in (EDGES, EDGES.roll(1, 0)):
        trace = captured(hop, X, edges)
        assert set(trace[1, 0].graph.edge_index.flatten().tolist()) <= set(hop.nodes.tolist())
        own = set(map(tuple, edges.T.tolist()))
        assert set(map(tuple, trace[1, 0].graph.edge_index.T.tolist())) <= own


class NoCopy(Moved):
    """Knows itself by its identity, so that no copy of it runs."""

    def __init__(self):
        super().__init__()
        self.known = id(self)

    def between(self, x, edges):
        if self.known != id(self):
            raise KeyError(self.known)
        return super().between(x, edges)


@torch.no_grad()
def test_nodes_of_a_model_that_cannot_be_proved_have_no_names():
    model = NoCopy()
    why = r"since a copy of it, run to prove .* failed \(KeyError"
    with pytest.warns(UserWarning, match=why), capturing(model, tokens=NAMES) as run:
        model(X, EDGES)
    graphs = [graph for stack in run.trace.stacks.values() for _, graph in stack.items()]
    assert [graph.tokens for graph in graphs] == [()] * 2


@torch.no_grad()
def test_open_contexts_may_nest():
    model = Pooled()
    trace = captured(model, X, EDGES)
    with capturing(model) as run, capturing(model) as inner:
        model(X, EDGES)
    for found in (run.trace, inner.trace, gattn.capture(lambda: model(X, EDGES), model)):
        assert list(found.stacks) == ["graph"]
        assert torch.equal(found[1, 0].graph.edge_index, trace[1, 0].graph.edge_index)


@torch.no_grad()
def test_nodes_are_not_known_if_an_edit_changes_which_are_pooled():
    model = Pooled()
    model(X, EDGES)
    before = model.nodes.tolist()
    cut = Cut(layer=0, query=before[0], stack="graph")
    said = pytest.warns(UserWarning, match="cannot be proved which nodes")
    with said, edited(model, cut), capturing(model, tokens=NAMES) as run:
        model(X, EDGES)
    assert model.nodes.tolist() != before
    assert run.trace.stacks["second"][0, 0].tokens == ()


PERMUTES = torch.eye(NODES)[ORDER]


class Features(nn.Module):
    """One layer, on what a function makes of the features."""

    def __init__(self, move, width=8):
        super().__init__()
        torch.manual_seed(0)
        self.move, self.conv = move, gat(width, 8)
        self.token = nn.Parameter(torch.randn(width))
        self.register_buffer("permutes", PERMUTES)
        self.eval()

    def forward(self, x, edges):
        return self.conv(self.move(self, x), edges)


def shifted(model, x):
    found = torch.zeros_like(x)
    found[:-1], found[-1] = x[1:], x[0]
    return found


def ranked(model, x):
    return torch.stack([x, x - 1, x - 2], -1).max(-1)[0].flip(0)


MOVES = {
    "interleaved": (lambda model, x: x.view(2, 4, 8).transpose(0, 1).reshape(8, 8), True),
    "half": (lambda model, x: x.view(2, 4, 8)[1], True),
    "shifted": (shifted, True),
    "sorted": (lambda model, x: x[:, :1].sort(0).values.expand(-1, 8), True),
    "ranked": (ranked, True),
    "product": (lambda model, x: (x.t() @ model.permutes.t()).t(), False),
    "linear": (lambda model, x: nn.functional.linear(x.t(), model.permutes).t(), False),
    "where": (lambda model, x: torch.where(torch.arange(8)[:, None] % 2 == 0, x, x.flip(0)), False),
    "pooled": (lambda model, x: x.view(4, 2, 8).mean(1), False),
    "largest": (lambda model, x: x.view(4, 2, 8).amax(1), False),
    "clusters": (lambda model, x: pyg.MeanAggregation()(x, torch.arange(8) // 2), False),
}


def shown(model, *inputs):
    """Return the edges and tokens of a layer, and whether it is said that nodes are unknown."""
    with warnings.catch_warnings(record=True) as said, torch.no_grad():
        warnings.simplefilter("always")
        with capturing(model) as run:
            model(*inputs)
    told = ["cannot be proved which nodes" in str(one.message) for one in said]
    return sorted(run.trace[0, 0].graph.edge_index.T.tolist()), told


@pytest.mark.parametrize("name", MOVES)
@torch.no_grad()
def test_nodes_are_proved_whatever_kernel_moves_them(name):
    move, is_proved = MOVES[name]
    model = Features(move)
    moved = move(model, X)
    edges = torch.stack([torch.arange(len(moved) - 1), torch.arange(1, len(moved))])
    found, told = shown(model, X, edges)
    nodes = torch.arange(len(moved))
    if is_proved:
        nodes = (moved[:, None, :1] == X[None, :, :1]).all(-1).float().argmax(1)
    assert found == sorted(nodes[edges].T.tolist())
    assert told == ([] if is_proved else [True])


@pytest.mark.parametrize(
    ("move", "is_moved"),
    [
        (lambda model, kinds: nn.functional.one_hot(kinds, 5).float(), False),
        (lambda model, kinds: nn.functional.one_hot(kinds.flip(0), 5).float(), True),
        (lambda model, kinds: nn.functional.one_hot(kinds[ORDER], 5).float(), True),
    ],
)
@torch.no_grad()
def test_integers_that_are_moved_make_nodes_unknown(move, is_moved):
    found, told = shown(Features(move, 5), torch.arange(NODES) % 5, EDGES)
    assert found == sorted(EDGES.T.tolist())
    assert told == [True] * is_moved


class ByRow(nn.Module):
    """A row of the edges of a cycle is a permutation of nodes."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv = gat()

    def forward(self, x, edges):
        return self.conv(x[edges[1]], torch.tensor([[0, 0], [1, 2]]))


@torch.no_grad()
def test_nodes_moved_by_a_row_of_the_edges():
    cycle = torch.stack([torch.arange(NODES), (torch.arange(NODES) + 1) % NODES])
    assert shown(ByRow().eval(), X, cycle) == ([[1, 2], [1, 3]], [])


def masked(model, x):
    x = x.clone()
    x[[2, 5]] = model.token
    return x


@pytest.mark.parametrize(
    ("move", "told"),
    [
        (masked, []),
        (lambda model, x: torch.cat([model.token[None], x[1:]]), []),
        (lambda model, x: masked(model, x)[ORDER], [True]),
    ],
)
@torch.no_grad()
def test_nodes_with_other_features_are_not_new_ones(move, told):
    assert shown(Features(move), X, EDGES) == (sorted(EDGES.T.tolist()), told)


class Joined(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv = gat()

    def forward(self, x, y, edges):
        return self.conv(torch.cat([x, y.flip(0)]), edges)


@torch.no_grad()
def test_nodes_of_another_input_are_not_new_ones():
    assert shown(Joined().eval(), X[:3], X[3:], EDGES) == (sorted(EDGES.T.tolist()), [True])


@pytest.mark.parametrize(
    "make",
    [
        lambda x, graph: x + x.mean(0),
        lambda x, graph: x + pyg.global_mean_pool(x, graph)[graph],
        lambda x, graph: pyg.PairNorm()(x),
        lambda x, graph: pyg.GraphNorm(8)(x, graph),
    ],
)
@torch.no_grad()
def test_what_all_nodes_share_moves_none(make):
    graph = torch.tensor([0, 0, 0, 1, 1, 1, 1, 1])
    model = Features(lambda model, x: make(x, graph))
    assert shown(model, X, EDGES) == (sorted(EDGES.T.tolist()), [])


class Shuffled(Model):
    def between(self, x, edges):
        order = torch.randperm(len(x))
        return x[order], order.argsort()[edges], order


class Placed(Model):
    """Nodes are moved by a sum, which might as well join them."""

    def between(self, x, edges):
        return torch.zeros_like(x).index_add(0, ORDER, x), ORDER[edges], ORDER.argsort()


class OverEdges(Model):
    """Sums over the edges of the data move no nodes."""

    def between(self, x, edges):
        x = torch.zeros_like(x).index_add(0, edges[1], x[edges[0]])
        return x, edges, torch.arange(len(x))


class Clustered(Model):
    """Nodes that are means of others are none of the data."""

    def between(self, x, edges):
        x = scatter(x, torch.tensor([0, 0, 1, 1, 2, 2, 3, 3]), 0, reduce="mean")
        x = torch.cat([x[2:], x[:2], x], 0)
        return x, edges, torch.arange(len(x))


@pytest.mark.parametrize("kind", [Shuffled, Clustered, Placed])
@torch.no_grad()
def test_nodes_that_are_not_known_have_no_names_and_a_stack_of_their_own(kind):
    model = kind()
    said = r"second \(GATConv\) attends over nodes, or tokens, of which it cannot be proved"
    with pytest.warns(UserWarning, match=said), capturing(model, tokens=NAMES) as run:
        model(X, EDGES)
    assert run.trace.stacks["graph"][0, 0].tokens == tuple(NAMES)
    assert run.trace.stacks["second"][0, 0].tokens == ()


class Own(nn.Module):
    """A layer without message passing, which attends twice."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.query, self.key, self.value = (nn.Linear(8, 8) for _ in range(3))

    def attend(self, x, edges):
        key, query = edges
        scores = (self.query(x)[query] * self.key(x)[key]).sum(-1)
        self.attention = softmax(scores, query, num_nodes=len(x))
        messages = self.value(x)[key] * self.attention[:, None]
        return scatter(messages, query, 0, dim_size=len(x), reduce="sum")

    def forward(self, x, edges):
        x = self.attend(x, edges)
        return self.attend(x[ORDER], ORDER.argsort()[edges])


@torch.no_grad()
def test_a_layer_without_message_passing():
    model = Own().eval()
    trace = captured(model, X, EDGES)
    expected = torch.zeros(NODES, NODES).index_put((EDGES[1], EDGES[0]), model.attention)
    found = torch.from_numpy(trace.stacks["graph, part 2"][0, 0].to_dense())
    torch.testing.assert_close(found, expected)


class Embedded(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.conv = nn.Embedding(20, 8), gat()

    def forward(self, ids, edges):
        return self.conv(self.embedding(ids)[ORDER], ORDER.argsort()[edges])


class OfData(Embedded):
    def forward(self, data):
        return self.conv(data.x[ORDER], ORDER.argsort()[data.edge_index])


@torch.no_grad()
def test_ids_and_data_objects():
    ids = torch.arange(NODES) + 5
    for model, given in (
        (Embedded().eval(), (ids, EDGES)),
        (OfData().eval(), (Data(x=X, edge_index=EDGES),)),
    ):
        found = captured(model, *given)[0, 0].graph.edge_index.T.tolist()
        assert sorted(map(tuple, found)) == sorted(map(tuple, EDGES.T.tolist()))


class Apart(nn.Module):
    """Both sides of a bipartite layer are moved, and nodes are read out in another order."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv = gat((8, 8), 8)
        self.readout = pyg.AttentionalAggregation(nn.Linear(8, 1))

    def forward(self, x, y, edges, graph):
        order = torch.tensor([2, 0, 1])
        edges = torch.stack([ORDER.argsort()[edges[0]], order.argsort()[edges[1]]])
        return self.conv((x[ORDER], y[order]), edges), self.readout(x[ORDER], graph[ORDER])


@torch.no_grad()
def test_bipartite_layers_and_readouts():
    edges = torch.tensor([[0, 1, 2, 3, 7], [0, 0, 1, 2, 2]])
    graph = torch.tensor([0, 0, 0, 1, 1, 1, 1, 1])
    trace = captured(Apart().eval(), X, X[:3] + 1, edges, graph)
    found = trace.stacks["conv"][0, 0].graph.edge_index
    assert sorted(map(tuple, found.T.tolist())) == sorted(map(tuple, edges.T.tolist()))
    read = trace.stacks["readout"][0, 0].graph.edge_index.T.tolist()
    assert sorted(map(tuple, read)) == list(enumerate(graph.tolist()))


class Types(nn.Module):
    def __init__(self, *, is_moved=False):
        super().__init__()
        torch.manual_seed(0)
        self.is_moved = is_moved
        kinds = [("author", "writes", "paper"), ("paper", "cites", "paper")]
        self.conv = pyg.HGTConv(8, 8, (["author", "paper"], kinds), 2)

    def forward(self, nodes, edges):
        if self.is_moved:
            nodes = {kind: x.flip(0) for kind, x in nodes.items()}
        return self.conv(nodes, edges)


TYPES = {"author": X[:3], "paper": X[:5] + 1}
LINKS = {
    ("author", "writes", "paper"): torch.tensor([[0, 1, 2], [0, 1, 3]]),
    ("paper", "cites", "paper"): torch.tensor([[0, 1], [2, 3]]),
}


@torch.no_grad()
def test_several_types_of_nodes_have_the_names_that_they_have_in_the_data():
    trace = captured(Types().eval(), TYPES, LINKS, names=None)
    assert trace[0, 0].tokens[:3] == ("author 0 writes", "author 1 writes", "author 2 writes")
    model = Types(is_moved=True).eval()
    with pytest.warns(UserWarning, match="cannot be proved which nodes"), capturing(model) as run:
        model(TYPES, LINKS)
    assert run.trace[0, 0].tokens == ()


class Turned(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv = gattn.GraphAttention(8, 4)

    def forward(self, x, edges):
        return self.conv(x.flip(0), NODES - 1 - edges)


@torch.no_grad()
def test_layers_of_gattn_on_moved_nodes_have_no_names():
    model = Turned().eval()
    said = pytest.warns(UserWarning, match="cannot be proved which nodes")
    with said, capturing(model, tokens=NAMES) as run:
        model(X, EDGES)
    assert run.trace[0, 0].tokens == ()


class Virtual(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.node, self.conv = nn.Parameter(torch.randn(1, 8)), gat()

    def forward(self, x, edges):
        links = torch.stack([torch.arange(1, NODES + 1), torch.zeros(NODES, dtype=torch.long)])
        return self.conv(torch.cat([self.node, x]), torch.cat([edges + 1, links], 1))


@torch.no_grad()
def test_nodes_that_the_model_adds_come_after_those_of_the_data():
    found = captured(Virtual().eval(), X, EDGES, names=None)[0, 0].graph.edge_index.T.tolist()
    links = [[n, NODES] for n in range(NODES)]
    assert sorted(found) == sorted(EDGES.T.tolist() + links)


@torch.no_grad()
def test_a_layer_of_ones_own_before_changes_nothing():
    assert list(captured(OverEdges(), X, EDGES).stacks) == ["graph"]


@torch.no_grad()
def test_nothing_is_proved_where_nothing_moves(monkeypatch):
    from gattn.models.doors.proof.nodes.numbering import Numbering

    monkeypatch.setattr(Numbering, "found", lambda *given, **more: pytest.fail("it was proved"))
    torch.manual_seed(0)
    for model in (Model(), pyg.GAT(8, 8, 3, v2=True, norm="batch", jk="cat").eval()):
        captured(model, X, EDGES)


def test_the_attention_of_each_edge_is_checked():
    from gattn.errors import CaptureError
    from gattn.models.read.on_graphs.readings import _verified
    from gattn.models.read.on_graphs.seen_edges import Ends, SeenEdges

    count = 2000
    query = torch.arange(count).repeat_interleave(2)
    key = torch.randint(count, (2 * count,), generator=torch.Generator().manual_seed(0))
    scores = torch.randn(2 * count, 1, generator=torch.Generator().manual_seed(1))
    attention = scores.reshape(count, 2).softmax(1).reshape(-1, 1)
    ends = Ends(nn.Linear(1, 1), key, query, count, count)
    _verified(SeenEdges.of("conv", ends, scores, attention))
    for wrong in (0, 37, 2 * count - 1):
        other = attention.clone()
        other[wrong] += 0.01
        with pytest.raises(CaptureError, match="does not share attention out"):
            _verified(SeenEdges.of("conv", ends, scores, other))


class OfTwoGraphs(nn.Module):
    """Reads two graphs with the same layers, one after the other or layer by layer."""

    def __init__(self, kind, by_layer):
        super().__init__()
        torch.manual_seed(0)
        self.layers, self.by_layer = nn.ModuleList(gat(kind=kind) for _ in range(2)), by_layer
        self.eval()

    def forward(self, x, edges, y, links):
        runs = [(n, layer) for n in (0, 1) for layer in self.layers]
        given = [(x.relu(), edges), (y.relu(), links)]
        if self.by_layer:
            runs = [(n, layer) for layer in self.layers for n in (0, 1)]
        for n, layer in runs:
            z, some = given[n]
            given[n] = z + layer(z, some), some
        return given[0][0], given[1][0]


@pytest.mark.parametrize("by_layer", [False, True])
@pytest.mark.parametrize("kind", [pyg.GATConv, gattn.GraphAttention])
@torch.no_grad()
def test_two_graphs_with_as_many_nodes_have_stacks_of_their_own(kind, by_layer):
    model, other = OfTwoGraphs(kind, by_layer), (X.flip(0), EDGES.roll(1, 1).flip(0))
    trace = captured(model, X, EDGES, *other, names={"graph": NAMES, "graph 2": NAMES[::-1]})
    for stack, given in (("graph", (X, EDGES)), ("graph 2", other)):
        alone = captured(model.layers[0], given[0].relu(), given[1], names=None)
        assert [n for n, _ in trace.stacks[stack]] == [0, 1]
        found, wanted = trace[stack][0, 0].to_dense(), alone[0, 0].to_dense()
        torch.testing.assert_close(torch.tensor(found), torch.tensor(wanted))
    one = captured(model, X, EDGES, X + 1, EDGES)  # The same edges are those of the same nodes.
    assert {name: len(stack) for name, stack in one.stacks.items()} == {"graph": 4}
