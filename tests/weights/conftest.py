import pytest
import torch

from gattn.engines.call import attention_call
from gattn.engines.shared.scoring import score_edges
from gattn.graph.rules.simple import Complete
from gattn.graph.token_graph import TokenGraph


@pytest.fixture
def query():
    return torch.randn(2, 3, 5, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.fixture
def key():
    return torch.randn(2, 3, 7, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


@pytest.fixture
def score():
    """Score all pairs by the edge-list engine: (B, H, Q, D), (B, H, K, D) -> (B, H, Q, K)."""

    def score_all(weight, query, key, edge_features=None, query_offset=0):
        sizes = query.shape[-2], key.shape[-2]
        graph = TokenGraph(Complete(), *sizes, query_offset=query_offset)
        call, _ = attention_call(query, key, graph, weight, edge_features=edge_features)
        return score_edges(call).unflatten(-1, sizes)

    return score_all


@pytest.fixture
def loop():
    """Score all pairs one by one with ``formula(head, i, j, q, k)``, in plain loops."""

    def score_all(formula, query, key):
        batch, heads, queries, _ = query.shape
        scores = torch.empty(batch, heads, queries, key.shape[2], dtype=torch.float64)
        for b, h, i, j in torch.ones_like(scores).nonzero().tolist():
            scores[b, h, i, j] = float(formula(h, i, j, query[b, h, i], key[b, h, j]))
        return scores

    return score_all
