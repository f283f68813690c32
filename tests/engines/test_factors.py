"""Factors of any sign and size give what dense algebra gives, and show no query the future."""

from importlib import import_module

import numpy as np
import pytest
import torch
from pairs import all_pairs

from gattn.attention import graph_attention
from gattn.engines import NAMES, fused
from gattn.engines.call import attention_call
from gattn.errors import ContractError
from gattn.graph.token_graph import TokenGraph
from gattn.normalizers import Entmax, Sigmoid, Softmax
from gattn.weights import (
    GAT,
    ALiBi,
    Cosine,
    Dot,
    L1Distance,
    Polynomial,
    Rotary,
    ScaledDotProduct,
    Softcap,
    SquaredDistance,
)

TINY, SUBNORMAL = 1e-300, 5e-324
# A weight function, and the factor that it puts before q.k.
FACTORS = {
    "negative": (lambda: -1 * Dot(), -1.0),
    "zero": (lambda: 0 * Dot(), 0.0),
    "negative zero": (lambda: -0.0 * Dot(), 0.0),
    "a negative scale": (lambda: ScaledDotProduct(-0.3), -0.3),
    "a scale of zero": (lambda: ScaledDotProduct(0.0), 0.0),
    "nested": (lambda: -2 * (0.5 * Dot()), -1.0),
    "negative twice": (lambda: -2 * (-0.5 * Dot()), 1.0),
    "a sum": (lambda: -0.5 * (Dot() + Dot()), -1.0),
    "of a sum": (lambda: (-1 * Dot()) + (0 * Dot()), -1.0),
    "less than float32 holds": (lambda: -TINY * Dot(), -TINY),
    "less than float64 holds": (lambda: SUBNORMAL * Dot(), SUBNORMAL),
    "large": (lambda: -100 * Dot(), -100.0),
    "a tensor": (lambda: torch.tensor(-1.5) * Dot(), -1.5),
    "a tensor of zeros": (lambda: torch.zeros(2) * Dot(), 0.0),
    "a learned one": (lambda: torch.nn.Parameter(torch.full((2,), -0.5)) * Dot(), -0.5),
    "rotated": (lambda: Rotary(-1 * Dot()), None),
}
GRAPHS = {
    "causal": TokenGraph.causal(70),
    "complete": TokenGraph.complete(70),
    "window": TokenGraph.window(70, 9),
    "no graph of torch's": TokenGraph.causal(3, num_keys=70, query_offset=60),
}
TOLERANCES = {
    torch.float64: 1e-12,
    torch.float32: 2e-5,
    torch.bfloat16: 2e-2,
    torch.float16: 4e-3,
}


def dense(query, key, value, graph, factor, temperature=1.0):
    scores = factor * (query.double() @ key.double().mT) / temperature
    scores = scores.masked_fill(~graph.mask(), -torch.inf)
    return scores.softmax(-1) @ value.double()


def vectors(graph, dtype):
    draw = torch.Generator().manual_seed(3)
    sizes = (graph.num_queries, graph.num_keys, graph.num_keys)
    return [torch.randn(2, 2, size, 4, generator=draw).to(dtype) for size in sizes]


def hold(weight, factor, graph, dtype, **options):
    query, key, value = vectors(graph, dtype)
    wanted = dense(query, key, value, graph, factor, options.pop("temperature", 1.0))
    ran = []
    for engine in NAMES:
        module = import_module(f"gattn.engines.{engine}")
        normalizer = options.get("normalizer")
        call, _ = attention_call(query, key, graph, weight, normalizer, value)
        if module.can_run(call) is None:
            found = graph_attention(
                query, key, value, graph, weight=weight, engine=engine, **options
            )
            assert found.dtype == dtype
            tolerance = TOLERANCES[dtype] * max(1.0, abs(factor))  # a score's rounding
            torch.testing.assert_close(found.double(), wanted, atol=tolerance, rtol=tolerance)
            ran.append(engine)
    return ran


@pytest.mark.parametrize(
    ("factor", "graph", "dtype"),
    all_pairs([name for name in FACTORS if name != "rotated"], GRAPHS, TOLERANCES),
)
def test_any_factor_on_any_engine(factor, graph, dtype):
    build, number = FACTORS[factor]
    ran = hold(build(), number, GRAPHS[graph], dtype)
    assert ("fused" in ran) == (graph in ("causal", "complete"))


def test_factors_in_half_precision_round_nothing_more():
    """A sign is exact: the kernel gets the halves that it would get without it."""
    graph = TokenGraph.causal(70)
    query, key, value = vectors(graph, torch.bfloat16)
    one = graph_attention(-query, key, value, graph, engine="fused")
    other = graph_attention(
        query, key, value, graph, weight=-1 * ScaledDotProduct(), engine="fused"
    )
    assert torch.equal(one, other)


def test_the_past_does_not_feel_the_future():
    graph = TokenGraph.causal(12)
    for dtype in TOLERANCES:
        query, key, value = vectors(graph, dtype)
        other_key, other_value = key.clone(), value.clone()
        other_key[:, :, 6:], other_value[:, :, 6:] = 3.0, 100.0
        for build, _ in FACTORS.values():
            found = graph_attention(query, key, value, graph, weight=build())
            other = graph_attention(query, other_key, other_value, graph, weight=build())
            assert torch.equal(found[:, :, :6], other[:, :, :6])
            assert not torch.equal(found[:, :, 6:], other[:, :, 6:])


@pytest.mark.parametrize("temperature", [0.5, 4.0])
@pytest.mark.parametrize("graph", GRAPHS)
def test_temperatures_of_negative_scores(graph, temperature):
    normalizer = Softmax(temperature)
    hold(
        -1 * Dot(), -1.0, GRAPHS[graph], torch.float64,
        normalizer=normalizer, temperature=temperature,
    )  # fmt: skip


@pytest.mark.parametrize("graph", GRAPHS)
def test_biases_beside_negative_scores(graph):
    graph = GRAPHS[graph]
    query, key, value = vectors(graph, torch.float64)
    offset = torch.arange(graph.num_keys) - torch.arange(graph.num_queries)[:, None]
    slopes = torch.tensor([2.0**-4, 2.0**-8], dtype=torch.float64)[:, None, None]
    scores = -(query @ key.mT) + slopes * (offset - graph.query_offset).abs()
    wanted = scores.masked_fill(~graph.mask(), -torch.inf).softmax(-1) @ value
    for engine in ("tiles", "edges", "message_passing"):
        weight = -1 * (Dot() + ALiBi(2))
        found = graph_attention(query, key, value, graph, weight=weight, engine=engine)
        torch.testing.assert_close(found, wanted, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("factor", ["negative", "zero", "a negative scale", "a tensor"])
@pytest.mark.parametrize("graph", ["causal", "complete", "window"])
def test_gradients_are_those_of_dense_algebra(factor, graph):
    build, number = FACTORS[factor]
    engines = ("tiles", "edges") if graph == "window" else ("fused", "tiles", "edges")
    graph = TokenGraph.window(6, 3) if graph == "window" else getattr(TokenGraph, graph)(6)
    leaves = [x[:1].clone().requires_grad_() for x in vectors(graph, torch.float64)]
    for engine in engines:
        found = graph_attention(*leaves, graph, weight=build(), engine=engine)
        wanted = dense(*leaves, graph, number)
        pull = torch.arange(found.numel(), dtype=torch.float64).cos().view(found.shape)
        gradients = torch.autograd.grad((found * pull).sum(), leaves)
        for one, other in zip(
            gradients, torch.autograd.grad((wanted * pull).sum(), leaves), strict=True
        ):
            torch.testing.assert_close(one, other, atol=1e-12, rtol=1e-12)


def test_the_fused_kernel_serves_negative_factors():
    """They are no reason to compute anything slower."""
    call, _ = attention_call(
        *vectors(GRAPHS["causal"], torch.float32)[:2], GRAPHS["causal"], -1 * Dot()
    )
    assert fused.can_run(call) is None


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf, np.float32("inf")], ids=str)
@pytest.mark.parametrize(
    "build",
    [
        lambda number: number * Dot(),
        lambda number: Dot() * number,
        lambda number: torch.tensor([1.0, float(number)]) * Dot(),
        ScaledDotProduct,
        Cosine,
        SquaredDistance,
        L1Distance,
        lambda number: Softcap(Dot(), number),
        lambda number: Polynomial(2, number),
        lambda number: Rotary(Dot(), base=number),
        lambda number: GAT(2, 4, negative_slope=number),
        Softmax,
        lambda number: Softmax(sink=number),
        Sigmoid,
        Entmax,
    ],
)
def test_numbers_that_are_not_finite_are_refused(build, number):
    with pytest.raises(ContractError, match="finite number"):
        build(number)


def test_whole_numbers_larger_than_any_float_are_refused():
    with pytest.raises(ContractError, match="finite number"):
        10**400 * Dot()


def test_numbers_of_numpy_scale():
    query, key, value = vectors(GRAPHS["window"], torch.float64)
    for factor in (np.float32(-2), np.float64(-2), np.int64(-2), np.float16(-2)):
        for weight in (factor * Dot(), Dot() * factor):
            found = graph_attention(query, key, value, GRAPHS["window"], weight=weight)
            wanted = dense(query, key, value, GRAPHS["window"], -2.0)
            torch.testing.assert_close(found, wanted, atol=1e-12, rtol=1e-12)


def test_a_sink_of_minus_infinity_takes_nothing():
    """Models have such sinks; rows without edges stay empty beside them."""
    graph = TokenGraph.window(8, 3) - TokenGraph.from_edges([(2, 2), (1, 2), (0, 2)], 8)
    query, key, value = (x[:, :, :8] for x in vectors(GRAPHS["causal"], torch.float64))
    sink = Softmax(sink=torch.tensor([-torch.inf, -torch.inf]))
    for engine in ("tiles", "edges", "message_passing"):
        found = graph_attention(query, key, value, graph, normalizer=sink, engine=engine)
        plain = graph_attention(query, key, value, graph, engine=engine)
        torch.testing.assert_close(found, plain, atol=1e-12, rtol=1e-12)
        assert not found[:, :, 2].any()
