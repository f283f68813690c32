"""`graph_attention` and `attention_graphs` against torch and against plain loops."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention

from gattn.attention import attention_graphs, graph_attention
from gattn.engines import tiles
from gattn.errors import CaptureError, ContractError, GraphError, ShapeError
from gattn.graph.token_graph import TokenGraph
from gattn.keep import All, Threshold, TopK, TopMass
from gattn.normalizers import Entmax15, Identity, Sigmoid, Softmax, TopKSoftmax
from gattn.weights import ALiBi, EdgeBias, EdgeProduct, ScaledDotProduct, SquaredDistance

CLOSE = {
    torch.float32: {"atol": 1e-5, "rtol": 1e-5},
    torch.float64: {"atol": 1e-10, "rtol": 1e-10},
}


def close(found, expected, dtype=torch.float64):
    torch.testing.assert_close(found, expected, **CLOSE[dtype])


def edges(mask):
    return TokenGraph.from_mask(torch.as_tensor(mask, dtype=torch.bool))


MASK = [
    [1, 0, 0, 1, 0],
    [1, 1, 0, 0, 0],
    [0, 0, 0, 0, 0],
    [0, 1, 1, 1, 1],
    [0, 0, 0, 0, 1],
]


# Against torch


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("graph", "mask"),
    [
        (TokenGraph.complete(6), torch.ones(6, 6)),
        (TokenGraph.causal(6), torch.ones(6, 6).tril()),
        (TokenGraph.window(6, 3), torch.ones(6, 6).tril().triu(-2)),
        (edges(torch.eye(6).roll(1, 0) + torch.eye(6)), torch.eye(6).roll(1, 0) + torch.eye(6)),
        (edges(torch.ones(6, 6)), torch.ones(6, 6)),
    ],
    ids=["complete", "causal", "window", "ring", "all edges"],
)
def test_it_is_scaled_dot_product_attention(randn, graph, mask, dtype):
    query, key, value = randn(2, 3, 6, 4), randn(2, 3, 6, 4), randn(2, 3, 6, 5)
    query, key, value = (x.to(dtype) for x in (query, key, value))
    found = graph_attention(query, key, value, graph)
    close(found, scaled_dot_product_attention(query, key, value, attn_mask=mask.bool()), dtype)
    assert found.dtype == dtype


@pytest.mark.parametrize("graph", [TokenGraph.bipartite(3, 7), edges(torch.ones(3, 7))])
def test_cross_attention_is_torchs(randn, graph):
    query, key, value = randn(2, 3, 4), randn(2, 7, 4), randn(2, 7, 4)
    found = graph_attention(query, key, value, graph)
    close(found, scaled_dot_product_attention(query, key, value))


def test_the_seed_example_pool_beats_badminton():
    x = torch.tensor([[0.5, 0.1, 0.1, 0.2], [0.1, 0.5, 0.2, 0.1], [0.5, 0.1, 0.2, 0.1]])[None]
    found = graph_attention(x, x, x, TokenGraph.complete(3), weight=ScaledDotProduct(1.0))
    expected = [[0.38, 0.22, 0.16, 0.14], [0.35, 0.25, 0.17, 0.13], [0.38, 0.22, 0.17, 0.13]]
    assert found[0].mul(100).round().div(100).tolist() == torch.tensor(expected).tolist()


# Against plain loops


WEIGHTS = {
    "dot": (None, lambda h, i, j, q, k: q @ k / math.sqrt(len(q))),
    "squared distance": (
        lambda q, k, pairs: -(q - k).square().sum(-1),
        lambda h, i, j, q, k: -((q - k) ** 2).sum(),
    ),
    "squared distance by its dot form": (
        SquaredDistance(0.5),
        lambda h, i, j, q, k: -0.5 * ((q - k) ** 2).sum(),
    ),
    "ALiBi": (
        ScaledDotProduct() + ALiBi(2),
        lambda h, i, j, q, k: q @ k / math.sqrt(len(q)) - 2.0 ** (-4 * (h + 1)) * abs(i - j),
    ),
    "offset": (
        lambda q, k, pairs: (q * k).sum(-1) + 0.1 * pairs.offset.double(),
        lambda h, i, j, q, k: q @ k + 0.1 * (j - i),
    ),
    "one score for all heads": (
        lambda q, k, pairs: 0.3 * pairs.query.double() + 0.2 * pairs.key.double(),
        lambda h, i, j, q, k: torch.tensor(0.3 * i + 0.2 * j, dtype=torch.float64),
    ),
}
GRAPHS = {
    "complete": (TokenGraph.complete(5), torch.ones(5, 5)),
    "causal": (TokenGraph.causal(5), torch.ones(5, 5).tril()),
    "edges": (edges(MASK), torch.tensor(MASK)),
}
NORMALIZERS = {
    "softmax": (None, lambda s: s.exp() / s.exp().sum()),
    "temperature": (Softmax(0.5), lambda s: (2 * s).exp() / (2 * s).exp().sum()),
    "sink": (Softmax(sink=0.7), lambda s: s.exp() / (s.exp().sum() + math.exp(0.7))),
    "sigmoid": (Sigmoid(), lambda s: 1 / (1 + (-s).exp() * len(s))),
    "identity": (Identity(), lambda s: s),
}


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("weight", WEIGHTS)
def test_any_weight_function_equals_plain_loops(randn, loops, weight, graph):
    query, key, value = randn(2, 2, 5, 3), randn(2, 2, 5, 3), randn(2, 2, 5, 4)
    function, score = WEIGHTS[weight]
    token_graph, mask = GRAPHS[graph]
    expected, _ = loops(query, key, value, mask, score)
    close(graph_attention(query, key, value, token_graph, weight=function), expected)


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("normalizer", NORMALIZERS)
def test_any_normalizer_equals_plain_loops(randn, loops, normalizer, graph):
    query, key, value = randn(1, 2, 5, 3), randn(1, 2, 5, 3), randn(1, 2, 5, 4)
    module, share = NORMALIZERS[normalizer]
    token_graph, mask = GRAPHS[graph]
    expected, _ = loops(query, key, value, mask, WEIGHTS["dot"][1], share)
    close(graph_attention(query, key, value, token_graph, normalizer=module), expected)


# Shapes


@pytest.mark.parametrize("graph", [TokenGraph.causal(4), TokenGraph.window(4, 2)])
@pytest.mark.parametrize(
    "leads",
    [
        ((), (), ()),
        ((2,), (2,), (2,)),
        ((2, 3), (2, 3), (2, 3)),
        ((2, 1), (3,), ()),
        ((), (2,), ()),
    ],
    ids=["none", "one", "two", "broadcast", "shared query"],
)
def test_leading_dimensions_broadcast(randn, leads, graph):
    shapes = ((2, 4, 3), (2, 4, 3), (2, 4, 5))
    tensors = [randn(*lead, *shape) for lead, shape in zip(leads, shapes, strict=True)]
    found = graph_attention(*tensors, graph)
    lead = torch.broadcast_shapes(*leads)
    assert found.shape == (*lead, 2, 4, 5)
    query, key, value = (x.expand(*lead, *x.shape[-3:]) for x in tensors)
    for place in np.ndindex(*lead):
        one = graph_attention(query[place], key[place], value[place], graph)
        close(found[place], one)


@pytest.mark.parametrize("graph", [TokenGraph.causal(5), edges(MASK)])
@pytest.mark.parametrize("key_heads", [1, 2, 6])
def test_grouped_queries_repeat_the_key_heads(randn, key_heads, graph):
    query, key, value = randn(2, 6, 5, 3), randn(2, key_heads, 5, 3), randn(2, key_heads, 5, 4)
    groups = 6 // key_heads
    many = [torch.stack([x[:, h // groups] for h in range(6)], 1) for x in (key, value)]
    close(graph_attention(query, key, value, graph), graph_attention(query, *many, graph))


@pytest.mark.parametrize("weight", [None, ScaledDotProduct() + ALiBi(2)], ids=["dot", "ALiBi"])
def test_a_decoding_step_is_the_last_row_of_the_whole_run(randn, weight):
    query, key, value = randn(2, 7, 4), randn(2, 7, 4), randn(2, 7, 4)
    whole = graph_attention(query, key, value, TokenGraph.causal(7), weight=weight)
    for rows in (1, 3):
        step = TokenGraph.causal(rows, num_keys=7, query_offset=7 - rows)
        found = graph_attention(query[:, -rows:], key, value, step, weight=weight)
        close(found, whole[:, -rows:])
        listed = TokenGraph(edges(step.mask()).rule, rows, 7)
        close(graph_attention(query[:, -rows:], key, value, listed), found) if weight is None else 0


@pytest.mark.parametrize("sizes", [(0, 0), (0, 3), (3, 0)])
@pytest.mark.parametrize("lead", [(), (2,), (0,)])
def test_no_queries_or_no_keys_or_no_batch_is_no_error(randn, sizes, lead):
    queries, keys = sizes
    tensors = randn(*lead, 2, queries, 3), randn(*lead, 2, keys, 3), randn(*lead, 2, keys, 4)
    for graph in (TokenGraph.bipartite(queries, keys), edges(torch.ones(queries, keys))):
        found = graph_attention(*tensors, graph)
        assert torch.equal(found, torch.zeros(*lead, 2, queries, 4, dtype=torch.float64))


# Empty neighbourhoods


@pytest.mark.parametrize(
    "normalizer",
    [None, Softmax(sink=0.0), Entmax15(), Sigmoid(), Identity(), TopKSoftmax(2)],
    ids=repr,
)
@pytest.mark.parametrize("graph", [edges(MASK), edges(torch.zeros(5, 5))], ids=["a row", "all"])
def test_an_empty_neighbourhood_gives_zero_and_finite_gradients(randn, normalizer, graph):
    tensors = [randn(2, 5, 3).requires_grad_() for _ in range(3)]
    output = graph_attention(*tensors, graph, normalizer=normalizer)
    assert torch.equal(output[:, 2], torch.zeros_like(output[:, 2]))
    gradients = torch.autograd.grad(output.square().sum(), tensors)
    assert all(bool(torch.isfinite(one).all()) for one in gradients)
    assert bool((gradients[0][:, 2] == 0).all())


def test_keys_beyond_an_early_query_give_zero_rows_in_the_dense_formula(randn):
    graph = TokenGraph.causal(4, num_keys=0, query_offset=0)
    output = graph_attention(randn(1, 4, 2), randn(1, 0, 2), randn(1, 0, 3), graph)
    assert torch.equal(output, torch.zeros(1, 4, 3, dtype=torch.float64))


# Edge features


@pytest.mark.parametrize("weight", [EdgeBias(2, 3) + ScaledDotProduct(), EdgeProduct(2, 4, 3)])
@pytest.mark.parametrize("graph", [TokenGraph.complete(5), TokenGraph.causal(5), edges(MASK)])
def test_edge_features_of_edges_and_of_pairs_agree(randn, weight, graph):
    weight = weight.double()
    query, key, value = randn(2, 2, 5, 4), randn(2, 2, 5, 4), randn(2, 2, 5, 4)
    of_all = randn(5, 5, 3)
    keys, queries = graph.edge_index
    of_pairs = graph_attention(query, key, value, graph, weight=weight, edge_features=of_all)
    listed = of_all[queries, keys]
    of_edges = graph_attention(query, key, value, graph, weight=weight, edge_features=listed)
    close(of_edges, of_pairs)
    other = graph_attention(query, key, value, graph, weight=weight, edge_features=2 * of_all)
    assert not torch.allclose(other, of_pairs)


# Dropout


@pytest.mark.parametrize("graph", [TokenGraph.complete(5), TokenGraph.window(5, 3)])
def test_dropout_zero_changes_nothing(randn, graph):
    tensors = randn(2, 5, 3), randn(2, 5, 3), randn(2, 5, 3)
    once = graph_attention(*tensors, graph, dropout=0.0)
    assert torch.equal(once, graph_attention(*tensors, graph))


@pytest.mark.parametrize(
    ("graph", "normalizer"),
    [
        (TokenGraph.complete(5), None),
        (TokenGraph.complete(5), Softmax(sink=0.0)),
        (TokenGraph.window(5, 3), None),
    ],
    ids=["fused", "dense", "edges"],
)
def test_dropout_drops_edges_and_keeps_the_expectation(randn, graph, normalizer):
    many, dropped = 4000, 0.25
    query, key = randn(1, 5, 3), randn(1, 5, 3)
    value = torch.eye(5, dtype=torch.float64)[None]
    plain = graph_attention(query, key, value, graph, normalizer=normalizer)
    torch.manual_seed(0)
    runs = graph_attention(
        query.expand(many, 1, 5, 3),
        key.expand(many, 1, 5, 3),
        value.expand(many, 1, 5, 5),
        graph,
        normalizer=normalizer,
        dropout=dropped,
    )
    present = plain > 0
    lost = (runs == 0).double().mean(0)
    assert bool((lost[present] - dropped).abs().max() < 0.04)
    left = runs.masked_fill(runs == 0, torch.nan).nanmean(0)
    close(left[present], (plain / (1 - dropped))[present])


def test_dropout_outside_0_to_1_is_refused(randn):
    tensors = randn(2, 5, 3), randn(2, 5, 3), randn(2, 5, 3)
    for graph in (TokenGraph.complete(5), TokenGraph.window(5, 3)):
        for dropout in (-0.1, 1.5):
            with pytest.raises(ShapeError, match=f"dropout.*{dropout}"):
                graph_attention(*tensors, graph, dropout=dropout)


# Half precision


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("graph", "weight"),
    [
        (TokenGraph.causal(9), None),
        (TokenGraph.causal(9), ScaledDotProduct() + ALiBi(2)),
        (TokenGraph.window(9, 4), None),
        (TokenGraph.window(9, 4), SquaredDistance()),
        (TokenGraph.window(9, 4), ScaledDotProduct() + ALiBi(2)),
        (TokenGraph.window(9, 4), lambda q, k, pairs: (q * k).sum(-1) + 0.1 * pairs.offset),
        (TokenGraph.causal(9), lambda q, k, pairs: (q * k).sum(-1) + 0.1 * pairs.offset),
    ],
    ids=["fused", "dense", "edges", "distance", "ALiBi", "offset", "offset on tiles"],
)
def test_half_precision_is_near_and_stays(randn, graph, weight, dtype):
    tensors = [randn(2, 9, 4).to(dtype) for _ in range(3)]
    found = graph_attention(*tensors, graph, weight=weight)
    wide = graph_attention(*(x.double() for x in tensors), graph, weight=weight)
    assert found.dtype == dtype
    tolerance = 0.05 if dtype == torch.bfloat16 else 0.01
    torch.testing.assert_close(found.double(), wide, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("graph", [TokenGraph.complete(5), TokenGraph.window(5, 4)])
def test_a_score_of_positions_alone_keeps_the_values_dtype(randn, graph, dtype):
    x = randn(2, 5, 3).to(dtype)
    found = graph_attention(x, x, x, graph, weight=lambda q, k, pairs: 0.5 * pairs.offset)
    shares = torch.arange(5) * 0.5 + torch.zeros(5, 5).masked_fill(~graph.mask(), -torch.inf)
    expected = torch.softmax(shares.double(), -1) @ x.double()
    assert found.dtype == dtype
    tolerance = 0.03 if dtype == torch.bfloat16 else 1e-6
    torch.testing.assert_close(found.double(), expected, atol=tolerance, rtol=tolerance)


# Laws


@settings(max_examples=25)
@given(st.data())
def test_permuting_tokens_permutes_the_output(data):
    size = data.draw(st.integers(1, 7))
    order = torch.tensor(data.draw(st.permutations(range(size))))
    seed = data.draw(st.integers(0, 10**6))
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(size, size, generator=generator) < data.draw(st.floats(0, 1))
    query, key, value = torch.randn(3, 2, size, 3, generator=generator, dtype=torch.float64)
    whole = graph_attention(query, key, value, edges(mask))
    moved = graph_attention(
        query[:, order], key[:, order], value[:, order], edges(mask[order][:, order])
    )
    close(moved, whole[:, order])


@settings(max_examples=15)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.integers(0, 10**6))
def test_a_disjoint_union_is_separate_runs(sizes, seed):
    generator = torch.Generator().manual_seed(seed)
    kinds = [TokenGraph.causal, TokenGraph.complete, TokenGraph.self_loops]
    graphs = [kinds[i % 3](size) for i, size in enumerate(sizes)]
    total = sum(sizes)
    query, key, value = torch.randn(3, 2, total, 3, generator=generator, dtype=torch.float64)
    joined = graph_attention(query, key, value, TokenGraph.disjoint_union(graphs))
    parts = [x.split(sizes, dim=1) for x in (query, key, value)]
    alone = [graph_attention(*one, graph) for *one, graph in zip(*parts, graphs, strict=True)]
    close(joined, torch.cat(alone, dim=1))


def test_a_cut_edge_carries_nothing(randn):
    query, key, value = randn(2, 5, 3), randn(2, 5, 3), randn(2, 5, 3)
    cut = TokenGraph.causal(5) - TokenGraph.from_edges([(1, 3)], 5)
    before = graph_attention(query, key, value, cut)
    key[:, 1], value[:, 1] = 9.0, -9.0
    after = graph_attention(query, key, value, cut)
    assert torch.equal(after[:, 3], before[:, 3])
    assert not torch.allclose(after[:, 4], before[:, 4])


# Refusals


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"query": (4, 3)}, r"query \(4, 3\)"),
        ({"query": (3, 4, 3)}, r"query \(3, 4, 3\), key \(2, 4, 3\)"),
        ({"value": (2, 5, 3)}, r"value \(2, 5, 3\)"),
        ({"value": (1, 4, 3)}, r"value \(1, 4, 3\)"),
        ({"query": (2, 2, 4, 3), "key": (3, 2, 4, 3)}, r"query \(2, 2, 4, 3\), key \(3, 2, 4, 3\)"),
        ({"query": (2, 5, 3)}, "4 queries and 4 keys.*5 and 4"),
        ({"key": (2, 6, 3), "value": (2, 6, 3)}, "4 queries and 4 keys.*4 and 6"),
        ({"key": (0, 4, 3), "value": (0, 4, 3)}, r"key \(0, 4, 3\)"),
    ],
)
def test_shapes_that_do_not_fit_are_named(randn, change, named):
    shapes = {"query": (2, 4, 3), "key": (2, 4, 3), "value": (2, 4, 3)} | change
    tensors = {name: randn(*shape) for name, shape in shapes.items()}
    with pytest.raises(ShapeError, match=named):
        graph_attention(**tensors, graph=TokenGraph.causal(4))


def test_dtypes_that_differ_are_named(randn):
    query, key = randn(2, 4, 3), randn(2, 4, 3)
    with pytest.raises(ShapeError, match=r"query torch.float64.*value torch.float32"):
        graph_attention(query, key, key.float(), TokenGraph.causal(4))


def test_whole_numbers_are_no_features():
    whole = torch.ones(2, 4, 3, dtype=torch.long)
    for graph in (TokenGraph.causal(4), TokenGraph.window(4, 2)):
        with pytest.raises(ShapeError, match=r"torch\.int64"):
            graph_attention(whole, whole, whole, graph)


def test_a_graph_on_another_device_is_named(randn):
    x = randn(2, 5, 3)
    with pytest.raises(ShapeError, match=r"edges are on meta, the tensors on cpu.*\.to\('cpu'\)"):
        graph_attention(x, x, x, edges(MASK).to("meta"))


def test_tensors_on_different_devices_are_named(randn):
    x = randn(2, 5, 3)
    with pytest.raises(ShapeError, match=r"key torch\.float64 on meta"):
        graph_attention(x, x.to("meta"), x, TokenGraph.causal(5))


@pytest.mark.parametrize("graph", [torch.ones(5, 5), torch.zeros(2, 3).long(), None, "causal"])
def test_something_else_than_a_token_graph_is_named(randn, graph):
    x = randn(2, 5, 3)
    with pytest.raises(ShapeError, match=f"TokenGraph.*not {type(graph).__name__}"):
        graph_attention(x, x, x, graph)
    with pytest.raises(ShapeError, match=f"TokenGraph.*not {type(graph).__name__}"):
        attention_graphs(x, x, graph)


@pytest.mark.parametrize("shape", [(4, 3), (9, 3), (5, 4, 3), (5, 5), (15,), (1, 5, 5, 3)])
def test_edge_features_of_a_wrong_shape_are_named(randn, shape):
    x = randn(2, 5, 3)
    graph = TokenGraph.causal(5)
    with pytest.raises(ShapeError, match=r"edge_features must be .*\(15, F\).*\(5, 5, F\)"):
        graph_attention(x, x, x, graph, weight=EdgeBias(2, 3), edge_features=randn(*shape))


@pytest.mark.parametrize("graph", [TokenGraph.causal(5), edges(MASK)])
@pytest.mark.parametrize(
    "weight",
    [
        lambda q, k, pairs: (q * k).sum(),
        lambda q, k, pairs: q * k,
        lambda q, k, pairs: (q * k).sum(-1, keepdim=True),
    ],
    ids=["one number", "features", "keepdim"],
)
def test_a_weight_function_that_does_not_give_a_score_a_pair_is_named(randn, weight, graph):
    x = randn(2, 5, 3)
    with pytest.raises(ContractError, match="one score for each pair and head"):
        graph_attention(x, x, x, graph, weight=weight)


def test_a_class_or_a_number_is_no_weight_function(randn):
    x = randn(2, 5, 3)
    with pytest.raises(ContractError, match="pass an instance"):
        graph_attention(x, x, x, TokenGraph.causal(5), weight=ScaledDotProduct)
    with pytest.raises(ContractError, match=r"not 1\.0"):
        graph_attention(x, x, x, TokenGraph.causal(5), weight=1.0)


@pytest.mark.parametrize("normalizer", [Softmax, torch.softmax, "softmax"])
def test_a_class_or_a_function_is_no_normalizer(randn, normalizer):
    x = randn(2, 5, 3)
    for graph in (TokenGraph.causal(5), edges(MASK)):
        with pytest.raises(ContractError, match="normalizer must be a Normalizer"):
            graph_attention(x, x, x, graph, normalizer=normalizer)


# Attention graphs


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("weight", ["dot", "squared distance", "ALiBi"])
def test_attention_graphs_hold_what_plain_loops_give(randn, loops, weight, graph):
    query, key = randn(2, 2, 5, 3), randn(2, 2, 5, 3)
    token_graph, mask = GRAPHS[graph]
    function, score = WEIGHTS[weight]
    _, expected = loops(query, key, key, mask, score)
    heads = attention_graphs(query, key, token_graph, weight=function, scores=True)
    assert [head.head for head in heads] == [0, 1, 0, 1]
    for index, head in enumerate(heads):
        b, h = divmod(index, 2)
        close(torch.from_numpy(head.to_dense()), expected[b, h])
        assert head.graph.mask().tolist() == mask.bool().tolist()
        by_hand = [
            float(score(h, i, j, query[b, h, i], key[b, h, j]))
            for i, j in zip(head.query.tolist(), head.key.tolist(), strict=True)
        ]
        np.testing.assert_allclose(head.score, by_hand, atol=1e-10)
        np.testing.assert_allclose(head.total_mass, mask.bool().any(1).double(), atol=1e-10)
        assert head.total_edges.tolist() == mask.sum(1).tolist()
        assert head.sink is None


KEEPS = [All(), TopK(2), TopK(9), Threshold(0.25), TopMass(0.6), TopMass(1.0)]


@pytest.mark.parametrize("keep", KEEPS, ids=str)
@pytest.mark.parametrize(
    "graph",
    [TokenGraph.causal(6), TokenGraph.complete(6), TokenGraph.longformer(6, 1, [0])],
    ids=["causal", "complete", "edges"],
)
def test_keeping_on_the_way_is_keeping_afterwards(randn, graph, keep):
    query, key = randn(2, 2, 6, 3), randn(2, 2, 6, 3)
    at_once = attention_graphs(query, key, graph, keep=keep, scores=True)
    later = [head.keep(keep) for head in attention_graphs(query, key, graph, scores=True)]
    for one, other in zip(at_once, later, strict=True):
        assert torch.equal(one.graph.edge_index, other.graph.edge_index)
        np.testing.assert_allclose(one.attention, other.attention, atol=1e-12)
        np.testing.assert_allclose(one.score, other.score, atol=1e-12)
        np.testing.assert_allclose(one.total_mass, other.total_mass, atol=1e-12)
        np.testing.assert_allclose(one.kept_mass, other.kept_mass, atol=1e-12)
        assert one.dropped_edges.tolist() == other.dropped_edges.tolist()
        assert one.kept_by == (keep,)


def test_top_k_keeps_the_largest_of_each_row(randn):
    query, key = randn(1, 7, 3), randn(1, 7, 3)
    expected = torch.softmax(query @ key.mT / math.sqrt(3), -1)[0]
    (head,) = attention_graphs(query, key, TokenGraph.complete(7), keep=TopK(3))
    largest = expected.topk(3).indices.sort().values
    assert head.key.reshape(7, 3).tolist() == largest.tolist()
    np.testing.assert_allclose(head.kept_mass, expected.topk(3).values.sum(1), atol=1e-12)
    np.testing.assert_allclose(head.total_mass, 1.0, atol=1e-12)
    assert head.dropped_edges.tolist() == [4] * 7


@pytest.mark.parametrize("graph", [TokenGraph.causal(4), TokenGraph.window(4, 2)])
def test_what_a_sink_took_is_told(randn, graph):
    query, key = randn(2, 4, 3), randn(2, 4, 3)
    sink = torch.tensor([0.5, -1.0], dtype=torch.float64)
    heads = attention_graphs(query, key, graph, normalizer=Softmax(sink=sink))
    scores = (query @ key.mT / math.sqrt(3)).masked_fill(~graph.mask(), -torch.inf)
    powers = scores.exp()
    total = powers.sum(-1) + sink.exp()[:, None]
    for h, head in enumerate(heads):
        np.testing.assert_allclose(head.to_dense(), powers[h] / total[h, :, None], atol=1e-12)
        np.testing.assert_allclose(head.sink, sink[h].exp() / total[h], atol=1e-12)
        np.testing.assert_allclose(head.total_mass + head.sink, 1.0, atol=1e-12)


@pytest.mark.parametrize("graph", [TokenGraph.causal(4), TokenGraph.window(4, 3)])
def test_signed_attention_counts_its_size(randn, graph):
    query, key = randn(1, 4, 3), randn(1, 4, 3)
    (head,) = attention_graphs(query, key, graph, normalizer=Identity())
    scores = (query @ key.mT / math.sqrt(3))[0] * graph.mask()
    np.testing.assert_allclose(head.to_dense(), scores, atol=1e-12)
    np.testing.assert_allclose(head.total_mass, scores.abs().sum(1), atol=1e-12)


@pytest.mark.parametrize("graph", [TokenGraph.causal(5), TokenGraph.window(5, 4)])
def test_nan_names_its_head_and_query(randn, graph):
    query, key = randn(3, 5, 2), randn(3, 5, 2)
    query[1, 3] = torch.nan
    with pytest.raises(CaptureError, match=r"head 1 is NaN at query 3"):
        attention_graphs(query, key, graph)


def test_nan_where_no_edge_is_does_not_matter(randn):
    query, key = randn(1, 5, 2), randn(1, 5, 2)
    key[0, 4] = torch.nan
    for graph in (
        TokenGraph.causal(5) - TokenGraph.from_edges([(4, 4)], 5),
        TokenGraph(TokenGraph.causal(4).rule, 4, 5),
    ):
        (head,) = attention_graphs(query[:, : graph.num_queries], key, graph)
        assert bool(np.isfinite(head.attention).all())


def test_graphs_know_tokens_and_what_computed_them(randn):
    words = ["to", "be", "or"]
    (head,) = attention_graphs(
        randn(1, 3, 2), randn(1, 3, 2), TokenGraph.causal(3), normalizer=Entmax15(), tokens=words
    )
    assert head.tokens == ("to", "be", "or")
    assert head.weight_function == "ScaledDotProduct()"
    assert head.normalizer == "Entmax15()"
    with pytest.raises(ShapeError, match="tokens must have 3 entries, not 2"):
        attention_graphs(randn(1, 3, 2), randn(1, 3, 2), TokenGraph.causal(3), tokens=words[:2])


def test_cross_attention_graphs_name_both_sides(randn):
    (head,) = attention_graphs(
        randn(1, 2, 3),
        randn(1, 3, 3),
        TokenGraph.bipartite(2, 3),
        tokens=["der", "Hund", "bellt"],
        query_tokens=["dog", "barks"],
    )
    assert head.to_dense().shape == (2, 3)
    assert head.labels() == ["der", "Hund", "bellt"]
    assert head.query_labels() == ["dog", "barks"]


def test_graphs_record_no_gradient_and_keep_float64(randn):
    query = randn(1, 3, 2).requires_grad_()
    (head,) = attention_graphs(query, randn(1, 3, 2), TokenGraph.causal(3))
    assert head.attention.dtype == np.float64
    half = query.detach().bfloat16()
    (head,) = attention_graphs(half, half, TokenGraph.causal(3))
    assert head.attention.dtype == np.float32


def test_many_blocks_of_rows_are_one_graph(randn, monkeypatch):
    query, key, value = randn(2, 2, 23, 3), randn(2, 2, 23, 3), randn(2, 2, 23, 3)
    graph = TokenGraph.causal(23)
    weight = ScaledDotProduct() + ALiBi(2)
    output = graph_attention(query, key, value, graph, weight=weight)
    whole = attention_graphs(query, key, graph, weight=weight, keep=TopK(4), scores=True)
    features, bias = randn(23, 23, 3), EdgeBias(2, 3).double()
    options = {"weight": bias, "edge_features": features}
    biased = graph_attention(query, key, value, graph, **options)
    monkeypatch.setattr(tiles, "BLOCK_BYTES", 8 * 4 * 50)
    close(graph_attention(query, key, value, graph, weight=weight), output)
    close(graph_attention(query, key, value, graph, **options), biased)
    pieces = attention_graphs(query, key, graph, weight=weight, keep=TopK(4), scores=True)
    for one, other in zip(whole, pieces, strict=True):
        assert torch.equal(one.graph.edge_index, other.graph.edge_index)
        np.testing.assert_allclose(one.attention, other.attention, atol=1e-12)
        np.testing.assert_allclose(one.total_mass, other.total_mass, atol=1e-12)


def test_arrays_and_keeps_that_are_none_are_refused():
    query, graph = torch.randn(2, 5, 4), TokenGraph.causal(5)
    with pytest.raises(ShapeError, match=r"key must be torch tensors, .*not ndarray"):
        graph_attention(query, query.numpy(), query, graph)
    with pytest.raises(GraphError, match="TopK"):
        attention_graphs(query, query, graph, keep=TopK)
