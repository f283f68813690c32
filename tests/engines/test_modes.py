"""Outputs are the same whether or not a gradient is asked for, and in every thread."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from pairs import all_pairs
from problems import (
    GRAPHS,
    NEEDS_FEATURES,
    WIDE,
    Problem,
    agree,
    by_engine,
    by_oracle,
    drawn_edges,
    small_pieces,
)

from gattn.attention import graph_attention
from gattn.engines import NAMES
from gattn.graph.token_graph import TokenGraph
from gattn.weights import Dot, SquaredDistance

PIECES = {"numbers": 40, "block_bytes": 1500, "block_edges": 7, "height": 2}


@pytest.mark.parametrize(
    ("engine", "weight", "graph"),
    [
        *all_pairs(
            ["tiles", "edges", "message_passing"],
            ["scaled dot", "relative", "capturing lambda", "trees"],
            ["causal", "window", "rows without edges", "no edges"],
        ),
        ("fused", "scaled dot", "causal"),
    ],
)
def test_no_gradient_changes_no_output(engine, weight, graph):
    problem = Problem(GRAPHS[graph], weight)
    with small_pieces(**PIECES):
        recorded = by_engine(problem, engine)
        for mode in (torch.no_grad, torch.inference_mode):
            with mode():
                found = by_engine(problem, engine)
            torch.testing.assert_close(found.output, recorded.output.detach(), rtol=0, atol=1e-12)
            assert not found.output.requires_grad
        plain = by_engine(replace(problem, learns=False), engine).output
    torch.testing.assert_close(plain, recorded.output, rtol=0, atol=1e-12)


@pytest.mark.parametrize("engine", NAMES)
@pytest.mark.parametrize("weight", ["scaled dot", "relative", "capturing lambda", "edge product"])
@pytest.mark.parametrize("rule", ["causal", "random"])
def test_a_gradient_after_inference_on_the_same_graph(engine, weight, rule):
    """What is remembered of a graph in inference mode serves gradients as well."""
    graph = TokenGraph.causal(7) if rule == "causal" else drawn_edges(7, 7, seed=2)
    problem = Problem(graph, weight, features=3 if weight in NEEDS_FEATURES else 0)
    with torch.inference_mode():
        by_engine(problem, engine)
    if (found := by_engine(problem, engine)) is not None:
        agree(found, by_oracle(problem), engine)


@pytest.mark.parametrize("engine", NAMES)
@pytest.mark.parametrize("weight", ["scaled dot", "capturing lambda"])
def test_threads_do_not_mix_their_numbers(engine, weight):
    """All on the same graph, whose edges are remembered; the batches differ."""
    graph = TokenGraph.causal(40) if engine == "fused" else TokenGraph.window(40, 5)
    problems = [Problem(graph, weight, batch=1 + seed % 3, seed=seed) for seed in range(12)]
    wanted = [by_oracle(problem) for problem in problems]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(by_engine, problems, [engine] * len(problems)))
    for one, other in zip(found, wanted, strict=True):
        if one is not None:
            agree(one, other, engine)


@pytest.mark.parametrize("engine", ["tiles", "edges", "message_passing"])
def test_a_broken_key_that_nobody_reads_breaks_nothing(engine):
    query, key, value = torch.randn(3, 1, 4, 3)
    key[:, 3] = torch.nan
    graph = TokenGraph.causal(4) - TokenGraph.from_edges([(3, 3)], 4)
    output = graph_attention(query, key, value, graph, weight=SquaredDistance(), engine=engine)
    assert bool(torch.isfinite(output).all())


@pytest.mark.parametrize("engine", ["tiles", "edges", "message_passing"])
@pytest.mark.parametrize("graph", WIDE)
def test_inputs_need_not_be_contiguous(engine, graph):
    graph = WIDE[graph]
    tensors = Problem(graph, batch=1, learns=False).tensors()
    odd = {name: x.transpose(1, 2).contiguous().transpose(1, 2) for name, x in tensors.items()}
    for weight in (None, lambda q, k, pairs: -(q - k).abs().sum(-1)):
        options = {"graph": graph, "weight": weight, "engine": engine}
        plain, other = graph_attention(**tensors, **options), graph_attention(**odd, **options)
        torch.testing.assert_close(plain, other, rtol=0, atol=1e-12)


@pytest.mark.parametrize("graph", [TokenGraph.window(6, 2), TokenGraph.strided(6, 2)])
@pytest.mark.parametrize("weight", [Dot(), Dot() + (lambda q, k, pairs: 0.1 * pairs.offset)])
def test_rules_serve_tensors_of_another_device(graph, weight):
    query = torch.empty(2, 6, 4, device="meta")
    output = graph_attention(query, query, query, graph, weight=weight)
    assert output.shape == query.shape
    assert output.device.type == "meta"
