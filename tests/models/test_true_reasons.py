"""What is refused says why, and keys of no query are not taken for padding where scores rank."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from gattn import Cut, capturing, edited
from gattn.errors import CaptureError, EditError
from gattn.models.doors.proof.probing.alike import state_of

WIDTH = 8


class Largest(nn.Module):
    """Attends to the two largest scores of each query."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(WIDTH, WIDTH)
        self.seen = torch.empty(0)

    def forward(self, x: Tensor) -> Tensor:
        scores = self.query(x) @ x.mT
        least = scores.topk(2, -1).values[..., -1:]
        self.seen = scores.masked_fill(scores < least, -torch.inf).softmax(-1)
        return self.seen @ x


@torch.no_grad()
def test_keys_of_no_query_are_no_padding_where_scores_rank() -> None:
    torch.manual_seed(0)
    model = Largest().eval()
    kept_by_none = 0
    for seed in range(12):
        x = torch.randn(1, 5, WIDTH, generator=torch.Generator().manual_seed(seed))
        with capturing(model) as run:
            model(x)
        kept_by_none += not bool((model.seen > 0).any(1).all())
        found = torch.tensor(run.trace[0, 0].to_dense())
        torch.testing.assert_close(found, model.seen[0], atol=1e-6, rtol=0)
    assert 0 < kept_by_none < 12


class Rescaled(Largest):
    """Changes its scores after it ranked them, so that they are not those that it ranked."""

    def forward(self, x: Tensor) -> Tensor:
        scores = self.query(x) @ x.mT
        least = scores.topk(2, -1).values[..., -1:]
        scores = scores.masked_fill(scores < least, -torch.inf) / 2
        self.seen = scores.softmax(-1)
        return self.seen @ x


@torch.no_grad()
def test_keys_of_no_query_are_refused_where_other_scores_were_ranked() -> None:
    torch.manual_seed(0)
    model, refused = Rescaled().eval(), 0
    for seed in range(12):
        x = torch.randn(1, 5, WIDTH, generator=torch.Generator().manual_seed(seed))
        model(x)
        if not bool((model.seen > 0).any(1).all()):
            refused += 1
            refuses = pytest.raises(CaptureError, match="keeps the largest scores alone")
            with refuses, capturing(model):
                model(x)
    assert refused


class Hypergraph(nn.Module):
    """Edges attend to their nodes, and nodes to their edges; there is no batch."""

    def __init__(self) -> None:
        super().__init__()
        self.of_node, self.of_pair = nn.Linear(WIDTH, 1), nn.Linear(2 * WIDTH, 1)

    def forward(self, x: Tensor, incidence: Tensor) -> Tensor:
        nodes, edges = incidence.shape
        scores = self.of_node(x).T.expand(edges, -1)
        y = scores.masked_fill(incidence.T == 0, -1e9).softmax(-1) @ x
        pairs = torch.cat([x[:, None].expand(-1, edges, -1), y.expand(nodes, -1, -1)], -1)
        scores = self.of_pair(pairs)[..., 0]
        return scores.masked_fill(incidence == 0, -1e9).softmax(-1) @ y


@torch.no_grad()
def test_a_hypergraph_is_not_said_to_mix_a_batch() -> None:
    incidence = torch.ones(6, 3)
    incidence[4:, 2] = 0
    model = Hypergraph().eval()
    with pytest.raises(CaptureError, match="the edges of a hypergraph"), capturing(model):
        model(torch.randn(6, WIDTH), incidence)


def test_another_message_of_a_librarys_class_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    pyg = pytest.importorskip("torch_geometric.nn")
    model = nn.Sequential(pyg.GATConv(4, 4))
    before = state_of(model)
    assert state_of(model) == before
    monkeypatch.setattr(pyg.GATConv, "message", lambda self, x_j, alpha: 2 * alpha[..., None] * x_j)
    assert state_of(model) != before


def test_a_context_says_that_nothing_was_called_in_it() -> None:
    model = nn.MultiheadAttention(8, 2).eval()
    with pytest.raises(CaptureError, match="was not called"), capturing(model):
        pass
    with pytest.raises(EditError, match="was not called"), edited(model, Cut(layer=0)):
        pass
