import pytest
import torch
from torch import nn
from torch.testing import assert_close

from gattn.engines import edges, fused, message_passing, tiles
from gattn.engines.call import attention_call
from gattn.errors import ContractError
from gattn.graph.token_graph import TokenGraph
from gattn.normalizers import Softmax
from gattn.testing import check_weight_function
from gattn.weights import (
    ALiBi,
    Cosine,
    Dot,
    L1Distance,
    ScaledDotProduct,
    SwinCosine,
    WeightFunction,
)
from gattn.weights.base import as_weight_function
from gattn.weights.pairs import tile_scores


def negative_square(query, key, pairs):
    return -(query - key).square().sum(-1)


SLOPES = [2 ** (-8 / 2), 2 ** (-8 * 2 / 2), 2 ** (-8 * 1 / 4)]


@pytest.mark.parametrize(
    "weight",
    [
        Dot() + ALiBi(3),
        2 * (Dot() + ALiBi(3)),
        torch.tensor([1.0, 2.0, 3.0]) * ALiBi(3),
        nn.Parameter(torch.ones(3)) * (Dot() + L1Distance()) + ALiBi(3),
        sum([Dot(), L1Distance(), Cosine()]),
        negative_square + Dot(),
        negative_square,
    ],
    ids=lambda weight: repr(weight).partition(" at ")[0],
)
def test_contract(weight):
    check_weight_function(weight)


def test_sum_and_scale_are_pair_by_pair(query, key, score, loop):
    factor = torch.tensor([0.5, 2.0, -3.0], dtype=torch.float64)

    def formula(h, i, j, q, k):
        square = (q - k) @ (q - k)
        return factor[h] * (q @ k - SLOPES[h] * abs(j - i - 1) + 2 * square)

    expected = loop(formula, query, key)
    weight = factor * (Dot() + ALiBi(3) + -2 * as_weight_function(negative_square))
    assert_close(score(weight, query, key, query_offset=1), expected)


def test_sum_of_dot_forms_concatenates_features(query, key, score):
    weight = Dot() + 2 * Cosine() + ALiBi(3)
    form = weight.dot_form(*weight.prepare(query, key, None))
    assert form.query.shape == (2, 3, 5, 8)
    assert form.key.shape == (2, 3, 7, 8)
    assert len(form.bias) == 1
    assert (Dot() + L1Distance()).dot_form((query, query), (key, key)) is None


def test_tile_multiplies_matrices_where_it_can(query, key):
    class Loud(Dot):
        def forward(self, query, key, pairs):
            raise AssertionError("forward was called")

    assert_close(tile_scores(Loud(), query, key, None), query @ key.transpose(-2, -1))
    assert_close((3 * Loud()).on_tile(query, key, None), 3 * query @ key.transpose(-2, -1))


@pytest.mark.parametrize("engine", [tiles, edges, message_passing])
def test_lambda_capturing_a_parameter_learns(engine, query, key):
    scale = nn.Parameter(torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64))
    value = torch.cos(key)
    call, _ = attention_call(
        query,
        key,
        TokenGraph.bipartite(5, 7),
        lambda q, k, pairs: scale * (q * k).sum(-1),
        None,
        value,
    )
    (found,) = torch.autograd.grad(engine.run(call).square().sum(), scale)
    scores = scale[:, None, None] * (query @ key.transpose(-2, -1))
    (expected,) = torch.autograd.grad((scores.softmax(-1) @ value).square().sum(), scale)
    assert_close(found, expected)


def test_scaled_dot_form_and_temperature_on_the_fused_engine(query, key):
    graph, weight = TokenGraph.bipartite(5, 7), 3 * ScaledDotProduct()
    call, _ = attention_call(query, key, graph, weight, Softmax(temperature=0.5), key)
    expected = (3 * query @ key.mT).softmax(-1) @ key
    assert fused.can_run(call) is None
    assert_close(fused.run(call), expected)
    assert_close(tiles.run(call), expected)


@pytest.mark.parametrize(
    "weight",
    [Cosine(nn.Parameter(torch.ones(3))), SwinCosine(3), nn.Parameter(torch.ones(3)) * Dot()],
    ids=lambda weight: repr(weight).partition(" at ")[0],
)
def test_parameters_in_float32_serve_vectors_in_half_precision(weight, query, key):
    half = query.bfloat16(), key.bfloat16()
    scores = tile_scores(weight, *weight.prepare(*half, None), None)
    assert scores.dtype == torch.bfloat16
    call, _ = attention_call(*half, TokenGraph.bipartite(5, 7), weight, None, half[1])
    assert fused.run(call).dtype == tiles.run(call).dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("weight", "shown"),
    [
        (ScaledDotProduct(), "ScaledDotProduct()"),
        (ScaledDotProduct() + ALiBi(8), "ScaledDotProduct() + ALiBi(8)"),
        (0.5 * (Dot() + ALiBi(2)) + Cosine(), "0.5 * (Dot() + ALiBi(2)) + Cosine(tau=1.0)"),
        (nn.Parameter(torch.ones(3)) * Dot(), "learned * Dot()"),
        (torch.tensor(2.0) * Dot(), "2.0 * Dot()"),
        (torch.ones(3) * Dot(), "fixed per head * Dot()"),
        (as_weight_function(negative_square), "negative_square"),
        (as_weight_function(lambda q, k, p: q), "<lambda>"),
    ],
)
def test_repr_is_one_short_line(weight, shown):
    assert repr(weight) == shown


def test_callable_without_a_name_has_a_repr():
    class Scorer:
        def __call__(self, query, key, pairs):
            return (query * key).sum(-1)

    assert repr(as_weight_function(Scorer())) == "Scorer"


def test_fixed_factor_moves_with_the_module():
    assert (torch.ones(3) * Dot()).to(torch.float64).factor.dtype == torch.float64


@pytest.mark.parametrize("wrong", [Dot, 3.0, "dot", None])
def test_refuses_what_is_no_weight_function(wrong):
    with pytest.raises(ContractError, match="weight must be a WeightFunction, such as"):
        as_weight_function(wrong)


def test_only_numbers_scale():
    with pytest.raises(TypeError):
        Dot() * Dot()
    with pytest.raises(TypeError):
        1 + Dot()


def test_forward_is_the_one_required_method():
    with pytest.raises(ContractError, match="must define forward"):
        WeightFunction()(None, None, None)
