"""Dropped attention: right on average, and the same again where it is computed again."""

import pytest
import torch
from problems import GRAPHS, Problem, by_engine, small_pieces

from gattn.attention import graph_attention
from gattn.engines import NAMES
from gattn.graph.token_graph import TokenGraph
from gattn.module import GraphAttention

PIECES = {"numbers": 40, "block_bytes": 1500, "height": 2}
DRAWS, SHARE = 3000, 0.4
ON_TOKENS = ["tiles", "edges", "message_passing"]
DROPPING = [engine for engine in NAMES if engine != "flex"]  # which refuses to


def dropped(engine, seed, dropout=SHARE, graph="causal", weight="scaled dot", **tensors):
    problem = Problem(GRAPHS[graph], weight, batch=1)
    torch.manual_seed(seed)
    given = problem.tensors() | tensors
    function, normalizer, _ = problem.functions()
    functions = {"weight": function, "normalizer": normalizer}
    return graph_attention(
        **given, graph=problem.graph, **functions, dropout=dropout, engine=engine
    )


@pytest.mark.parametrize("engine", DROPPING)
def test_the_mean_is_what_is_not_dropped(engine):
    """Over a batch of draws: within five standard errors."""
    graph, problem = TokenGraph.causal(6), Problem(GRAPHS["causal"], batch=1, learns=False)
    whole = by_engine(problem, engine).output
    torch.manual_seed(0)
    tensors = {name: x.expand(DRAWS, -1, -1, -1) for name, x in problem.tensors().items()}
    draws = graph_attention(**tensors, graph=graph, dropout=SHARE, engine=engine)
    error = draws.std(0) / DRAWS**0.5
    assert bool((error > 0).all())
    assert bool(((draws.mean(0) - whole[0]).abs() < 5 * error).all())


@pytest.mark.parametrize("engine", DROPPING)
def test_each_edge_is_dropped_or_scaled_up(engine):
    """Values that are unit vectors show the attention."""
    tokens = 40
    query = torch.randn(1, 2, tokens, 4, dtype=torch.float64)
    value = torch.eye(tokens, dtype=torch.float64).expand(1, 2, -1, -1)
    options = {"graph": TokenGraph.complete(tokens), "engine": engine}
    whole = graph_attention(query, query, value, **options)
    some = graph_attention(query, query, value, **options, dropout=SHARE)
    kept = some != 0
    torch.testing.assert_close(some[kept], whole[kept] / (1 - SHARE))
    assert float(kept.double().mean()) == pytest.approx(1 - SHARE, abs=0.05)


@pytest.mark.parametrize("engine", DROPPING)
def test_all_or_nothing(engine):
    assert not bool(dropped(engine, 0, dropout=1.0).any())
    torch.testing.assert_close(dropped(engine, 0, dropout=0.0), dropped(engine, 1, dropout=0.0))


@pytest.mark.parametrize("engine", DROPPING)
def test_a_seed_draws_the_same(engine):
    torch.testing.assert_close(dropped(engine, 3), dropped(engine, 3), atol=0, rtol=0)
    assert not torch.allclose(dropped(engine, 3), dropped(engine, 4))


@pytest.mark.parametrize("engine", ON_TOKENS)
@pytest.mark.parametrize("weight", ["scaled dot", "lambda"])
@pytest.mark.parametrize("name", ["query", "key", "value"])
def test_the_gradient_is_that_of_what_was_drawn(engine, weight, name):
    """In blocks that are computed again: the same edges are dropped again."""
    start = Problem(GRAPHS["causal"], batch=1).tensors()[name]

    def attend(tokens):
        return dropped(engine, 5, weight=weight, **{name: tokens})

    with small_pieces(**PIECES):
        assert torch.autograd.gradcheck(attend, (start,), fast_mode=True)


def test_evaluation_drops_nothing():
    layer = GraphAttention(8, 4, heads=2, dropout=0.9).double().eval()
    whole = GraphAttention(8, 4, heads=2).double()
    whole.load_state_dict(layer.state_dict())
    x = torch.randn(6, 8, dtype=torch.float64)
    for name in ("causal", "strided"):
        graph = TokenGraph.causal(6) if name == "causal" else TokenGraph.strided(6, 2)
        torch.testing.assert_close(layer(x, graph), whole(x, graph), atol=0, rtol=0)
        assert not torch.allclose(layer.train()(x, graph), whole(x, graph))
        layer.eval()
