"""Engines on an accelerator: dense algebra's numbers, and no number read by the host."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from chosen import accelerator
from on_device import NAMES, OnDevice, by_gattn, is_run_by, on_host
from pairs import all_pairs, in_turn
from problems import (
    GRAPHS,
    NEEDS_FEATURES,
    NORMALIZERS,
    WEIGHTS,
    WIDE,
    Problem,
    agree,
    by_oracle,
    drawn_edges,
    small_pieces,
    solve,
)

from gattn.attention import attention_graphs, graph_attention
from gattn.engines import edges
from gattn.engines.call import EdgeList, attention_call
from gattn.graph.token_graph import TokenGraph
from gattn.keep import All, Threshold, TopK, TopMass

SOME = ["complete", "causal with an offset", "window", "rows without edges", "random edges"]
NAN, INF = float("nan"), float("inf")


def hold(problem, engines=NAMES):
    """Hold engines to dense algebra, and let a second call and its gradients read nothing."""
    moved, wanted, ran = OnDevice.of(problem), by_oracle(problem), []
    for engine in engines:
        if not is_run_by(moved, engine):
            continue

        def attend(tensors, weight, normalizer, engine=engine):
            options = {"weight": weight, "normalizer": normalizer, "engine": engine}
            graph_attention(**tensors, graph=moved.graph, **options)
            accelerator.forget()
            return graph_attention(**tensors, graph=moved.graph, **options)

        found = solve(moved, attend)
        assert not by_gattn(accelerator.reads), engine
        agree(on_host(found), wanted, engine)
        ran.append(engine)
    return ran


def weighed(graph, weight, normalizer="softmax"):
    weight = "kernel" if normalizer == "proportional" else weight
    return Problem(graph, weight, normalizer, features=3 if weight in NEEDS_FEATURES else 0)


@pytest.mark.parametrize(
    ("weight", "graph"), [*in_turn(WEIGHTS, SOME), *in_turn(WEIGHTS, SOME[2:])]
)
def test_for_every_weight_function(weight, graph):
    assert len(hold(weighed(GRAPHS[graph], weight))) >= 3


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("weight", ["scaled dot", "relative", "trees"])
def test_on_every_graph(graph, weight):
    assert len(hold(Problem(GRAPHS[graph], weight))) >= 3


@pytest.mark.parametrize(("graph", "normalizer"), all_pairs(SOME, NORMALIZERS))
def test_for_every_normalizer(graph, normalizer):
    assert len(hold(weighed(GRAPHS[graph], "ALiBi", normalizer))) >= 3


@pytest.mark.parametrize("graph", WIDE)
def test_in_many_blocks(graph):
    for weight in ("scaled dot", "relative"):
        hold(Problem(WIDE[graph], weight, batch=1))
    with small_pieces(numbers=40, block_bytes=1500, block_edges=7, height=2):
        hold(Problem(GRAPHS["longformer"], "trees"))


@pytest.mark.parametrize("weight", ["scaled dot", "GATv2", "edge bias"])
def test_a_plain_list_of_edges(weight):
    """Edges that no graph holds are planned at each call: without reading a number."""
    graph = EdgeList(torch.tensor([[3, 0, 1, 1, 0], [2, 2, 0, 0, 2]]), 4, 5)
    features = 2 if weight in NEEDS_FEATURES else 0
    problem = Problem(graph, weight, features=features)
    index = graph.edge_index.to(accelerator.NAME)

    def attend(tensors, weight, normalizer):
        accelerator.forget()
        moved = EdgeList(index, 4, 5)
        arguments = {"graph": moved, "weight": weight, "normalizer": normalizer}
        return edges.run(attention_call(**tensors, **arguments)[0])

    found = solve(OnDevice.of(problem), attend)
    assert not by_gattn(accelerator.reads)
    agree(on_host(found), by_oracle(problem))


@pytest.mark.parametrize("graph", ["window", "causal with an offset", "documents"])
@pytest.mark.parametrize("number", [NAN, INF])
def test_a_number_that_is_none_reaches_only_who_reads_it(graph, number):
    problem, graph = Problem(GRAPHS[graph], learns=False), GRAPHS[graph]
    tensors, mask = problem.tensors(), graph.mask()
    plain = graph_attention(**tensors, graph=graph)
    for side, token in (("key", 3), ("query", 1)):
        given = {name: x.clone() for name, x in tensors.items()}
        given[side][:, :, token] = number
        moved = {name: x.to(accelerator.NAME) for name, x in given.items()}
        found = graph_attention(**moved, graph=graph, engine="tiles").cpu()
        reads = mask[:, token] if side == "key" else torch.arange(len(mask)) == token
        assert found[:, :, reads].isnan().all()
        torch.testing.assert_close(found[:, :, ~reads], plain[:, :, ~reads])


KEEPS = [All(), Threshold(0.0), Threshold(0.2), TopK(2), TopK(50), TopMass(0.7), TopMass(1.0)]


@pytest.mark.parametrize("keep", KEEPS, ids=str)
@pytest.mark.parametrize("graph", ["causal", "longformer", "rows without edges", "random edges"])
@pytest.mark.parametrize("engine", ["tiles", "edges"])
def test_kept_edges_and_one_transfer_for_all_heads(keep, graph, engine):
    problem = Problem(GRAPHS[graph], learns=False, batch=1)
    query, key, _ = problem.tensors().values()
    query[:, 0] = 0.0  # all its edges are equal: ties go to the smaller key
    options = {"keep": keep, "scores": True, "engine": engine}
    wanted = attention_graphs(query, key, problem.graph, **options)
    query, key = query.to(accelerator.NAME), key.to(accelerator.NAME)
    graph = problem.graph.to(accelerator.NAME)
    attention_graphs(query, key, graph, **options)
    accelerator.forget()
    found = attention_graphs(query, key, graph, **options)
    reads = by_gattn(accelerator.reads)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(one.graph.edge_index, other.graph.edge_index)
        for name in ("attention", "score", "total_mass", "kept_mass"):
            np.testing.assert_allclose(getattr(one, name), getattr(other, name), atol=1e-12)
    files = [read.line.partition(":")[0] for read in reads]
    assert files.count("gattn/heads/store/transfer.py") == 1
    assert len(files) <= 2  # how many edges are kept


@pytest.mark.parametrize("graph", SOME)
@pytest.mark.parametrize("weight", ["dot", "ALiBi", "GAT", "performer", "T5"])
def test_where_the_device_is_the_default(graph, weight):
    problem = Problem(GRAPHS[graph], weight)
    moved, wanted, ran = OnDevice.of(problem), by_oracle(problem), 0
    for engine in NAMES:
        if not is_run_by(moved, engine):
            continue

        def attend(tensors, weight, normalizer, engine=engine):
            fresh = replace(moved.graph)  # it knows nothing yet
            options = {"weight": weight, "normalizer": normalizer, "engine": engine}
            with torch.device(accelerator.NAME):
                return graph_attention(**tensors, graph=fresh, **options)

        agree(on_host(solve(moved, attend)), wanted, engine)
        ran += 1
    assert ran >= 3


def test_a_graph_that_is_made_on_the_device():
    """Its edges are read once, when it is planned."""
    drawn = drawn_edges(7, 7)
    graph = TokenGraph.from_edge_index(drawn.edge_index.to(accelerator.NAME), 7)
    assert str(graph.device).startswith(accelerator.NAME)
    problem = Problem(drawn, "relative", learns=False)
    moved = {name: x.to(accelerator.NAME) for name, x in problem.tensors().items()}
    for engine in ("tiles", "edges"):
        graph_attention(**moved, graph=graph, engine=engine)
        accelerator.forget()
        found = graph_attention(**moved, graph=graph, engine=engine)
        assert not by_gattn(accelerator.reads)
        wanted = graph_attention(**problem.tensors(), graph=drawn, engine=engine)
        torch.testing.assert_close(found.cpu(), wanted)
