"""Edges, sparse matrices and NetworkX graphs of one's own hold the numbers that were given."""

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from torch_geometric import EdgeIndex
from torch_geometric.utils import softmax, to_dense_adj

from gattn import AttentionGraph, TokenGraph, TopK
from gattn.errors import CaptureError, ContractError, GraphError, SelectionError, ShapeError

WORDS = ["the", "dog", "chased", "the"]
EDGES = [[2, 0, 1, 0], [2, 1, 2, 2]]
WEIGHTS = [0.5, 1.0, 0.3, 0.2]


@st.composite
def repeated_edges(draw):
    """Edges in any order, some several times, their numbers, and the sizes."""
    queries, keys = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    pairs = st.tuples(st.integers(0, keys - 1), st.integers(0, queries - 1))
    edges = draw(st.lists(pairs, max_size=30))
    number = st.floats(-1, 1, width=16)
    numbers = draw(st.lists(number, min_size=len(edges), max_size=len(edges)))
    return np.array(edges, dtype=np.int64).reshape(-1, 2).T, np.array(numbers), (queries, keys)


# Duplicates


@pytest.mark.filterwarnings("ignore:.* attention is never negative")
@settings(max_examples=60)
@given(repeated_edges())
def test_summed_duplicates_are_those_of_torch(case):
    edges, numbers, (queries, keys) = case
    head = AttentionGraph.from_edges(
        edges, numbers, num_queries=queries, num_keys=keys, duplicates="sum"
    )
    oracle = torch.sparse_coo_tensor(
        edges[::-1].copy(), numbers, (queries, keys), check_invariants=True
    ).coalesce()
    assert head.graph.edge_index.flip(0).equal(oracle.indices())
    np.testing.assert_allclose(head.attention, oracle.values(), atol=1e-12)
    np.testing.assert_allclose(head.total_mass, oracle.to_dense().abs().sum(1), atol=1e-12)
    assert head.total_edges.sum() == len(head.attention)


def test_duplicates_are_refused_unless_they_can_be_summed():
    twice, numbers = [[0, 1, 0], [1, 1, 1]], [0.25, 0.25, 0.5]
    with pytest.raises(GraphError, match=r'edges 0 and 2.*duplicates="sum"'):
        AttentionGraph.from_edges(twice, numbers, num_tokens=2)
    with pytest.raises(GraphError, match="score of an edge that is there several times"):
        AttentionGraph.from_edges(twice, numbers, num_tokens=2, score=numbers, duplicates="sum")
    for edges in (twice, EDGES):
        with pytest.raises(SelectionError, match='"error" or "sum", not \'mean\''):
            AttentionGraph.from_edges(edges, numbers + [0.0] * (len(edges[0]) - 3), num_tokens=3,
                                      duplicates="mean")  # fmt: skip
    single = np.array([1e8, 1, -1e8, 1], dtype=np.float32)
    head = AttentionGraph.from_edges([[0] * 4, [0] * 4], single, num_tokens=1, duplicates="sum")
    assert head.attention.tolist() == [2.0]
    assert head.attention.dtype == np.float32


# torch-geometric


def test_attention_of_torch_geometric_stays_with_its_edges():
    generator = torch.Generator().manual_seed(0)
    pairs = torch.randperm(20, generator=generator)
    index = torch.stack([pairs % 5, pairs // 5])  # every key to the queries 0 to 3
    alpha = softmax(torch.randn(20, 2, generator=generator).requires_grad_(), index[1])
    for form in (index, EdgeIndex(index, sparse_size=(5, 5)), index.int(), index.tolist()):
        for head in range(2):
            graph = AttentionGraph.from_edges(form, alpha[:, head], num_tokens=5)
            dense = to_dense_adj(index, edge_attr=alpha[:, head].detach(), max_num_nodes=5)[0]
            np.testing.assert_array_equal(graph.to_dense(), dense.T)
    with pytest.raises(ShapeError, match=r"one head, such as attention\[:, 0\]"):
        AttentionGraph.from_edges(index, alpha, num_tokens=5)


def test_the_permutation_brings_numbers_there_and_back():
    generator = torch.Generator().manual_seed(1)
    pairs = torch.randperm(42, generator=generator)[:25]
    index = torch.stack([pairs % 7, pairs // 7])
    numbers = torch.rand(25, generator=generator)
    graph = TokenGraph.from_edge_index(index, num_queries=6, num_keys=7)
    for form in (index, EdgeIndex(index, sparse_size=(7, 6)), index.numpy(), index.tolist()):
        order = graph.permutation(form)
        assert index[:, order].equal(graph.edge_index)
        assert numbers[order].equal(graph.arrange(form, numbers))
        assert numbers[order][order.argsort()].equal(numbers)
    head = AttentionGraph.from_edges(index, numbers, num_queries=6, num_keys=7)
    np.testing.assert_array_equal(head.attention, numbers[order])
    assert not TokenGraph.from_edge_index(index[:, order], num_queries=6, num_keys=7).is_reordered


def test_a_permutation_is_of_the_graphs_own_edges():
    graph = TokenGraph.from_edge_index(EDGES, 3)
    for wrong, message in (
        ([[2, 0, 1], [2, 1, 2]], "each of the graph's 4 edges exactly once"),
        ([[2, 0, 1, 1], [2, 1, 2, 2]], "the edges 2 and 3 are the same"),
        ([[2, 0, 1, 1], [2, 1, 2, 0]], "exactly once"),
        ([0, 1], r"shape \(2, edges\)"),
        ([[0.5], [1.5]], "whole numbers"),
    ):
        with pytest.raises(GraphError, match=message):
            graph.permutation(wrong)
    with pytest.raises(GraphError, match="4 edges, but 3 features"):
        graph.arrange(EDGES, torch.zeros(3))


# SciPy


@pytest.mark.filterwarnings("ignore:.* attention is never negative")
@settings(max_examples=40)
@given(repeated_edges(), st.sampled_from(["csr", "csc", "coo", "lil", "dok", "bsr", "dia"]))
def test_rows_of_a_sparse_matrix_are_queries(case, form):
    edges, numbers, shape = case
    matrix = sparse.coo_array((numbers, edges[::-1]), shape=shape)
    dense = matrix.toarray()
    matrix.sum_duplicates()
    head = AttentionGraph.from_scipy(matrix.asformat(form))
    np.testing.assert_array_equal(head.to_dense(), dense)
    assert head.graph.is_bipartite == (shape[0] != shape[1])
    again = AttentionGraph.from_scipy(head.to_scipy())
    assert again.graph.edge_index.equal(head.graph.edge_index)
    np.testing.assert_array_equal(again.attention, head.attention)
    if shape[0] == shape[1]:  # NetworkX reads rows as sources
        network = nx.from_scipy_sparse_array(matrix.T, create_using=nx.DiGraph)
        np.testing.assert_array_equal(AttentionGraph.from_networkx(network).to_dense(), dense)


def test_sparse_matrices_keep_stored_zeros_tokens_and_fields():
    matrix = sparse.csr_matrix(np.array([[1.0, 0.0], [0.3, 0.7]]))
    matrix.data[1] = 0
    head = AttentionGraph.from_scipy(matrix, ["a", "b"], layer=2, head=1)
    assert head.attention.tolist() == [1.0, 0.0, 0.7]
    assert (head.tokens, head.layer, head.head) == (("a", "b"), 2, 1)
    cross = AttentionGraph.from_scipy(matrix, ["a", "b"], query_tokens=["x", "y"])
    assert cross.graph.is_bipartite
    assert cross.query_tokens == ("x", "y")
    wide = AttentionGraph.from_scipy(matrix[:1], ["a", "b"], query_tokens=["x"])
    assert wide.to_dense().tolist() == [[1.0, 0.0]]
    whole = AttentionGraph.from_scipy(sparse.eye_array(3, dtype=np.int8, format="csr"))
    assert whole.to_dense().tolist() == np.eye(3).tolist()
    twice = sparse.coo_array(([0.25, 0.5], ([1, 1], [0, 0])), shape=(2, 2))
    with pytest.raises(GraphError, match="key 0 to query 1 is there twice"):
        AttentionGraph.from_scipy(twice)
    assert AttentionGraph.from_scipy(twice, duplicates="sum").attention.tolist() == [0.75]


@pytest.mark.parametrize(
    ("matrix", "error", "message"),
    [
        (np.eye(2), ShapeError, "not a ndarray .*from_dense"),
        (torch.eye(2).to_sparse(), ShapeError, "not a Tensor"),
        (sparse.coo_array([1.0, 0.0]), ShapeError, r"\(queries, keys\), not a coo_array \(2,\)"),
        (sparse.eye_array(2, dtype=bool), ShapeError, "real numbers"),
        (sparse.csr_array([[np.nan]]), CaptureError, "query 0 to key 0 is nan"),
    ],
)
def test_what_is_no_sparse_matrix_of_attention_is_refused(matrix, error, message):
    with pytest.raises(error, match=message):
        AttentionGraph.from_scipy(matrix)
    with pytest.raises(ShapeError, match="tokens must have 3 entries"):
        AttentionGraph.from_scipy(sparse.eye_array(3), ["a", "b"])


# NetworkX


def test_networkx_weights_are_never_made_up():
    network = nx.DiGraph()
    network.add_weighted_edges_from([(0, 1, 0.25), (1, 1, 0.75)])
    network.add_edge(0, 0)
    for graph in (network, nx.DiGraph([(0, 1)])):
        with pytest.raises(GraphError, match=r"no attribute 'weight'.*default=1\.0"):
            AttentionGraph.from_networkx(graph)
    head = AttentionGraph.from_networkx(network, default=0.5)
    assert head.to_dense().tolist() == [[0.5, 0.0], [0.25, 0.75]]
    assert AttentionGraph.from_networkx(network, default=0).attention.tolist() == [0, 0.25, 0.75]
    for wrong in ("1", float("nan"), [1.0]):
        with pytest.raises(ContractError, match="default must be a finite number"):
            AttentionGraph.from_networkx(network, default=wrong)
    network.edges[0, 1]["weight"] = None
    with pytest.raises(GraphError, match="must be a real number, not None"):
        AttentionGraph.from_networkx(network, default=0.5)
    # Without weights it is a token graph, which needs none.
    assert TokenGraph.from_networkx(nx.DiGraph([(0, 1)])).edge_index.tolist() == [[0], [1]]


def test_sinks_without_a_weight_have_the_default_alone():
    network = nx.DiGraph([(0, 0, {"weight": 0.5})])
    network.add_node(-1, virtual=True)
    network.add_edge(-1, 0)
    with pytest.raises(GraphError, match=r"edge \(-1, 0\) has no attribute"):
        AttentionGraph.from_networkx(network)
    assert AttentionGraph.from_networkx(network, default=0.25).sink.tolist() == [0.25]


# Tables


def test_texts_and_devices_of_numbers_are_said():
    head = AttentionGraph.from_edges(
        torch.tensor(EDGES), torch.tensor(WEIGHTS, requires_grad=True), WORDS
    )
    np.testing.assert_allclose(head.keep(TopK(1)).attention, [1.0, 0.5])
    with pytest.raises(ShapeError, match="holds no numbers"):
        AttentionGraph.from_edges(EDGES, torch.zeros(4, device="meta"), WORDS)
    with pytest.raises(ShapeError, match="nested tensor: pass one of its parts"):
        AttentionGraph.from_edges(
            EDGES, torch.nested.nested_tensor([torch.ones(4)], layout=torch.jagged), WORDS
        )
    with pytest.raises(ShapeError, match="each edge, not None"):
        AttentionGraph.from_edges(EDGES, None, WORDS)
    with pytest.raises(GraphError, match=r"not \(4, 2\): transpose it"):
        AttentionGraph.from_edges(torch.tensor(EDGES).T, WEIGHTS, WORDS)
    with pytest.raises(ShapeError, match=r"tokens is a list of texts.*not 'abcd'"):
        AttentionGraph.from_dense(np.eye(4), tokens="abcd")
    with pytest.raises(ShapeError, match=r"tokens is a list of texts.*not 7"):
        AttentionGraph.from_edges(EDGES, WEIGHTS, 7)
