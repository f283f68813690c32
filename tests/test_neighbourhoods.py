"""Ragged neighbourhoods: their order, where they lie, and as padded rows."""

import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gattn.graph.rules.neighbourhoods import Neighbourhoods, padded_rows
from gattn.graph.token_graph import TokenGraph


@given(st.lists(st.integers(0, 6), max_size=40))
@settings(max_examples=40)
def test_every_edge_stands_once_in_the_row_of_its_query(queries: list[int]) -> None:
    queries = sorted(queries)
    query = torch.tensor(queries, dtype=torch.long)
    seen: list[int] = []
    for edges, present, _ in padded_rows(query, 8):
        assert edges[~present].eq(0).all()
        for row, there in zip(edges.tolist(), present.tolist(), strict=True):
            own = [edge for edge, is_edge in zip(row, there, strict=True) if is_edge]
            assert own == [e for e, q in enumerate(queries) if q == queries[own[0]]]
            seen += own
        assert edges.numel() < 2 * present.sum()
    assert sorted(seen) == list(range(len(queries)))


def test_no_edges_give_no_rows() -> None:
    assert list(padded_rows(torch.zeros(0, dtype=torch.long), 3)) == []


def test_edges_are_sorted_by_query_and_know_how_they_were_given() -> None:
    query, key = torch.tensor([2, 0, 2, 0]), torch.tensor([1, 1, 0, 0])
    edges = Neighbourhoods.from_pairs(query, key, 3, 2)
    assert (edges.pointer.tolist(), edges.key.tolist()) == ([0, 2, 2, 4], [1, 0, 1, 0])
    assert edges.order is not None
    assert torch.equal(key[edges.order], edges.key)
    back = edges.reversed
    assert back.order is not None
    assert torch.equal(edges.query[back.order], back.key)
    assert edges.rows(slice(1, 3)).order.tolist() == [0, 2]


@pytest.mark.parametrize(
    "graph", [TokenGraph.from_edges([(0, 2), (4, 1)], 5), TokenGraph.causal(5)]
)
def test_what_moved_to_another_device_is_kept_there_but_not_pickled(graph: TokenGraph) -> None:
    meta = torch.device("meta")
    assert graph.neighbourhoods.to(torch.device("cpu")) is graph.neighbourhoods
    assert graph.neighbourhoods.to(meta) is graph.neighbourhoods.to(meta)
    assert graph.neighbourhoods.to(meta).key.is_meta
    again = pickle.loads(pickle.dumps(graph))
    assert set(vars(again)) == {"rule", "num_queries", "num_keys", "query_offset"} | {
        "is_bipartite",
        "is_reordered",
    }
    assert torch.equal(again.edge_index, graph.edge_index)


def test_a_list_of_edges_shares_its_memory_with_its_rule() -> None:
    graph = TokenGraph.from_edges([(0, 2), (4, 1)], 5)
    assert graph.neighbourhoods.key.data_ptr() == graph.rule.key.data_ptr()
    assert set(vars(pickle.loads(pickle.dumps(graph.rule)))) == {"pointer", "key", "first_query"}
