"""Edits refuse names of tokens where it is not known which tokens a layer is given."""

import pytest
import torch
from torch import nn

import gattn
from gattn import Cut, edited
from gattn.errors import EditError

TOKENS, WIDTH = 8, 6
NAMES = list("abcdefgh")
X = torch.randn(1, TOKENS, WIDTH, generator=torch.Generator().manual_seed(0))
EDGES = torch.tensor([[0, 1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6, 7]])
ORDER = torch.tensor([3, 0, 5, 1, 2, 4, 7, 6])
MOVED = r"names a token by its text, but the model moved, picked or mixed its tokens before"
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*picks or orders tokens", "ignore:.*cannot be proved which nodes"
)


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x):
        return x + (self.query(x) @ self.key(x).mT / 3).softmax(-1) @ self.value(x)


class Sorted(nn.Module):
    """The second layer is given tokens in the order of their values."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = Head(), Head()
        self.eval()

    def forward(self, x):
        x = self.first(x)
        return self.second(x.gather(1, x[..., :1].argsort(1).expand_as(x)))


class Graph(nn.Module):
    """A layer is given nodes that a product moves."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        nodes = pytest.importorskip("torch_geometric.nn")
        self.second = nodes.GATConv(WIDTH, WIDTH, add_self_loops=False)
        self.register_buffer("moves", torch.eye(TOKENS)[ORDER])
        self.eval()

    def forward(self, x):
        return self.second(torch.einsum("mn,nf->mf", self.moves, x[0]), EDGES)


class Own(nn.Module):
    """A layer of gattn is given tokens in another order."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.second = gattn.GraphAttention(WIDTH, WIDTH)
        self.eval()

    def forward(self, x):
        return self.second(x[:, ORDER], gattn.TokenGraph.causal(TOKENS))


@torch.no_grad()
@pytest.mark.parametrize("cut", [{"query": "c"}, {"key": "b"}, {"query": "c", "key": "b"}])
@pytest.mark.parametrize("kind", [Sorted, Graph, Own])
def test_names_of_tokens_that_are_not_known_are_refused(kind, cut):
    model = kind()
    with (
        pytest.raises(EditError, match=MOVED),
        edited(model, Cut(layer=0, stack="second", **cut), tokens=NAMES),
    ):
        model(X)


@torch.no_grad()
@pytest.mark.parametrize("kind", [Sorted, Graph, Own])
def test_positions_count_tokens_as_they_come(kind):
    model = kind()
    before = model(X)
    with edited(model, Cut(layer=0, stack="second", query=2, key=1), tokens=NAMES):
        changed = (model(X) != before).reshape(TOKENS, WIDTH).any(1)
    assert changed.nonzero()[:, 0].tolist() == [2]


@torch.no_grad()
def test_names_before_tokens_are_moved_are_found():
    model = Sorted()
    with edited(model, Cut(layer=0, stack="first", query="c", key="b"), tokens=NAMES):
        found = model(X)
    with edited(model, Cut(layer=0, stack="first", query=2, key=1)):
        assert torch.equal(model(X), found)
