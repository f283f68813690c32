"""Gradients of engines are those of finite differences, of first and second order."""

import pytest
import torch
from pairs import all_pairs
from problems import GRAPHS, Problem, small_pieces
from torch.autograd import gradcheck, gradgradcheck

from gattn.attention import graph_attention

PIECES = {"numbers": 40, "block_bytes": 1500, "block_edges": 7, "height": 2}


def checked(check, problem, engine):
    """Check the gradients of inputs and of what a weight function learns."""
    tensors = problem.tensors()
    weight, normalizer, learned = problem.functions()

    def attend(*inputs):
        given = dict(zip(tensors, inputs, strict=False))
        functions = {"weight": weight, "normalizer": normalizer, "engine": engine}
        return graph_attention(**given, graph=problem.graph, **functions)

    return check(attend, (*tensors.values(), *learned), fast_mode=True)


def distance(query, key, pairs):
    return -(query - key).square().sum(-1) - 0.1 * pairs.offset.to(query).square()


ON_TOKENS = ["tiles", "edges", "message_passing"]


@pytest.mark.parametrize(
    ("engine", "graph", "weight"),
    all_pairs(
        ON_TOKENS,
        ["causal", "window", "rows without edges"],
        [lambda: distance, "additive and relative", "relative"],
    ),
)
def test_first_order(engine, graph, weight):
    with small_pieces(**PIECES):
        assert checked(gradcheck, Problem(GRAPHS[graph], weight, batch=1), engine)


@pytest.mark.parametrize(
    ("engine", "graph", "weight", "whole"),
    all_pairs(ON_TOKENS, ["causal", "window"], [lambda: distance, "relative"], [True, False]),
)
def test_second_order(engine, graph, weight, whole):
    problem = Problem(GRAPHS[graph], weight, batch=1)
    with small_pieces(**({"numbers": 1 << 20, "block_bytes": 1 << 20} if whole else PIECES)):
        assert checked(gradgradcheck, problem, engine)


@pytest.mark.parametrize("engine", ON_TOKENS)
def test_a_captured_tensor_may_be_made_of_others(engine):
    """Its graph is walked once, however many pieces read it."""
    root = torch.tensor([0.3, 0.7], dtype=torch.float64, requires_grad=True)
    problem = Problem(GRAPHS["window"])

    def attend(root):
        slope = (2 * root).exp()
        weight = lambda q, k, pairs: -slope * (q - k).abs().sum(-1)  # noqa: E731
        tensors = {name: x.detach() for name, x in problem.tensors().items()}
        return graph_attention(**tensors, graph=problem.graph, weight=weight, engine=engine)

    with small_pieces(**PIECES):
        assert gradcheck(attend, (root,), fast_mode=True)


@pytest.mark.parametrize("engine", ON_TOKENS)
@pytest.mark.parametrize("one", ["query", "key", "value"])
def test_one_input_alone_may_need_a_gradient(engine, one):
    """What needs none is let be; what needs one gets the same."""
    tensors = Problem(GRAPHS["window"]).tensors()
    options = {"graph": GRAPHS["window"], "weight": distance, "engine": engine}
    with small_pieces(**PIECES):
        (wanted,) = torch.autograd.grad(
            graph_attention(**tensors, **options).square().sum(), tensors[one]
        )
        alone = {name: x.detach().requires_grad_(name == one) for name, x in tensors.items()}
        graph_attention(**alone, **options).square().sum().backward()
    torch.testing.assert_close(alone[one].grad, wanted)
    assert [name for name, x in alone.items() if x.grad is not None] == [one]


@pytest.mark.parametrize("engine", ON_TOKENS)
def test_a_gradient_may_be_asked_for_twice(engine):
    problem = Problem(GRAPHS["longformer"])
    tensors = problem.tensors()
    with small_pieces(**PIECES):
        output = graph_attention(
            **tensors, graph=problem.graph, weight=distance, engine=engine
        ).square()
        first, second = (
            torch.autograd.grad(output.sum(), list(tensors.values()), retain_graph=True)
            for _ in range(2)
        )
    for one, other in zip(first, second, strict=True):
        torch.testing.assert_close(one, other, atol=0, rtol=0)
