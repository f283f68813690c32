"""Slips that everybody makes end in errors that say what to write instead."""

import pytest
import torch
from torch import nn

import gattn
from gattn import GraphAttention, ScaledDotProduct, TokenGraph, graph_attention
from gattn.errors import CaptureError, ContractError, SelectionError
from gattn.heads.head import AttentionGraph
from gattn.testing import check_weight_function
from gattn.weights.base import WeightFunction


def two(query, key):
    return (query * key).sum(-1)


class Module(nn.Module):
    def forward(self, query, key):
        return two(query, key)


TAKE_WEIGHTS = {
    "graph_attention": lambda weight: graph_attention(
        *[torch.ones(1, 4, 2)] * 3, TokenGraph.causal(4), weight=weight
    ),
    "GraphAttention": lambda weight: GraphAttention(4, 4, weight=weight),
    "sum": lambda weight: ScaledDotProduct() + weight,
    "Swap": lambda weight: gattn.Swap(weight=weight),
    "check": check_weight_function,
}


@pytest.mark.parametrize("place", TAKE_WEIGHTS)
@pytest.mark.parametrize("weight", [two, lambda q, k: two(q, k), Module()])
def test_weight_functions_of_two_arguments_are_refused(place, weight):
    with pytest.raises(ContractError, match=r"\(query, key, pairs\), but .* takes \("):
        TAKE_WEIGHTS[place](weight)


def test_classes_of_weight_functions_of_two_arguments_are_refused():
    with pytest.raises(ContractError, match=r"but OfTwo takes \(query\)"):

        class OfTwo(WeightFunction):
            def forward(self, query):
                return query


def test_weight_functions_whose_arguments_fit_are_taken():
    for weight in (
        lambda query, key, pairs: two(query, key),
        lambda *tensors: two(*tensors[:2]),
        lambda query, key, pairs=None, scale=2.0: scale * two(query, key),
    ):
        assert TAKE_WEIGHTS["graph_attention"](weight).shape == (1, 4, 2)


@pytest.mark.parametrize(
    "inputs",
    [{"text": "The dog"}, {"text": ["The dog"]}, {"input_ids": torch.ones(1, 2), "t": "a"}],
)
def test_a_mapping_of_texts_is_refused(inputs):
    for run in (gattn.capture, gattn.analysis.contributions, gattn.analysis.value_zeroing):
        with pytest.raises(CaptureError, match="holds text: pass the text itself"):
            run(inputs)


def test_an_empty_mapping_is_refused():
    with pytest.raises(CaptureError, match="mapping is empty"):
        gattn.capture({})


@pytest.mark.parametrize(
    "spans",
    [[1, 2], (1, 3), [(1,)], [(1, 2, 3)], ["12"], "12", 5, [("a", "b")], [(1.0, 2.0)], [None],
     [(True, 2)], None],
)  # fmt: skip
def test_spans_that_are_no_pairs_are_refused(spans):
    head = AttentionGraph.from_dense(torch.eye(4), tokens=tuple("abcd"))
    with pytest.raises(SelectionError, match=r"as in merge\(\[\(1, 3\)\]\)"):
        head.merge(spans)
    cross = AttentionGraph.from_dense(torch.ones(4, 4), TokenGraph.bipartite(4, 4))
    with pytest.raises(SelectionError, match=r"as in merge\(\[\(1, 3\)\]\)"):
        cross.merge([(0, 2)], spans)
