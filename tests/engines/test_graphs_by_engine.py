"""Attention graphs hold, edge by edge, the attention of dense algebra."""

import numpy as np
import pytest
import torch
from keeping import kept_by_hand
from oracle import expected
from pairs import all_pairs
from problems import GRAPHS, NEEDS_FEATURES, NORMALIZERS, WIDE, Problem, small_pieces

from gattn.attention import attention_graphs
from gattn.errors import ContractError
from gattn.graph.token_graph import TokenGraph
from gattn.keep import All, Threshold, TopK, TopMass
from gattn.weights.base import WeightFunction

ENGINES = ["tiles", "edges"]
KEEPS = {"all": All(), "threshold": Threshold(0.2), "top k": TopK(2), "top mass": TopMass(0.7)}
PIECES = {"numbers": 40, "block_bytes": 1500, "block_edges": 7, "height": 2}


def wanted_edges(attention, mask, keep):
    """The (query, key) of each edge that stays in one head."""
    edges = []
    for i, row in enumerate(attention):
        near = mask[i].nonzero()[:, 0].tolist()
        edges += [(i, j) for j in kept_by_hand(row.tolist(), near, keep)]
    return edges


def hold(problem, engine, keep=KEEPS["all"], **options):
    tensors = problem.tensors()
    weight, normalizer, _ = problem.functions()
    features = tensors.get("edge_features")
    given = {"graph": problem.graph, "weight": weight, "normalizer": normalizer}
    exact = expected(*list(tensors.values())[:3], **given, features=features)
    heads = attention_graphs(
        tensors["query"], tensors["key"], **given, edge_features=features, keep=keep,
        scores=True, engine=engine, **options,
    )  # fmt: skip
    mask = problem.graph.mask()
    assert len(heads) == problem.batch * tensors["query"].shape[1]
    whole = exact.attention.detach().flatten(0, 1)
    for head, attention, score in zip(heads, whole, exact.scores.flatten(0, 1), strict=True):
        pairs = wanted_edges(attention, mask, keep)
        assert list(zip(head.query.tolist(), head.key.tolist(), strict=True)) == pairs
        query, key = torch.tensor(pairs, dtype=torch.long).reshape(-1, 2).T
        for found, one in ((head.attention, attention), (head.score, score.detach())):
            np.testing.assert_allclose(found, one[query, key], rtol=1e-10, atol=1e-10)
        mass = attention.abs().sum(-1)
        np.testing.assert_allclose(head.total_mass, mass, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("engine", "keep", "graph"), all_pairs(ENGINES, KEEPS, GRAPHS))
def test_on_every_graph(engine, keep, graph):
    hold(Problem(GRAPHS[graph], "additive and relative"), engine, KEEPS[keep])


@pytest.mark.parametrize(("engine", "keep", "graph"), all_pairs(ENGINES, KEEPS, WIDE))
def test_in_several_blocks(engine, keep, graph):
    hold(Problem(WIDE[graph], "scaled dot", batch=1, learns=False), engine, KEEPS[keep])


@pytest.mark.parametrize(
    ("engine", "keep", "graph", "weight"),
    all_pairs(
        ENGINES,
        KEEPS,
        ["causal", "window", "rows without edges", "longformer"],
        ["relative", "capturing lambda", "trees", "edge product"],
    ),
)
def test_in_small_pieces(engine, keep, graph, weight):
    features = 3 if weight in NEEDS_FEATURES else 0
    with small_pieces(**PIECES):
        hold(Problem(GRAPHS[graph], weight, features=features), engine, KEEPS[keep])


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("normalizer", NORMALIZERS)
def test_for_every_normalizer(engine, normalizer):
    weight = "kernel" if normalizer == "proportional" else "relative"
    hold(Problem(GRAPHS["window"], weight, normalizer), engine, TopK(2))


def test_features_one_an_edge_take_edges():
    problem = Problem(GRAPHS["window"], "edge bias", features=2)
    hold(problem, "edges", TopK(2))
    hold(problem, None)
    with pytest.raises(ContractError, match=r"tiles cannot run this.*chooses edges"):
        hold(problem, "tiles")


@pytest.mark.parametrize("engine", ["fused", "flex", "message_passing"])
def test_engines_of_outputs_alone_are_refused(engine):
    query = torch.randn(2, 5, 4)
    with pytest.raises(ContractError, match="tiles or edges"):
        attention_graphs(query, query, TokenGraph.causal(5), engine=engine)
    with pytest.raises(ContractError, match="fused, tiles, edges, flex, message_passing"):
        attention_graphs(query, query, TokenGraph.causal(5), engine="nonsense")


@pytest.mark.parametrize("engine", ENGINES)
def test_a_wrong_score_is_found_out(engine):
    class Drifting(WeightFunction):
        """Scores anew a little more each time."""

        calls = 0

        def forward(self, query, key, pairs):
            Drifting.calls += 1
            return (query * key).sum(-1) + 1e-6 * Drifting.calls * pairs.offset

    with pytest.raises(AssertionError):
        hold(Problem(GRAPHS["causal"], Drifting), engine)
