"""All engines give the same numbers and the same gradients."""

import numpy as np
import pytest
import torch
from torch import nn

from gattn.attention import attention_call, attention_graphs, graph_attention
from gattn.engines import dense, fused, message_passing
from gattn.engines.base import EdgeList, score_edges, score_tile
from gattn.errors import ShapeError
from gattn.graph import TokenGraph
from gattn.keep import All, TopK
from gattn.normalizers import (
    Entmax15,
    Identity,
    ReLU,
    Sigmoid,
    Softmax,
    Sparsemax,
    TopKSoftmax,
)
from gattn.weights import (
    GAT,
    Additive,
    ALiBi,
    Cosine,
    Dot,
    GATv2,
    RelativePosition,
    Rotary,
    ScaledDotProduct,
    Softcap,
    SquaredDistance,
    T5RelativeBias,
    WeightFunction,
)

HEADS, DIM = 2, 4


class MeanQuery(WeightFunction):
    """All heads share one score: `prepare` gives one head."""

    def prepare(self, query, key, positions):
        return query.mean(1, keepdim=True), key.mean(1, keepdim=True)

    def forward(self, query, key, pairs):
        return (query * key).sum(-1)

    def dot_form(self, query, key):
        return ScaledDotProduct(1.0).dot_form(query, key)


def learned_lambda():
    scale = nn.Parameter(torch.tensor([0.5, 2.0], dtype=torch.float64))
    weight = lambda q, k, pairs: -scale * (q - k).abs().sum(-1)  # noqa: E731
    weight.parameters = lambda: [scale]
    return weight


WEIGHTS = {
    "dot": ScaledDotProduct,
    "learned scale": lambda: nn.Parameter(torch.tensor([0.5, 2.0])) * ScaledDotProduct(),
    "squared distance": lambda: SquaredDistance(nn.Parameter(torch.tensor([0.5, 1.5]))),
    "lambda": learned_lambda,
    "ALiBi": lambda: ScaledDotProduct() + ALiBi(HEADS),
    "relative": lambda: ScaledDotProduct() + RelativePosition(HEADS, 2),
    "cosine": lambda: Cosine(HEADS),
    "additive": lambda: Additive(HEADS, DIM, 3),
    "GAT": lambda: GAT(HEADS, DIM),
    "GATv2": lambda: GATv2(HEADS, DIM, 3),
    "rotary": lambda: Rotary(ScaledDotProduct()),
    "softcap": lambda: Softcap(ScaledDotProduct(), 1.5) + ALiBi(HEADS),
    "one head for all": MeanQuery,
}
NORMALIZERS = {
    "softmax": Softmax,
    "temperature": lambda: Softmax(0.5),
    "sink": lambda: Softmax(sink=nn.Parameter(torch.tensor([0.5, -1.0]))),
    "entmax": Entmax15,
    "sparsemax": Sparsemax,
    "sigmoid": Sigmoid,
    "relu": ReLU,
    "identity": Identity,
    "top k": lambda: TopKSoftmax(2),
}
GRAPHS = {
    "complete": TokenGraph.complete(5),
    "causal": TokenGraph.causal(5),
    "rows without edges": TokenGraph.window(5, 2) - TokenGraph.from_edges([(2, 2), (1, 2)], 5),
}


def results(engine, randn, graph, weight, normalizer, batch=2):
    """The output, and the gradients of inputs and parameters."""
    inputs = [randn(batch, HEADS, 5, DIM).requires_grad_() for _ in range(3)]
    call, _ = attention_call(*inputs[:2], graph, weight, normalizer, inputs[2])
    learned = [p for p in (*weight.parameters(), *normalizer.parameters()) if p.requires_grad]
    output = engine.run(call)
    loss = (output * randn(*output.shape)).sum()
    gradients = torch.autograd.grad(loss, [*inputs, *learned], allow_unused=True)
    return output, gradients


def agree(one, other):
    assert len(one[1]) == len(other[1])
    torch.testing.assert_close(one[0], other[0], atol=1e-10, rtol=1e-10)
    for a, b in zip(one[1], other[1], strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(a, b, atol=1e-9, rtol=1e-9)


def drawn_again():
    generator = torch.Generator().manual_seed(7)
    return lambda *shape: torch.randn(shape, generator=generator, dtype=torch.float64)


def double(module):
    return module.double() if isinstance(module, nn.Module) else module


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("weight", WEIGHTS)
def test_dense_and_message_passing_agree_on_weight_functions(weight, graph):
    torch.manual_seed(0)
    function = double(WEIGHTS[weight]())
    one, other = (
        results(engine, drawn_again(), GRAPHS[graph], function, Softmax())
        for engine in (dense, message_passing)
    )
    agree(one, other)
    assert any(g is not None and bool((g != 0).any()) for g in one[1])


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("normalizer", NORMALIZERS)
def test_dense_and_message_passing_agree_on_normalizers(normalizer, graph):
    share = NORMALIZERS[normalizer]().double()
    one, other = (
        results(engine, drawn_again(), GRAPHS[graph], ScaledDotProduct(), share)
        for engine in (dense, message_passing)
    )
    agree(one, other)


@pytest.mark.parametrize("graph", ["complete", "causal"])
@pytest.mark.parametrize(
    "weight", ["dot", "learned scale", "squared distance", "cosine", "rotary", "one head for all"]
)
@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_the_fused_kernel_agrees(weight, graph, temperature):
    function = double(WEIGHTS[weight]())
    call, _ = attention_call(
        *(drawn_again()(1, HEADS, 5, DIM) for _ in range(2)), GRAPHS[graph], function
    )
    assert fused.can_run(call) is None
    one, other = (
        results(engine, drawn_again(), GRAPHS[graph], function, Softmax(temperature))
        for engine in (fused, message_passing)
    )
    agree(one, other)


@pytest.mark.parametrize("batch", [1, 3])
def test_message_passing_takes_any_batch(batch):
    arguments = GRAPHS["causal"], ScaledDotProduct(), Softmax()
    one, other = (
        results(engine, drawn_again(), *arguments, batch=batch)
        for engine in (dense, message_passing)
    )
    agree(one, other)


@pytest.mark.parametrize("sizes", [(3, 5), (5, 3), (1, 4), (4, 1)])
@pytest.mark.parametrize("offset", [0, 2])
def test_engines_agree_on_rectangles(randn, sizes, offset):
    queries, keys = sizes
    graph = TokenGraph.causal(queries, num_keys=keys, query_offset=offset)
    tensors = randn(2, 2, queries, 3), randn(2, 2, keys, 3)
    value = randn(2, 2, keys, 6)
    weight = ScaledDotProduct() + ALiBi(2)
    call, _ = attention_call(*tensors, graph, weight, None, value)
    torch.testing.assert_close(dense.run(call), message_passing.run(call))
    plain, _ = attention_call(*tensors, graph, None, None, value)
    if fused.can_run(plain) is None:
        torch.testing.assert_close(fused.run(plain), message_passing.run(plain))


@pytest.mark.parametrize("weight", ["dot", "squared distance", "lambda", "ALiBi", "additive"])
@pytest.mark.parametrize("graph", GRAPHS)
def test_gradients_are_those_of_finite_differences(weight, graph):
    torch.manual_seed(1)
    function = double(WEIGHTS[weight]())
    learned = [p for p in function.parameters() if p.requires_grad]
    draw = drawn_again()
    inputs = [draw(1, HEADS, 5, DIM).requires_grad_() for _ in range(3)]

    def attend(query, key, value, *_):
        return graph_attention(query, key, value, GRAPHS[graph], weight=function)

    assert torch.autograd.gradcheck(attend, (*inputs, *learned), fast_mode=True)


def test_tiles_and_edges_give_the_same_scores(randn):
    graph = TokenGraph.complete(5)
    for name, build in WEIGHTS.items():
        function = double(build())
        call, _ = attention_call(randn(2, HEADS, 5, DIM), randn(2, HEADS, 5, DIM), graph, function)
        tile = score_tile(call, slice(1, 4), slice(2, 5))
        whole = score_edges(call).unflatten(-1, (5, 5))
        torch.testing.assert_close(tile, whole[:, :, 1:4, 2:5], msg=lambda m, n=name: f"{n}: {m}")


def test_a_doubled_edge_counts_twice_and_any_order_does(randn, loops):
    query, key, value = randn(1, 2, 4, 3), randn(1, 2, 4, 3), randn(1, 2, 4, 3)
    index = torch.tensor([[2, 0, 0, 3, 2, 1, 2], [3, 1, 1, 3, 1, 0, 3]])
    call, _ = attention_call(query, key, EdgeList(index, 4, 4), None, None, value)
    found = message_passing.run(call)
    counts = torch.zeros(4, 4, dtype=torch.float64)
    for j, i in index.T.tolist():
        counts[i, j] += 1
    powers = counts * (query @ key.mT / 3**0.5).exp()
    attention = powers / powers.sum(-1, keepdim=True).clamp_min(1e-300)
    torch.testing.assert_close(found, attention @ value)
    merged, _ = attention_call(query, key, TokenGraph.from_edge_index(index, 4), value=value)
    assert not torch.allclose(message_passing.run(merged), found)


@pytest.mark.parametrize("keep", [All(), TopK(2)])
@pytest.mark.parametrize("numbers", [1, 60, 10**9])
def test_blocks_of_edges_give_what_all_edges_give_at_once(monkeypatch, keep, numbers):
    query, key = torch.randn(2, 3, 2, 9, 4, dtype=torch.float64)
    graph = TokenGraph.strided(9, 2) - TokenGraph.from_edge_index(torch.tensor([[4], [4]]), 9)
    expected = attention_graphs(query, key, graph, keep=keep, scores=True)
    monkeypatch.setattr("gattn.engines.base.EDGE_NUMBERS", numbers)
    found = attention_graphs(query, key, graph, keep=keep, scores=True)
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one.graph.edge_index, other.graph.edge_index)
        np.testing.assert_allclose(one.attention, other.attention, atol=1e-14)
        np.testing.assert_allclose(one.score, other.score, atol=1e-14)
        np.testing.assert_allclose(one.total_mass, other.total_mass, atol=1e-14)


@pytest.mark.parametrize("graph", [TokenGraph.window(6, 2), TokenGraph.strided(6, 2)])
@pytest.mark.parametrize("weight", [Dot(), Dot() + (lambda q, k, pairs: 0.1 * pairs.offset)])
def test_rules_serve_tensors_of_another_device(graph, weight):
    query = torch.empty(2, 6, 4, device="meta")
    output = graph_attention(query, query, query, graph, weight=weight)
    assert output.shape == query.shape
    assert output.device.type == "meta"


def test_a_broken_key_that_nobody_reads_breaks_nothing():
    query, key, value = torch.randn(3, 1, 4, 3)
    key[:, 3] = torch.nan
    graph = TokenGraph.causal(4) - TokenGraph.from_edge_index(torch.tensor([[3], [3]]), 4)
    call, _ = attention_call(query, key, graph, SquaredDistance(), None, value)
    assert torch.isfinite(message_passing.run(call)).all()
    assert torch.isfinite(dense.run(call)).all()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"weight": ScaledDotProduct() + ALiBi(8)}, "ALiBi"),
        ({"weight": Cosine(torch.ones(3))}, "Cosine"),
        ({"weight": torch.ones(3) * Dot()}, "Dot"),
        ({"weight": T5RelativeBias(3)}, "3 heads, but the tensors have 4"),
        ({"normalizer": Softmax(sink=torch.zeros(3))}, "Softmax"),
    ],
)
@pytest.mark.parametrize("graph", [TokenGraph.causal(6), TokenGraph.strided(6, 2)])
def test_parameters_for_other_heads_are_named(options, said, graph):
    query = torch.randn(4, 6, 8)
    with pytest.raises(ShapeError, match=said):
        graph_attention(query, query, query, graph, **options)
    with pytest.raises(ShapeError, match=said):
        attention_graphs(query, query, graph, **options)


@pytest.mark.parametrize("graph", [TokenGraph.causal(6), TokenGraph.strided(6, 2)])
def test_dims_that_differ_are_named(graph):
    query, key = torch.randn(4, 6, 8), torch.randn(4, 6, 5)
    with pytest.raises(ShapeError, match="one dim, got 8 and 5"):
        graph_attention(query, key, key, graph)
