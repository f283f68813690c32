"""Tables and arrays hold tokens' texts as they are, also those that Arrow refuses."""

from dataclasses import replace

import numpy as np
import pytest

import gattn
from gattn import analysis
from gattn.heads.stack import Stack

TOKENS = ("lone \ud800", "nul \x00", "", "lone \ud800", "nan")


def swapped(stack):
    """Give each head of a layer the other one's attention."""
    heads = {(n, m): replace(stack[n, 1 - m], head=m) for n, m in stack}
    return Stack("decoder", heads)


@pytest.fixture
def stack():
    """Two layers of two heads on tokens with lone surrogates."""
    random = np.random.default_rng(0)
    heads = {}
    for layer, head in np.ndindex(2, 2):
        weight = np.tril(random.random((5, 5)))
        attention = weight / weight.sum(1, keepdims=True)
        graph = gattn.TokenGraph.causal(5)
        heads[layer, head] = gattn.AttentionGraph.from_dense(
            attention, graph, tokens=TOKENS, layer=layer, head=head
        )
    return Stack("decoder", heads)


def test_edges_name_them(stack):
    head = stack[1, 1]
    table = head.to_pandas()
    assert table["query_token"].tolist() == [TOKENS[i] for i in head.query]
    assert table["key_token"].tolist() == [TOKENS[i] for i in head.key]


@pytest.mark.parametrize(
    ("compute", "names"),
    [
        (lambda stack: analysis.best_edges(stack), ["token", "key_token", "query_token"]),
        (lambda stack: analysis.compare(stack, swapped(stack)), ["query_token", "key_token"]),
        (lambda stack: analysis.oversquashing(stack), ["token"]),
        (lambda stack: analysis.bottlenecks(stack, 1, 3, cut="tokens"), ["token"]),
        (lambda stack: analysis.bottlenecks(stack, 1, 3, cut="edges"), ["query_token"]),
    ],
)
def test_tables_name_them(stack, compute, names):
    table = compute(stack).reset_index()
    assert len(table)
    for name in names:
        assert {text for text in table[name] if text is not None} <= set(TOKENS)


def test_arrays_name_them(stack):
    rolled = analysis.rollout(stack)
    assert tuple(rolled["query_token"].to_numpy()) == TOKENS
    assert tuple((2 * rolled.sel(key=[1, 3]))["key_token"].to_numpy()) == (TOKENS[1], TOKENS[3])


def test_steps_name_them():
    x = np.eye(5)
    steps = gattn.steps(x, x, x, x, tokens=TOKENS)
    assert tuple(steps["attention"].index) == tuple(steps["attention"].columns) == TOKENS
