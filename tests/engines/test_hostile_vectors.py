"""Zero, equal, tiny and huge vectors have finite gradients; what is NaN is NaN on every engine."""

from dataclasses import replace
from importlib import import_module

import pytest
import torch
from problems import NEEDS_FEATURES, NORMALIZERS, WEIGHTS, Problem, by_engine, call_of

from gattn.attention import graph_attention
from gattn.engines import NAMES
from gattn.engines.fused import attend
from gattn.graph.token_graph import TokenGraph
from gattn.normalizers import Identity, ReLU, Sigmoid
from gattn.weights import Cosine, Dot, PositionWeight, ScaledDotProduct

NAN, INF = float("nan"), float("inf")
GRAPHS = {
    "causal": TokenGraph.causal(7),
    "complete": TokenGraph.complete(7),
    "window": TokenGraph.window(7, 3),
    "offset": TokenGraph.causal(3, num_keys=7, query_offset=4),
    "more keys than a vector has numbers": TokenGraph.causal(40),
}


def made(size, token=None):
    """Vectors times a size, one of them zero; `size` 0 makes all equal."""

    class Made(Problem):
        def tensors(self):
            found = {name: x.detach() for name, x in super().tensors().items()}
            for x in found.values():
                x.fill_(1.0) if not size else x.mul_(size)
                if token is not None:
                    x[:, :, token] = 0.0
            return {name: x.requires_grad_() for name, x in found.items()}

    return Made


@pytest.mark.slow
@pytest.mark.parametrize("size", [1.0, 0.0, 1e-30, 1e3], ids=["one zero", "equal", "tiny", "huge"])
@pytest.mark.parametrize(
    ("weight", "normalizer"),
    [(weight, "softmax") for weight in sorted(set(WEIGHTS) - NEEDS_FEATURES)]
    + [(weight, "entmax") for weight in ("scaled dot", "L1 distance", "swin")]
    + [(weight, "sparsemax") for weight in ("scaled dot", "squared distance", "cosine")]
    + [("scaled dot", "sink per head"), ("polynomial", "sigmoid")],
)
def test_gradients_are_finite(weight, normalizer, size):
    problem = made(size, 2 if size == 1.0 else None)(GRAPHS["causal"], weight, normalizer)
    for dtype in (torch.float32, torch.float64):
        for engine in NAMES[:3]:
            found = by_engine(replace(problem, dtype=dtype, is_exact=True), engine)
            for name, gradient in {} if found is None else found.gradients.items():
                assert bool(gradient.isfinite().all()), f"{engine}: {name} {gradient}"


@pytest.mark.parametrize("normalizer", ["proportional", "identity", "relu"])
def test_rows_that_sum_to_zero_have_finite_gradients(normalizer):
    problem = made(1.0, 0)(TokenGraph.causal(5), "dot", normalizer)
    for engine in NAMES[1:3]:
        gradients = by_engine(problem, engine).gradients
        assert all(bool(gradient.isfinite().all()) for gradient in gradients.values())


def engines_of(problem):
    call = call_of(problem)
    return [x for x in NAMES if import_module(f"gattn.engines.{x}").can_run(call) is None]


def attended(problem, engine, side, place, number):
    tensors = {name: x.detach() for name, x in problem.tensors().items()}
    tensors[side][:, :, place] = number
    weight, normalizer, _ = problem.functions()
    return graph_attention(
        **tensors, graph=problem.graph, weight=weight, normalizer=normalizer, engine=engine
    )


@pytest.mark.slow
@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize(
    ("weight", "normalizer"),
    [("scaled dot", normalizer) for normalizer in NORMALIZERS]
    + [(weight, "softmax") for weight in ("swin", "L1 distance", "additive", "rotary")],
)
def test_a_nan_that_a_query_reads_is_nan_on_every_engine(weight, normalizer, graph):
    problem = Problem(GRAPHS[graph], weight, normalizer, learns=False)
    for side, place in (("query", 1), ("key", 4), ("value", 4), ("key", slice(None))):
        mask = problem.graph.mask()
        reads = mask[:, place] if side != "query" else torch.arange(len(mask)) == place
        reads = reads if reads.dim() == 1 else reads.any(1)
        for engine in engines_of(problem):
            found = attended(problem, engine, side, place, NAN)
            # A ReLU of NaN is NaN; only a score that a query drops, such as TopK's, is not read.
            assert found[:, :, reads].isnan().any(-1).all(), (engine, side)
            if side != "value" and engine not in ("fused", "tiles"):
                assert not found[:, :, ~reads].isnan().any()


@pytest.mark.parametrize("number", [INF, NAN])
@pytest.mark.parametrize("normalizer", NORMALIZERS)
def test_a_score_without_a_value_makes_nan_of_its_row(normalizer, number):
    def weight(query, key, pairs):
        return (query * key).sum(-1) + torch.where(pairs.offset == 0, number, 0.0).to(query)

    problem = Problem(TokenGraph.causal(7), "dot", normalizer, learns=False)
    shares = problem.functions()[1]
    for engine in ("tiles", "edges", "message_passing"):
        tensors = {name: x.detach() for name, x in problem.tensors().items()}
        found = graph_attention(
            **tensors, graph=problem.graph, weight=weight, normalizer=shares, engine=engine
        )
        if number == INF and isinstance(shares, (Sigmoid, ReLU, Identity)):
            assert found.isinf().all() == (not isinstance(shares, Sigmoid))
        else:
            assert found.isnan().any(-1).all()


class Far(PositionWeight):
    """No edge beyond one step, said by scores."""

    def forward(self, query, key, pairs):
        return torch.where(pairs.offset < -1, -INF, 0.0).to(torch.float64)


class Nowhere(PositionWeight):
    """Query 2 scores -inf everywhere."""

    def forward(self, query, key, pairs):
        return torch.where(pairs.query == 2, -INF, 0.0).to(torch.float64) + 0.0 * pairs.key


@pytest.mark.parametrize("graph", ["causal", "window"])
@pytest.mark.parametrize("bias", [Far, Nowhere])
@pytest.mark.parametrize("normalizer", sorted(set(NORMALIZERS) - {"proportional"}))
def test_a_score_of_minus_infinity_is_no_edge_on_any_engine(normalizer, bias, graph):
    problem = Problem(GRAPHS[graph], "dot", normalizer, learns=False)
    mask = problem.graph.mask()
    place = torch.arange(len(mask))
    cut = (place < place[:, None] - 1) if bias is Far else (place[:, None] == 2).expand_as(mask)
    less = TokenGraph.from_mask(mask & ~cut)
    tensors = {name: x.detach() for name, x in problem.tensors().items()}
    _, shares, _ = problem.functions()
    for engine in ("tiles", "edges", "message_passing"):
        found, wanted = (
            graph_attention(**tensors, graph=graph, weight=weight, normalizer=shares, engine=engine)
            for graph, weight in ((problem.graph, Dot() + bias()), (less, Dot()))
        )
        torch.testing.assert_close(found, wanted, atol=1e-12, rtol=1e-12)


# torch's kernel, where keys do not fill a vector of the processor


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("tokens", [1, 2, 7, 8, 15, 16, 17, 31, 33, 65])
def test_rows_of_nan_do_not_become_zeros(tokens, dtype):
    draw = torch.Generator().manual_seed(tokens)
    query, key, value = torch.randn(3, 1, 2, tokens, 4, generator=draw).to(dtype)
    query[:, :, tokens // 2] = NAN
    for is_causal in (True, False):
        found = attend(query, key, value, 0.5, is_causal=is_causal)
        assert found[:, :, tokens // 2].isnan().all()
        rest = torch.arange(tokens) != tokens // 2
        assert found[:, :, rest].isfinite().all()
        for engine in ("fused", "tiles"):
            graph = TokenGraph.causal(tokens) if is_causal else TokenGraph.complete(tokens)
            assert (
                graph_attention(query, key, value, graph, engine=engine)[:, :, tokens // 2]
                .isnan()
                .all()
            )


def test_scores_that_overflow_to_nan_do_not_become_zeros():
    """Inputs are finite, inf - inf is not."""
    query = torch.tensor([1e30, -1e30]).expand(1, 1, 3, 2)
    key = torch.full((1, 1, 3, 2), 1e30)
    for engine in NAMES:
        for graph in (TokenGraph.complete(3), TokenGraph.causal(3)):
            found = graph_attention(
                query, key, torch.ones(1, 1, 3, 2), graph, weight=Dot(), engine=engine
            )
            assert not (found == 0).any(), engine


@pytest.mark.parametrize("weight", [ScaledDotProduct(), Cosine()], ids=repr)
def test_values_of_zero_stay_zero_with_their_gradients(weight):
    draw = torch.Generator().manual_seed(0)
    query, key = torch.randn(2, 1, 2, 5, 4, generator=draw, dtype=torch.float64)
    value = torch.zeros(1, 2, 5, 4, dtype=torch.float64)
    gradients = []
    for engine in ("fused", "edges"):
        leaves = [x.clone().requires_grad_() for x in (query, key, value)]
        found = graph_attention(*leaves, TokenGraph.causal(5), weight=weight, engine=engine)
        assert not found.any()
        gradients.append(torch.autograd.grad((found + found.square()).sum(), leaves))
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, atol=1e-12, rtol=1e-12)


def test_dropout_of_few_keys_drops_as_many_as_it_says():
    torch.manual_seed(0)
    value = torch.ones(1, 1, 3, 1)
    zeros = torch.zeros(1, 1, 3, 1)
    found = torch.stack(
        [
            graph_attention(
                zeros, zeros, value, TokenGraph.complete(3), dropout=0.5, engine="fused"
            )
            for _ in range(2000)
        ]
    )
    assert float(found.mean()) == pytest.approx(1.0, abs=0.05)
    assert float((found == 0).float().mean()) == pytest.approx(1 / 8, abs=0.03)
