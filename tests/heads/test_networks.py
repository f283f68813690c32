"""Attention graphs as NetworkX graphs, there and back."""

import json
import math
from dataclasses import replace

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from same import assert_same_head

from gattn.errors import CaptureError, GraphError
from gattn.graph.token_graph import TokenGraph
from gattn.heads.head import AttentionGraph
from gattn.keep import TopK

A = np.array([[1.0, 0, 0, 0], [0.25, 0.75, 0, 0], [0.5, 0.125, 0.375, 0], [0.1, 0.2, 0.3, 0.4]])
TOKENS = ("the", "cat", "the", "cat")


def head_of(**attributes) -> AttentionGraph:
    return AttentionGraph.from_dense(A, TokenGraph.causal(4), tokens=TOKENS, **attributes)


WHOLE = head_of(
    layer=2,
    head=1,
    key_value_head=0,
    model="gpt2",
    weight_function="ScaledDotProduct()",
    normalizer="Softmax()",
    words=(0, None, 1, 1),
    sink=np.array([0.0, 0.5, 0.25, 0.125]),
    score=np.log(A[np.nonzero(A)]),
    contribution=3 * A[np.nonzero(A)],
    value_norm=np.arange(10.0),
)
STEP = AttentionGraph.from_dense(
    A[2:], TokenGraph.causal(2, num_keys=4, query_offset=2), tokens=TOKENS
)
CROSS = AttentionGraph.from_dense(
    A[:2, :3].astype(np.float32),
    TokenGraph.bipartite(2, 3),
    tokens=("a", "b", "a"),
    query_tokens=("x", "x"),
)
HEADS = {
    "whole": WHOLE,
    "fewer edges": WHOLE.keep(TopK(1)),
    "subgraph": WHOLE.subgraph([1, 3]),
    "merged": WHOLE.merge([(1, 3)]),
    "decoding step": STEP,
    "queries beyond the keys": AttentionGraph.from_dense(
        A[:, :3], TokenGraph.causal(4, num_keys=3), tokens=TOKENS
    ),
    "cross-attention": CROSS,
    "cross-attention of few": CROSS.subgraph(["b", "x"]),
    "cross-attention of a later query": CROSS.subgraph([1]),
    "cross-attention merged": CROSS.merge([(0, 2)], [(0, 2)]),
    "negative": replace(WHOLE, attention=-WHOLE.attention),
    "single precision": AttentionGraph.from_dense(A.astype(np.float32), tokens=TOKENS),
}


@pytest.mark.parametrize("name", HEADS)
def test_what_was_exported_comes_back_whole(name: str) -> None:
    assert_same_head(AttentionGraph.from_networkx(HEADS[name].to_networkx()), HEADS[name])


def test_edges_run_from_key_to_query() -> None:
    graph = head_of().to_networkx()
    np.testing.assert_array_equal(nx.to_numpy_array(graph, nodelist=range(4)), A.T)
    assert graph.edges[0, 3]["weight"] == 0.1
    assert (3, 0) not in graph.edges


def test_repeated_tokens_are_nodes_of_their_own() -> None:
    assert nx.get_node_attributes(head_of().to_networkx(), "token") == dict(enumerate(TOKENS))


def test_attributes_are_plain_python() -> None:
    for head in HEADS.values():
        graph = head.to_networkx()
        parts = [graph.graph, *dict(graph.nodes).values(), *(e for *_, e in graph.edges(data=True))]
        for attributes in parts:
            assert {type(value) for value in attributes.values()} <= {int, float, str, bool}
        json.dumps(nx.node_link_data(graph, edges="edges"))


def test_nodes_and_graph_carry_what_the_head_knows() -> None:
    graph = WHOLE.keep(TopK(1)).to_networkx()
    assert graph.graph == {
        "layer": 2,
        "head": 1,
        "key_value_head": 0,
        "model": "gpt2",
        "weight_function": "ScaledDotProduct()",
        "normalizer": "Softmax()",
        "keep": "TopK(1)",
        "dtype": "float64",
    }
    assert graph.nodes[2] == {
        "token": "the",
        "position": 2,
        "word": 1,
        "kept_mass": 0.5,
        "total_mass": 1.0,
        "total_edges": 3,
    }
    assert graph.edges[0, 2] == {
        "weight": 0.5,
        "score": math.log(0.5),
        "contribution": 1.5,
        "value_norm": 3.0,
    }
    assert set(head_of().to_networkx().edges[0, 2]) == {"weight"}


def test_a_sink_is_one_virtual_node() -> None:
    graph = WHOLE.to_networkx()
    assert graph.nodes[-1] == {"token": "<sink>", "position": -1, "virtual": True}
    assert [graph.edges[-1, query]["weight"] for query in range(4)] == [0.0, 0.5, 0.25, 0.125]


def test_distance_is_minus_the_logarithm() -> None:
    graph = AttentionGraph.from_dense(A, TokenGraph.complete(4)).to_networkx(distance=True)
    distance = nx.to_numpy_array(graph, weight="distance", nodelist=range(4)).T
    with np.errstate(divide="ignore"):
        np.testing.assert_allclose(distance, -np.log(A))
    with pytest.raises(GraphError, match="attention >= 0"):
        HEADS["negative"].to_networkx(distance=True)


def test_cross_attention_is_bipartite() -> None:
    graph = CROSS.to_networkx()
    assert nx.is_bipartite(graph)
    assert {graph.nodes[node]["bipartite"] for node in graph if node[0] == "key"} == {0}
    assert graph.edges[("key", 0), ("query", 1)]["weight"] == 0.25


def test_any_directed_graph_is_an_attention_graph() -> None:
    graph = nx.DiGraph()
    graph.add_weighted_edges_from([("a", "b", 0.5), ("c", "b", 1)])
    head = AttentionGraph.from_networkx(graph)
    assert head.tokens == ("a", "b", "c")
    assert head.to_dense().tolist() == [[0, 0, 0], [0.5, 0, 1], [0, 0, 0]]


def test_numbered_nodes_are_positions_in_their_order() -> None:
    graph = nx.DiGraph([(7, 2), (2, 7), (4, 2)], dtype="float32")
    nx.set_edge_attributes(graph, 1, "weight")
    head = AttentionGraph.from_networkx(graph)
    assert head.node_positions.tolist() == [2, 4, 7]
    assert head.to_dense().tolist() == [[0, 1, 1], [0, 0, 0], [1, 0, 0]]


def test_a_part_that_networkx_cut_out_is_read_as_a_part() -> None:
    whole = STEP.to_networkx()
    whole.remove_nodes_from([0, 3])
    head = AttentionGraph.from_networkx(whole)
    assert head.node_positions.tolist() == [1, 2]
    assert head.to_dense().tolist() == [[0.125, 0.375]]
    assert head.dropped_edges.tolist() == [1]


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.floats(-2, 2)), max_size=12))
@settings(max_examples=40)
def test_weighted_graphs_round_trip(edges: list[tuple[int, int, float]]) -> None:
    graph: nx.DiGraph = nx.empty_graph(6, create_using=nx.DiGraph)
    graph.add_weighted_edges_from(edges)
    again = AttentionGraph.from_networkx(graph).to_networkx()
    assert set(again.nodes) == set(graph.nodes)
    assert {e: a["weight"] for e, a in again.edges.items()} == {
        e: a["weight"] for e, a in graph.edges.items()
    }


OTHERS = {
    nx.Graph: "a Graph is undirected, but attention runs one way",
    nx.MultiDiGraph: "a MultiDiGraph may have several edges per pair",
    nx.MultiGraph: "a MultiGraph may have several edges per pair",
    list: r"read from a nx\.DiGraph; this is of type list",
}


@pytest.mark.parametrize("kind", OTHERS)
def test_other_kinds_of_graphs_are_refused(kind: type) -> None:
    graph = kind([(0, 1)])
    if kind is not list:
        nx.set_edge_attributes(graph, 1.0, "weight")
    with pytest.raises(GraphError, match=OTHERS[kind]):
        AttentionGraph.from_networkx(graph)


def test_edges_without_attention_are_refused() -> None:
    graph = nx.DiGraph([("a", "b", {"attention": 0.25}), ("c", "b", {"attention": 0.75})])
    with pytest.raises(GraphError, match=r"\('a', 'b'\) has no attribute 'weight'.*'attention'"):
        AttentionGraph.from_networkx(graph)
    head = AttentionGraph.from_networkx(graph, weight="attention")
    assert head.to_dense().tolist() == [[0, 0, 0], [0.25, 0, 0.75], [0, 0, 0]]
    del graph.edges["c", "b"]["attention"]
    with pytest.raises(GraphError, match=r"\('c', 'b'\) has no .* it has no attributes"):
        AttentionGraph.from_networkx(graph, weight="attention")


def test_a_sink_is_no_token_and_has_an_edge_to_each_query() -> None:
    graph = WHOLE.to_networkx()
    allowed = TokenGraph.from_networkx(graph)
    np.testing.assert_array_equal(allowed.mask(), WHOLE.to_dense() != 0)
    del graph.edges[-1, 1]["weight"]
    with pytest.raises(GraphError, match=r"\(-1, 1\) has no attribute 'weight'"):
        AttentionGraph.from_networkx(graph)
    graph.remove_edge(-1, 1)
    with pytest.raises(GraphError, match="no edge to query 1"):
        AttentionGraph.from_networkx(graph)


@pytest.mark.parametrize(
    ("edge", "node", "attributes", "message"),
    [
        ({"weight": "much"}, {}, {}, "weight of the edge .* must be a real number"),
        ({"weight": 1.0, "score": [2]}, {}, {}, "score of the edge .* must be a real number"),
        (
            {"weight": 1.0, "contribution": "long"},
            {},
            {},
            "contribution of the edge",
        ),
        ({"weight": 1.0}, {"total_mass": "all"}, {}, "total_mass must hold numbers"),
        ({}, {}, {"dtype": "object"}, "dtype must be float16, float32 or float64, not 'object'"),
    ],
)
def test_attributes_that_are_no_numbers_are_refused(edge, node, attributes, message) -> None:
    graph: nx.DiGraph = nx.DiGraph(**attributes)
    graph.add_node(1, **node)
    graph.add_edge(0, 1, **edge)
    with pytest.raises(GraphError, match=message):
        AttentionGraph.from_networkx(graph)


def test_numbers_that_only_some_edges_have_are_not_read() -> None:
    graph = WHOLE.to_networkx()
    del graph.edges[0, 1]["contribution"]
    head = AttentionGraph.from_networkx(graph)
    assert list(head.edge_values) == ["attention", "score", "value_norm"]


def test_lengths_that_are_negative_are_refused() -> None:
    graph = nx.DiGraph([(0, 1, {"weight": 1.0, "value_norm": -1.0})])
    with pytest.raises(CaptureError, match=r"value_norm of query 1 to key 0 is -1\.0"):
        AttentionGraph.from_networkx(graph)


def test_weights_that_are_not_finite_are_refused() -> None:
    graph = nx.DiGraph([(0, 1, {"weight": math.nan})])
    with pytest.raises(CaptureError, match="query 1 to key 0 is nan"):
        AttentionGraph.from_networkx(graph)


def test_attention_that_was_rounded_above_one_has_no_negative_length() -> None:
    graph = AttentionGraph.from_dense(np.array([[np.float32(1) + np.finfo(np.float32).eps]]))
    (distance,) = (d for *_, d in graph.to_networkx(distance=True).edges.data("distance"))
    assert distance == 0


@pytest.mark.parametrize("wrong", [None, "0.5", True, 1j, [0.5]], ids=repr)
def test_attention_that_is_no_number_is_refused_with_its_edge(wrong) -> None:
    graph = nx.DiGraph()
    graph.add_edge(0, 1, weight=0.5)
    graph.add_edge(0, 2, weight=wrong)
    with pytest.raises(GraphError, match=r"weight of the edge \(0, 2\) must be a real number"):
        AttentionGraph.from_networkx(graph)
    graph.edges[0, 2]["weight"] = np.float32(0.5)
    assert AttentionGraph.from_networkx(graph).graph.num_edges == 2


@pytest.mark.parametrize("settings", [{}, {"self_loops": False}, {"distance": True}], ids=str)
@pytest.mark.parametrize("name", [name for name in HEADS if name != "negative"])
def test_edges_are_as_networkx_would_add_them(name: str, settings: dict[str, bool]) -> None:
    head = HEADS[name]
    graph = head.to_networkx(**settings)
    known = nx.DiGraph()
    known.add_nodes_from(graph.nodes(data=True))
    rows = zip(head.key, head.query, *head.edge_values.values(), strict=True)
    names = ["weight" if one == "attention" else one for one in head.edge_values]
    keys, queries = head.node_ids()
    for key, query, *values in rows:
        ends = [keys[key], queries[query]]
        if head.graph.is_bipartite:
            ends = [("key", ends[0]), ("query", ends[1])]
        elif ends[0] == ends[1] and not settings.get("self_loops", True):
            continue
        known.add_edge(*ends, **dict(zip(names, map(float, values), strict=True)))
    if head.sink is not None:
        known.add_weighted_edges_from((-1, *pair) for pair in zip(queries, head.sink, strict=True))
    if settings.get("distance"):
        for *_, facts in known.edges(data=True):
            facts["distance"] = -math.log(facts["weight"]) if facts["weight"] else math.inf
    assert list(graph.edges(data=True)) == list(known.edges(data=True))
    assert list(graph.in_edges(data=True)) == list(known.in_edges(data=True))
    assert_usable(graph)


def assert_usable(graph: nx.DiGraph) -> None:
    """A graph that was filled can be changed as any other."""
    own = {id(facts) for *_, facts in graph.edges(data=True)}
    assert len(own) == graph.number_of_edges() > 0
    source, target = next(iter(graph.edges))
    graph.edges[source, target]["new"] = 1
    assert graph.pred[target][source]["new"] == 1
    graph.remove_edge(source, target)
    assert not graph.has_edge(source, target)
    assert source not in graph.pred[target]
    graph.remove_node(target)
    assert target not in graph


@pytest.mark.parametrize(
    "graph",
    [
        TokenGraph.causal(6),
        TokenGraph.causal(2, num_keys=5, query_offset=3),
        TokenGraph.bipartite(2, 3),
        TokenGraph.from_edge_index([[2, 0, 1], [1, 1, 0]], 3),
    ],
    ids=str,
)
def test_edges_of_token_graphs_are_as_networkx_would_add_them(graph: TokenGraph) -> None:
    built = graph.to_networkx()
    pairs = [
        (key, query + graph.query_offset)
        for key, query in zip(*graph.edge_index.tolist(), strict=True)
    ]
    if graph.is_bipartite:
        pairs = [(("key", key), ("query", query)) for key, query in pairs]
    known = nx.DiGraph()
    known.add_nodes_from(built)
    known.add_edges_from(pairs)
    assert list(built.edges(data=True)) == list(known.edges(data=True))
    assert list(built.in_edges(data=True)) == list(known.in_edges(data=True))
    assert_usable(built)
