"""Which nodes of the data layers have: several graphs at once, pools that are undone, own code."""

import warnings

import pytest
import torch
from torch import nn

from gattn import Cut, capturing, edited
from gattn.models.doors.proof.nodes import passing
from gattn.models.doors.proof.plans import plan_of

pyg = pytest.importorskip("torch_geometric.nn")
from torch_geometric import utils  # noqa: E402
from torch_geometric.utils import softmax  # noqa: E402

NODES, WIDTH = 8, 8
EDGES = torch.tensor([[0, 1, 2, 3, 4, 5, 6, 7, 0, 3, 5], [1, 2, 3, 4, 5, 6, 7, 0, 3, 0, 2]])
ORDER = torch.tensor([3, 0, 5, 1, 2, 4, 7, 6])
X = torch.randn(NODES, WIDTH, generator=torch.Generator().manual_seed(0))


class Model(nn.Module):
    """One layer, of what a function makes of the features; `nodes` says which nodes these are."""

    def __init__(self, make):
        super().__init__()
        torch.manual_seed(0)
        self.pool = pyg.TopKPooling(WIDTH, 0.6)
        self.first, self.conv = (pyg.GATConv(WIDTH, WIDTH, add_self_loops=False) for _ in "ab")
        self.jumping = pyg.JumpingKnowledge("max")
        self.make, self.nodes = make, torch.arange(NODES)
        self.eval()

    def forward(self, x, edges):
        return self.conv(self.make(self, x, edges), edges)


def flattened(model, x, edges):
    model.nodes = torch.arange(NODES).flip(0)
    return x.flatten(0, 1).flip(0)


def unpooled(model, x, edges):
    """Nodes that were not picked are zero."""
    some, _, _, _, nodes, _ = model.pool(x, edges)
    found = torch.zeros_like(x)
    found[nodes] = some
    return found


def unpooled_elsewhere(model, x, edges):
    model.nodes = ORDER
    return unpooled(model, x, edges)[ORDER]


def jumping(model, x, edges):
    model.nodes = ORDER
    x = x[ORDER]
    return model.jumping([x, model.first(x, ORDER.argsort()[edges])])


def listed(model, x, edges):
    return torch.tensor(x.tolist()[::-1])


def as_array(model, x, edges):
    return torch.from_numpy(x.numpy()[::-1].copy())


def recorded(model, *given):
    """Return a model's trace, and what gattn said of it."""
    with warnings.catch_warnings(record=True) as said, torch.no_grad():
        warnings.simplefilter("always")
        with capturing(model) as run:
            model(*given)
    return run.trace, [str(one.message) for one in said]


def captured(model, x):
    trace, said = recorded(model, x, EDGES)
    is_unknown = ["cannot be proved which nodes" in one for one in said]
    heads = trace.stacks["conv" if is_unknown else "graph"]
    return sorted(heads[max(heads)].graph.edge_index.T.tolist()), is_unknown


@pytest.mark.parametrize(
    ("make", "x"),
    [
        (flattened, X.view(2, 4, WIDTH)),
        (lambda model, x, edges: x.flatten(0, 1), X.view(2, 4, WIDTH)),
        (unpooled, X),
        (jumping, X),
    ],
)
def test_nodes_of_the_data_are_told(make, x):
    model = Model(make)
    found, is_unknown = captured(model, x)
    assert found == sorted(model.nodes[EDGES].T.tolist())
    assert not is_unknown


@pytest.mark.parametrize("make", [unpooled_elsewhere, listed, as_array])
def test_nodes_that_are_not_told_are_numbered_as_they_come(make):
    assert captured(Model(make), X) == (sorted(EDGES.T.tolist()), [True])


SUMS = {
    "by order": lambda out, at, some: out.index_add(0, at, some),
    "by name": lambda out, at, some: out.index_add(dim=0, index=at, source=some),
    "in place": lambda out, at, some: out.index_add_(0, at, source=some),
    "of torch": lambda out, at, some: torch.index_add(input=out, dim=-2, index=at, source=some),
    "scatter_add": lambda out, at, some: out.scatter_add(
        dim=0, index=at[:, None].expand_as(some), src=some
    ),
    "scatter_reduce": lambda out, at, some: out.scatter_reduce(
        0, at[:, None].expand_as(some), src=some, reduce="sum"
    ),
}


class Summing(nn.Module):
    """A layer without message passing, before one whose nodes are turned round."""

    def __init__(self, name):
        super().__init__()
        torch.manual_seed(0)
        self.name, self.score = name, nn.Linear(WIDTH, 1)
        self.conv = pyg.GATConv(WIDTH, WIDTH, add_self_loops=False)
        self.eval()

    def forward(self, x, edges):
        key, query = edges
        attention = softmax((self.score(x)[key] + self.score(x)[query])[:, 0], query)
        x = SUMS[self.name](torch.zeros_like(x), query, x[key] * attention[:, None])
        return self.conv(x[ORDER], ORDER.argsort()[edges])


@pytest.mark.parametrize("name", SUMS)
def test_nodes_are_told_however_messages_are_summed(name):
    """What lands on a node takes none of the marks of others, and the node keeps its own."""
    trace, said = recorded(Summing(name), X, EDGES)
    assert not said
    assert sorted(trace["graph"][1, 0].graph.edge_index.T.tolist()) == sorted(EDGES.T.tolist())


@pytest.mark.parametrize(
    ("author", "paper"),
    [
        ("author", "paper"),
        ("main author", "my paper"),
        ("type 2", "paper"),
        ("layer 1 of 2", "3 d"),
    ],
)
def test_nodes_of_types_with_spaces_and_digits_in_their_names(author, paper):
    kinds = [(author, "writes", paper), (paper, "cites", paper)]
    nodes = {author: X[:3], paper: X[:5] + 1}
    links = {
        kinds[0]: torch.tensor([[0, 1, 2], [0, 1, 3]]),
        kinds[1]: torch.tensor([[0, 1], [2, 3]]),
    }
    model = pyg.HGTConv(WIDTH, WIDTH, ([author, paper], kinds), 2).eval()
    trace, said = recorded(model, nodes, links)
    head = next(iter(trace.stacks.values()))[0, 0]
    assert head.tokens == tuple(
        [f"{author} {n} writes" for n in range(3)] + [f"{paper} {n} cites" for n in range(5)]
    )
    assert not said
    where = {"head": 0, "query": f"{paper} 3"}
    with torch.no_grad():
        with edited(model, Cut(**where, key=f"{author} 2 writes")):
            wanted = model(nodes, links)[paper]
        with edited(model, Cut(**where, key=f"{author} 2")):  # Only one key is this node.
            torch.testing.assert_close(model(nodes, links)[paper], wanted, rtol=0, atol=0)
    assert not torch.allclose(wanted, model(nodes, links)[paper])
    turned = Turned(model)
    trace, said = recorded(turned, nodes, links)
    assert next(iter(trace.stacks.values()))[0, 0].tokens == ()
    assert any("cannot be proved which nodes" in one for one in said)


class Turned(nn.Module):
    """A layer whose nodes of each type come in another order than the model's."""

    def __init__(self, conv):
        super().__init__()
        self.conv = conv

    def forward(self, nodes, links):
        return self.conv({kind: x.flip(0) for kind, x in nodes.items()}, links)


def unlike_nan(model, x, edges):
    """Fail on NaN, in a function of torch."""
    return x[ORDER] + 0 * torch.linalg.eigvalsh(x @ x.T)[:, None]


@torch.no_grad()
def test_gattn_hides_its_own_errors_no_more_than_it_passes_on_those_of_models(monkeypatch):
    model = Model(unlike_nan)
    proved = plan_of(model, model, (X, EDGES), {})
    assert not proved.refused
    assert not proved.numbers["conv", 0].is_known
    monkeypatch.setattr(passing, "_MOST_GATHERS", None)
    model = Model(unlike_nan)
    assert "TypeError: bad operand" in plan_of(model, model, (X, EDGES), {}).refused


@torch.no_grad()
@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
def test_nodes_that_are_moved_beside_sparse_edges_are_those_of_the_data_or_unknown(layout):
    is_csr = layout is torch.sparse_csr
    sparse = utils.to_torch_csr_tensor if is_csr else utils.to_torch_coo_tensor
    edges = sparse(EDGES.flip(0), size=(NODES, NODES))
    trace, said = recorded(Model(lambda model, x, _: x[ORDER]), X, edges)
    head = next(iter(trace.stacks.values()))[0, 0]
    if any("cannot be proved which nodes" in one for one in said):
        assert head.tokens == ()
        return
    key, query = ORDER[EDGES]
    found = set(zip(head.key.tolist(), head.query.tolist(), strict=True))
    assert found == set(zip(key.tolist(), query.tolist(), strict=True))
    assert not is_csr
