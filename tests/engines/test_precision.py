"""Half precision: kept in the output, summed in float32."""

import math
from dataclasses import replace

import pytest
import torch
from pairs import all_pairs
from problems import GRAPHS, Problem, by_engine, by_oracle, call_of, small_pieces
from torch.nn.functional import scaled_dot_product_attention

from gattn.attention import graph_attention
from gattn.engines import NAMES, fused, tiles
from gattn.graph.token_graph import TokenGraph
from gattn.weights import Pairs

ULP = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11, torch.float32: 2.0**-24}
WEIGHTS = ["scaled dot", "relative", "squared distance", "lambda", "cosine"]
HALVES = [torch.bfloat16, torch.float16]


def in_float64(problem):
    """The oracle on the same, rounded numbers."""
    return by_oracle(replace(problem, is_exact=True))


def hold(problem, ulps):
    """Hold the outputs of all engines that can run a problem to the oracle."""
    wanted = in_float64(problem).output
    for engine in NAMES:
        found = by_engine(problem, engine)
        if found is not None:
            near(found.output, wanted, problem.dtype, ulps)


def near(found, wanted, dtype, ulps):
    found, wanted = found.detach(), wanted.detach()
    assert found.dtype == dtype
    size = wanted.abs().amax() if wanted.numel() else 1.0
    assert float((found.double() - wanted).abs().amax()) <= ulps * ULP[dtype] * float(size)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("graph", ["complete", "causal", "window", "rows without edges"])
@pytest.mark.parametrize("weight", ["scaled dot", "relative"])
def test_dot_products_are_summed_in_float32(weight, graph, dtype):
    hold(Problem(GRAPHS[graph], weight, dtype=dtype, learns=False), 4)


@pytest.mark.parametrize(
    ("weight", "graph", "dtype"),
    all_pairs(["squared distance", "cosine", "lambda", "additive"], ["causal", "window"], HALVES),
)
def test_pairs_are_scored_in_their_own_precision(weight, graph, dtype):
    hold(Problem(GRAPHS[graph], weight, dtype=dtype, learns=False, size=0.5), 16)


def bound(problem, unit, bias_unit):
    """Bound the error of torch's kernel, as `gattn.engines.fused` says, from its own operands."""
    call = call_of(problem)
    form = call.kernel_form
    query, key = (x.detach().double() for x in (form.query, form.key))
    scale = abs(form.scale) / call.temperature
    of_side = 0.0 if form.query.equal(call.query) else 4 * unit
    of_sum = 2.0**-23 * (query.shape[-1] + 2)
    scores = (query.abs() @ key.abs().mT) * scale * (of_sum + of_side)
    rows, keys = call.positions.query, call.positions.key
    for term in form.bias:
        pairs = Pairs(rows[:, None, None], keys[None, :, None])
        scores = scores + bias_unit * term.on_tile(None, None, pairs).abs() / call.temperature
    mask = problem.graph.mask()
    most = scores.masked_fill(~mask, 0).amax(-1, keepdim=True)
    sizes = call.value.detach().double().abs().amax()
    return ((2 * most).expm1() + 2 * unit + 2.0**-22 * mask.shape[1]) * sizes


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("normalizer", ["softmax", "temperature"])
@pytest.mark.parametrize("graph", ["causal", "complete", "window", "long"])
@pytest.mark.parametrize("weight", ["scaled dot", "cosine", "swin", "rotary", "ALiBi", "T5"])
def test_torchs_kernel_is_given_half_precision_within_the_bound(
    monkeypatch, weight, graph, normalizer, dtype
):
    """No copy in float32 is made of queries, keys and values."""
    graphs = GRAPHS | {"long": TokenGraph.window(700, 300)}
    problem = Problem(graphs[graph], weight, normalizer, dtype=dtype, learns=False, size=1.5)
    seen = []

    def noted(*tensors, **options):
        seen.append({x.dtype for x in tensors})
        return scaled_dot_product_attention(*tensors, **options)

    monkeypatch.setattr(fused, "scaled_dot_product_attention", noted)
    monkeypatch.setattr(fused, "is_on_accelerator", lambda call: rounds)
    for rounds, engine in ((False, "fused"), (False, "tiles"), (True, "tiles")):
        found = by_engine(problem, engine)
        if found is None:
            continue
        assert seen
        assert all(kinds == {dtype} for kinds in seen)
        error = (found.output.double() - in_float64(problem).output).abs()
        assert bool((error <= bound(problem, ULP[dtype], ULP[dtype] if rounds else 2.0**-24)).all())
        seen.clear()


@pytest.mark.parametrize("weight", ["scaled dot", "cosine", "ALiBi"])
def test_no_copy_in_float32_is_made(weight):
    for engine in (fused, tiles):
        call = call_of(Problem(GRAPHS["causal"], weight, dtype=torch.bfloat16, learns=False))
        if engine.can_run(call) is None:
            engine.run(call)
            assert not [name for name in vars(call) if name.startswith(("dot_form", "operands"))]


@pytest.mark.parametrize("weight", ["learned scale", "dot of means and dot", "squared distance"])
def test_sides_that_would_be_rounded_once_more_stay_in_float32(weight):
    for dtype in HALVES:
        call = call_of(Problem(GRAPHS["causal"], weight, dtype=dtype))
        assert call.kernel_form.query.dtype == torch.float32


def test_a_bias_beyond_half_precision_is_no_missing_edge():
    given = torch.tensor([-1e6, -3.0, 1e6, torch.inf, -torch.inf, torch.nan])
    found = fused.rounded(given, torch.float16)
    assert found.isfinite().tolist() == [True, True, True, False, False, False]
    assert found[:3].tolist() == [-65504.0, -3.0, 65504.0]


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("normalizer", ["softmax", "sink per head", "entmax 1.5", "sigmoid"])
def test_normalizers_keep_the_dtype(normalizer, dtype):
    hold(Problem(GRAPHS["causal"], "scaled dot", normalizer, dtype=dtype, learns=False), 4)


@pytest.mark.parametrize(
    ("weight", "graph", "dtype"),
    all_pairs(["scaled dot", "relative", "lambda"], ["causal", "window"], HALVES),
)
def test_large_scores_stay_finite(weight, graph, dtype):
    problem = Problem(GRAPHS[graph], weight, dtype=dtype, size=60.0)
    for engine in NAMES:
        found = by_engine(problem, engine)
        if found is not None:
            assert bool(torch.isfinite(found.output).all()), engine
            for name, gradient in found.gradients.items():
                assert bool(torch.isfinite(gradient).all()), (engine, name)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("engine", sorted({*NAMES} - {"fused", "message_passing"}))
def test_scores_beyond_half_precision_are_still_told_apart(engine, dtype):
    """Scores pass 65,504, float16's largest number."""
    problem = Problem(GRAPHS["causal"], "dot", dtype=dtype, size=180.0, learns=False)
    found = by_engine(problem, engine).output
    assert bool(torch.isfinite(found).all())
    near(found, in_float64(problem).output, dtype, 4)


@pytest.mark.parametrize("dtype", [*HALVES, torch.float32])
@pytest.mark.parametrize("weight", WEIGHTS)
def test_gradients_keep_the_dtype(weight, dtype):
    problem = Problem(GRAPHS["causal"], weight, dtype=dtype)
    wanted = in_float64(problem).gradients
    for engine in NAMES:
        with small_pieces(numbers=60, block_bytes=2000, height=2):
            found = by_engine(problem, engine)
        if found is None:
            continue
        assert found.output.dtype == dtype
        for name in ("query", "key", "value"):
            gradient = found.gradients[name]
            assert gradient.dtype == dtype
            size = float(wanted[name].abs().amax())
            error = float((gradient.double() - wanted[name]).abs().amax())
            assert error < 40 * ULP[dtype] * size, (engine, name)


@pytest.mark.parametrize("engine", NAMES)
def test_a_long_neighbourhood_is_summed_in_float32(engine):
    """In bfloat16 a running sum of ones stops at 256."""
    query = torch.zeros(1, 1, 4, dtype=torch.bfloat16)
    value = torch.ones(1, 1000, 4, dtype=torch.bfloat16)
    output = graph_attention(query, value, value, TokenGraph.bipartite(1, 1000), engine=engine)
    assert output.unique().tolist() == [1.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("engine", NAMES)
def test_parameters_may_be_wider_than_the_tensors(engine, dtype):
    """A model in half precision with a learned bias, or a captured number, in float64."""
    bias = torch.tensor([0.5, 1.5], dtype=torch.float64, requires_grad=True)
    problem = Problem(GRAPHS["window"], lambda: _steep(bias), dtype=dtype, learns=False)
    found = by_engine(problem, engine)
    if found is not None:
        near(found.output, in_float64(problem).output, dtype, 16)


def _steep(bias):
    return lambda query, key, pairs: (query * key).sum(-1) - bias * pairs.offset.abs()


def test_the_tolerances_tell_precisions_apart():
    problem = Problem(GRAPHS["causal"], dtype=torch.float16, learns=False)
    found = by_engine(problem, "tiles").output
    with pytest.raises(AssertionError):
        near((found * (1 + 8 * ULP[torch.float16])), in_float64(problem).output, torch.float16, 4)
    assert math.isclose(ULP[torch.float16], torch.finfo(torch.float16).eps / 2)
