"""Whoever watches sees gattn's own attention on every engine, and may change it."""

from contextvars import copy_context
from dataclasses import replace
from timeit import timeit

import pytest
import torch

from gattn.attention import attention_graphs, graph_attention
from gattn.engines import NAMES
from gattn.engines.watching import watched, watching
from gattn.errors import ContractError
from gattn.graph.token_graph import TokenGraph
from gattn.module import GraphAttention
from gattn.normalizers import Sparsemax

CAUSAL, DIAGONAL = TokenGraph.causal(5), TokenGraph.window(5, 1)
INDEX = torch.tensor([[2, 0, 4, 0, 3, 2, 1, 2], [3, 1, 0, 1, 3, 1, 0, 2]])


def recorder(seen):
    def watcher(module, call, run):
        output = run(call)
        seen.append((module, call, output))
        return output

    return watcher


@pytest.mark.parametrize("engine", [None, *NAMES])
def test_a_layer_shows_its_call_and_its_output(randn, engine):
    layer, x = GraphAttention(8, 4, 2, engine=engine).double(), randn(3, 5, 8)
    plain, seen = layer(x, CAUSAL), []
    with watching(recorder(seen)):
        assert torch.equal(layer(x, CAUSAL), plain)
    assert torch.equal(layer(x, CAUSAL), plain)
    [(module, call, output)] = seen
    assert module is layer
    assert call.graph is CAUSAL
    assert call.query.shape == (3, 2, 5, 4)
    assert torch.equal(output.transpose(1, 2).flatten(2), plain)


@pytest.mark.parametrize("graph", [CAUSAL, DIAGONAL, INDEX], ids=["causal", "window", "list"])
@pytest.mark.parametrize("is_hooked", [False, True])
def test_it_is_shown_on_any_graph_also_under_hooks(randn, graph, is_hooked):
    layer, x, seen = GraphAttention(8, 4, 2, normalizer=Sparsemax()).double(), randn(5, 8), []
    plain = layer(x, graph)
    if is_hooked:
        layer.register_message_forward_hook(lambda module, arguments, result: result)
    with watching(recorder(seen)):
        torch.testing.assert_close(layer(x, graph), plain)
    assert [module for module, _, _ in seen] == [layer]


@pytest.mark.parametrize("engine", [None, *NAMES])
def test_the_function_is_shown_without_a_module(randn, engine):
    q, k, v, seen = randn(2, 5, 4), randn(2, 5, 4), randn(2, 5, 4), []
    with watching(recorder(seen)):
        found = graph_attention(q, k, v, CAUSAL, engine=engine)
        attention_graphs(q, k, CAUSAL)  # computes no output
    [(module, call, output)] = seen
    assert module is None
    assert torch.equal(output[0], found)
    assert torch.equal(call.value[0], v)


@pytest.mark.parametrize("engine", [None, *NAMES])
def test_a_watcher_changes_the_call_whatever_engine_was_asked_for(randn, engine):
    layer, x = GraphAttention(8, 4, 2, engine=engine).double(), randn(5, 8)
    plain = GraphAttention(8, 4, 2).double()
    plain.load_state_dict(layer.state_dict())
    with watching(lambda module, call, run: run(replace(call, graph=DIAGONAL))):
        torch.testing.assert_close(layer(x, CAUSAL), plain(x, DIAGONAL))
        q = randn(2, 5, 4)
        found = graph_attention(q, q, q, CAUSAL, engine=engine)
    torch.testing.assert_close(found, q)  # one edge each: to itself


def test_a_watcher_gives_the_output(randn):
    layer, x = GraphAttention(8, 4, 2).double(), randn(5, 8)
    with watching(lambda module, call, run: torch.zeros_like(call.query)):
        found = layer(x, CAUSAL)
    assert torch.equal(found, torch.zeros(5, 8, dtype=torch.float64))


def test_the_innermost_watches_and_leaves(randn):
    layer, x, outer, inner = GraphAttention(8, 8).double(), randn(5, 8), [], []
    with watching(recorder(outer)):
        with watching(recorder(inner)):
            layer(x, CAUSAL)
            with pytest.raises(ContractError):
                GraphAttention(8, 8, engine="none").double()(x, CAUSAL)
        assert (len(outer), len(inner)) == (0, 1)
        apart = copy_context()
        layer(x, CAUSAL)
    layer(x, CAUSAL)
    assert (len(outer), len(inner)) == (1, 1)
    apart.run(layer, x, CAUSAL)
    assert len(outer) == 2


def test_a_refusal_stays_one(randn):
    layer, seen = GraphAttention(8, 8, engine="fused").double(), []
    with watching(recorder(seen)), pytest.raises(ContractError, match="fused cannot run this"):
        layer(randn(5, 8), DIAGONAL)
    assert seen == []


def test_gradients_flow_through_what_a_watcher_does(randn):
    layer, x = GraphAttention(4, 4).double(), randn(4, 4).requires_grad_()
    graph = TokenGraph.causal(4)
    with watching(lambda module, call, run: 2 * run(replace(call, query=3 * call.query))):
        assert torch.autograd.gradcheck(lambda x: layer(x, graph), x)


def test_it_costs_nothing_if_nobody_watches():
    def run(call):
        return call

    def twice():  # The best of several: other work on the machine only slows it down.
        direct = min(timeit(lambda: run(None), number=2000) for _ in range(20))
        through = min(timeit(lambda: watched(None, None, run), number=2000) for _ in range(20))
        return through - direct

    assert twice() / 2000 < 1e-6
