"""What `GraphAttention` is given as edges, what it says of them, and what it refuses."""

from dataclasses import replace

import pytest
import torch

import gattn
from gattn.engines.watching import watching
from gattn.errors import ContractError, ShapeError
from gattn.graph.token_graph import TokenGraph
from gattn.module import GraphAttention
from gattn.normalizers import Sparsemax
from gattn.weights import (
    ALiBi,
    Cosine,
    EdgeBias,
    EdgeProduct,
    GATv2,
    Rotary,
    ScaledDotProduct,
)
from gattn.weights.pairs import Pairs, Positions

DOUBLED = torch.tensor([[2, 0, 4, 0, 3, 2, 1, 2], [3, 1, 0, 1, 3, 1, 0, 2]])
INDEX = torch.tensor([[2, 0, 4, 3, 2, 1, 2], [3, 1, 0, 3, 1, 0, 2]])
EXACT = {"atol": 1e-12, "rtol": 1e-12}


def close(found, expected):
    torch.testing.assert_close(found, expected, **EXACT)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


# Features of edges in keys and values


def by_hand(layer, x, index, features):
    """Plain loops over targets and their edges, one head at a time."""
    heads, dim = layer.heads, layer.out_channels
    query, key, value, edge = (
        projection(side).unflatten(-1, (heads, dim))
        for projection, side in (
            (layer.project_query, x),
            (layer.project_key, x),
            (layer.project_value, x),
            (layer.project_edge, features),
        )
    )
    out = torch.zeros(len(x), heads, dim, dtype=x.dtype)
    for i in range(len(x)):
        some = [(e, int(index[0, e])) for e in range(index.shape[1]) if index[1, e] == i]
        for h in range(heads):
            if some:
                scores = [query[i, h] @ (key[j, h] + edge[e, h]) / dim**0.5 for e, j in some]
                shares = torch.softmax(torch.stack(scores), dim=0)
                out[i, h] = sum(
                    a * (value[j, h] + edge[e, h]) for a, (e, j) in zip(shares, some, strict=True)
                )
    return out.flatten(1)


@pytest.mark.parametrize("engine", [None, "edges", "message_passing"])
def test_features_go_into_keys_and_values(randn, engine):
    layer = GraphAttention(8, 4, 2, edge_dim=3, engine=engine).double()
    x, features = randn(5, 8), randn(8, 3)
    expected = by_hand(layer, x, DOUBLED, features)
    close(layer(x, DOUBLED, features), expected)
    close(
        layer(x, DOUBLED, features.float()), by_hand(layer, x, DOUBLED, features.float().double())
    )
    assert not torch.allclose(layer(x, DOUBLED, features.flip(0)), expected)


@pytest.mark.parametrize("engine", [None, "message_passing"])
def test_features_of_all_pairs_and_of_batches(randn, engine):
    layer = GraphAttention(8, 4, 2, edge_dim=3, engine=engine).double()
    x, features = randn(2, 5, 8), randn(7, 3)
    dense = torch.zeros(5, 5, 3, dtype=torch.float64)
    dense[INDEX[1], INDEX[0]] = features
    expected = torch.stack([by_hand(layer, one, INDEX, features) for one in x])
    graph = TokenGraph.from_edge_index(INDEX, 5)
    close(layer(x, INDEX, features), expected)
    close(layer(x, graph, dense), expected)
    close(layer(x, INDEX, dense), expected)
    close(layer(x, graph.sorted(), graph.arrange(INDEX, features)), expected)


@pytest.mark.parametrize(
    "weight",
    [
        GATv2(2, 4, 5),
        Cosine(2) + ALiBi(2),
        2.0 * ScaledDotProduct() + EdgeBias(2, 3),
        Rotary(ScaledDotProduct()),
        EdgeProduct(2, 4, 3),
        lambda q, k, pairs: -(q - k).abs().sum(-1) + pairs.offset,
    ],
    ids=lambda weight: getattr(weight, "__name__", str(weight)),
)
def test_any_weight_function_scores_keys_with_their_edges(randn, weight):
    layer = GraphAttention(8, 4, 2, weight=weight, edge_dim=3, normalizer=Sparsemax()).double()
    x, features = randn(2, 5, 8), randn(7, 3)
    found, (_, alpha) = layer(x, INDEX, features, return_attention_weights=True)
    edge = layer.project_edge(features)
    scores = torch.stack(
        [scored_alone(layer, x, edge[e], *INDEX[:, e].tolist(), features[e]) for e in range(7)], 1
    )
    for i in range(5):
        some = INDEX[1] == i
        if some.any():
            query = torch.zeros(int(some.sum()), dtype=torch.long)
            wanted = Sparsemax().on_edges(scores[:, some].transpose(1, 2), query, 1)
            close(alpha[:, some].transpose(1, 2), wanted)
    assert torch.isfinite(found).all()
    dense = torch.zeros(5, 5, 3, dtype=torch.float64)
    dense[INDEX[1], INDEX[0]] = features
    graph = TokenGraph.from_edge_index(INDEX, 5)
    heads = layer.graphs(x, graph, dense)
    attention = torch.stack([torch.from_numpy(head.to_dense()) for head in heads])
    close(attention.unflatten(0, (2, 2))[:, :, INDEX[1], INDEX[0]], alpha.transpose(1, 2))


def scored_alone(layer, x, edge, j, i, features):
    """Score one edge as one pair of tokens at their places."""
    query = layer.project_query(x[:, i : i + 1]).unflatten(-1, (2, 4)).transpose(1, 2)
    key = (layer.project_key(x[:, j : j + 1]) + edge).unflatten(-1, (2, 4)).transpose(1, 2)
    positions = Positions(torch.tensor([i]), torch.tensor([j]))
    sides = layer.weight.prepare(query, key, positions)

    def first(tree):
        if isinstance(tree, tuple):
            return tuple(first(branch) for branch in tree)
        return None if tree is None else tree.transpose(1, 2)

    pairs = Pairs(positions.query[:, None], positions.key[:, None], features[None])
    return layer.weight(first(sides[0]), first(sides[1]), pairs)[:, 0]


# The attention that is returned


@pytest.mark.parametrize("engine", [None, "edges", "message_passing"])
def test_attention_is_in_the_order_of_the_edges(randn, engine):
    layer = GraphAttention(8, 4, 2, normalizer=Sparsemax(), engine=engine).double()
    x = randn(5, 8)
    out, (edges, alpha) = layer(x, DOUBLED, return_attention_weights=True)
    assert edges is DOUBLED
    assert torch.equal(out, layer(x, DOUBLED))
    value = layer.project_value(x).unflatten(-1, (2, 4))
    summed = torch.zeros(5, 2, 4, dtype=x.dtype)
    summed.index_add_(0, DOUBLED[1], alpha[..., None] * value[DOUBLED[0]])
    close(out, summed.flatten(1))


def test_attention_of_a_token_graph_and_of_a_batch(randn):
    layer, x = GraphAttention(8, 4, 2).double(), randn(3, 5, 8)
    graph = TokenGraph.causal(5)
    out, (edges, alpha) = layer(x, graph, return_attention_weights=True)
    close(out, layer(x, graph))
    assert torch.equal(edges, graph.edge_index)
    assert alpha.shape == (3, 15, 2)
    heads = layer.graphs(x, graph)
    for n, head in enumerate(heads):
        close(alpha[n // 2, :, n % 2], torch.from_numpy(head.attention))


def test_attention_is_that_before_dropout(randn):
    layer, x = GraphAttention(8, 4, 2, dropout=0.5).double(), randn(5, 8)
    out, (_, alpha) = layer(x, DOUBLED, return_attention_weights=True)
    plain, (_, weights) = layer.eval()(x, DOUBLED, return_attention_weights=True)
    close(alpha, weights)
    assert not torch.allclose(out, plain)


@pytest.mark.parametrize("engine", ["fused", "tiles"])
def test_engines_that_list_no_edges_return_no_attention(randn, engine):
    layer, graph = GraphAttention(8, 4, engine=engine).double(), TokenGraph.causal(5)
    with pytest.raises(ContractError, match=f"{engine} computes outputs only"):
        layer(randn(5, 8), graph, return_attention_weights=True)
    layer = GraphAttention(8, 4, engine=engine, edge_dim=3).double()
    with pytest.raises(ContractError, match="add their features to the values"):
        layer(randn(5, 8), graph, randn(5, 5, 3))


def test_attention_is_that_of_a_watched_call(randn):
    layer, x = GraphAttention(8, 4, 2).double(), randn(5, 8)
    with watching(lambda module, call, run: run(replace(call, query=2 * call.query))):
        out, (_, alpha) = layer(x, DOUBLED, return_attention_weights=True)
    layer.project_query.weight.data *= 2
    plain, (_, weights) = layer(x, DOUBLED, return_attention_weights=True)
    close(out, plain)
    close(alpha, weights)


def cut(module, call, run):
    return run(replace(call, graph=TokenGraph.self_loops(5)))


def mended(module, call, run):
    return run(call).clone()


@pytest.mark.parametrize("watcher", [cut, mended])
def test_attention_that_an_edit_changed_is_not_returned(randn, watcher):
    layer, x = GraphAttention(8, 4, 2).double(), randn(5, 8)
    with watching(watcher):
        layer(x, DOUBLED)
        with pytest.raises(ContractError, match=r"gattn\.capturing"):
            layer(x, DOUBLED, return_attention_weights=True)


# Attention graphs


@pytest.mark.parametrize("loops", [False, True])
@pytest.mark.parametrize("edge_dim", [None, 3])
def test_graphs_of_a_plain_edge_index(randn, edge_dim, loops):
    layer = GraphAttention(8, 4, 2, edge_dim=edge_dim, add_self_loops=loops).double()
    x, features = randn(5, 8), randn(7, 3) if edge_dim else None
    _, (edges, alpha) = layer(x, INDEX, features, return_attention_weights=True)
    heads = layer.graphs(x, INDEX, features, tokens=list("abcde"))
    assert heads[0].tokens == tuple("abcde")
    for h, head in enumerate(heads):
        dense = torch.zeros(5, 5, dtype=x.dtype)
        dense[edges[1], edges[0]] = alpha[:, h].detach()
        close(torch.from_numpy(head.to_dense()), dense)
        assert head.graph.num_edges == edges.shape[1]


@pytest.mark.filterwarnings("ignore:Sparse (invariant checks|CSR):UserWarning")
@pytest.mark.parametrize(
    ("given", "told"),
    [
        (lambda: INDEX, "5 nodes"),
        (lambda: torch.sparse_coo_tensor(INDEX.flip(0), torch.ones(7), (5, 5)), "5 nodes"),
        (lambda: TokenGraph.from_edge_index(INDEX, num_queries=5, num_keys=5), "5 queries, 5 keys"),
    ],
    ids=["edge_index", "adjacency", "token graph"],
)
def test_points_of_data_are_nodes_as_in_a_trace(randn, given, told):
    given = given()
    layer, x = GraphAttention(8, 4, 2, add_self_loops=False).double(), randn(5, 8)
    with gattn.capturing(layer) as run:
        layer(x, given)
    for head in (layer.graphs(x, given)[1], run.trace[0, 1]):
        assert f"{told}, " in str(head)


def test_graphs_of_two_sets_of_nodes(randn):
    layer = GraphAttention((6, 8), 4, 2).double()
    x, index = (randn(4, 6), randn(3, 8)), torch.tensor([[3, 0, 1], [0, 2, 2]])
    head = layer.graphs(x, index)[0]
    assert head.graph.is_bipartite
    same = randn(4, 8)
    plain = GraphAttention(8, 4).double()
    for given, are_apart in ((same, False), ((same, same), False), ((same, same + 1), True)):
        assert plain.graphs(given, index)[0].graph.is_bipartite == are_apart
    _, (_, alpha) = layer(x, index, return_attention_weights=True)
    close(torch.from_numpy(head.to_dense())[index[1], index[0]], alpha[:, 0].detach())


def test_graphs_have_no_doubled_edges(randn):
    with pytest.raises(ShapeError, match=r"Of the 8 edges, 1 occur again.*coalesce"):
        GraphAttention(8, 4).double().graphs(randn(5, 8), DOUBLED)


# Token graphs with self-loops


@pytest.mark.parametrize("kind", ["rule", "edges"])
def test_self_loops_of_a_token_graph(randn, kind):
    layer, x = GraphAttention(8, 4, 2, add_self_loops=True).double(), randn(5, 8)
    graph = TokenGraph.causal(5) - TokenGraph.self_loops(5)
    if kind == "edges":
        graph = TokenGraph.from_edge_index(INDEX, 5)
    close(layer(x, graph), layer(x, graph.edge_index))
    _, (edges, _) = layer(x, graph, return_attention_weights=True)
    assert torch.equal(edges, (graph | TokenGraph.self_loops(5)).edge_index)


def test_self_loops_of_a_token_graph_with_features(randn):
    layer = GraphAttention(8, 4, 2, edge_dim=3, add_self_loops=True).double()
    x, graph = randn(5, 8), TokenGraph.from_edge_index(INDEX, 5)
    with pytest.raises(ShapeError, match=r"add_self_loops=False"):
        layer(x, graph, randn(7, 3))
    dense = randn(5, 5, 3)
    plain = GraphAttention(8, 4, 2, edge_dim=3).double()
    plain.load_state_dict(layer.state_dict())
    close(layer(x, graph, dense), plain(x, graph | TokenGraph.self_loops(5), dense))


# Refusals


def test_features_that_nothing_reads_are_refused(randn):
    x, features = randn(5, 8), randn(8, 3)
    for weight in (None, 2.0 * ScaledDotProduct()):
        with pytest.raises(ContractError, match=r"Nothing in GraphAttention.*edge_dim=3"):
            GraphAttention(8, 4, weight=weight).double()(x, DOUBLED, features)
    GraphAttention(8, 4, weight=ScaledDotProduct() + EdgeBias(1, 3)).double()(x, DOUBLED, features)


@pytest.mark.parametrize("features", [None, (8, 2), (8,), (5, 5, 4)], ids=str)
def test_features_that_the_layer_needs(randn, features):
    given = None if features is None else randn(*features)
    wanted = r"edge_dim=3: it needs edge_attr of shape \(edges, 3\)"
    with pytest.raises(ShapeError, match=wanted):
        GraphAttention(8, 4, edge_dim=3).double()(randn(5, 8), DOUBLED, given)


@pytest.mark.parametrize("loops", [False, True])
def test_features_of_other_edges(randn, loops):
    layer = GraphAttention(8, 4, edge_dim=3, add_self_loops=loops).double()
    with pytest.raises(ShapeError, match=r"\(8, F\).*not \(7, 3\)"):
        layer(randn(5, 8), DOUBLED, randn(7, 3))
    with pytest.raises(ShapeError, match="edge_attr must be a tensor, not list"):
        layer(randn(5, 8), DOUBLED, [1.0] * 8)


@pytest.mark.parametrize("loops", [False, True])
@pytest.mark.parametrize(
    "index", [DOUBLED.double(), DOUBLED[:1], DOUBLED.T, DOUBLED[None], DOUBLED + 3, DOUBLED.bool()]
)
def test_edges_that_are_none(randn, index, loops):
    layer = GraphAttention(8, 4, add_self_loops=loops).double()
    with pytest.raises(ShapeError, match="edge_index"):
        layer(randn(5, 8), index)


class SparseTensor:
    """Stands for that of torch_sparse, which is an extra of torch-geometric."""


def test_other_graphs_are_refused_with_advice(randn):
    layer = GraphAttention(8, 4).double()
    with pytest.raises(ShapeError, match=r"SparseTensor.*to_torch_sparse_csr_tensor"):
        layer(randn(5, 8), SparseTensor())


@pytest.mark.filterwarnings("ignore:Sparse (invariant checks|CSR):UserWarning")
def test_adjacencies_that_do_not_fit(randn):
    layer = GraphAttention((6, 8), 4, add_self_loops=True, edge_dim=3).double()
    x = randn(4, 6), randn(5, 8)
    with pytest.raises(ShapeError, match=r"5 targets.*4 sources.*not \(4, 5\)"):
        layer(x, torch.ones(4, 5).to_sparse())
    with pytest.raises(ShapeError, match="pass an edge_index and edge_attr"):
        layer(x, torch.ones(5, 4).to_sparse(), randn(20, 3))
    with pytest.raises(ShapeError, match="pass an edge_index and edge_attr"):
        layer(x, torch.ones(5, 4, 3).to_sparse(2))


@pytest.mark.filterwarnings("ignore:Sparse (invariant checks|CSR):UserWarning")
def test_an_adjacency_has_each_edge_once(randn):
    layer, x = GraphAttention(8, 4).double(), randn(5, 8)
    doubled = torch.sparse_coo_tensor(DOUBLED.flip(0), torch.ones(8), (5, 5))
    out, (edges, alpha) = layer(x, doubled, return_attention_weights=True)
    assert not doubled.is_coalesced()
    assert edges.indices().shape[1] == len(alpha) == 7
    close(out, layer(x, INDEX))


@pytest.mark.parametrize("fill_value", ["median", None, float("nan"), [1.0]])
def test_what_added_self_loops_have_as_features(fill_value):
    with pytest.raises(ContractError, match="fill_value"):
        GraphAttention(8, 4, fill_value=fill_value)
