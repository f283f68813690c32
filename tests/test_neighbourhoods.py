"""Ragged neighbourhoods as padded rows."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gattn.graph.neighbourhoods import padded_rows


@given(st.lists(st.integers(0, 6), max_size=40))
@settings(max_examples=40)
def test_every_edge_stands_once_in_the_row_of_its_query(queries: list[int]) -> None:
    queries = sorted(queries)
    query = torch.tensor(queries, dtype=torch.long)
    seen: list[int] = []
    for edges, present in padded_rows(query, 8):
        assert edges[~present].eq(0).all()
        for row, there in zip(edges.tolist(), present.tolist(), strict=True):
            own = [edge for edge, is_edge in zip(row, there, strict=True) if is_edge]
            assert own == [e for e, q in enumerate(queries) if q == queries[own[0]]]
            seen += own
        assert edges.numel() < 2 * present.sum()
    assert sorted(seen) == list(range(len(queries)))


def test_no_edges_give_no_rows() -> None:
    assert list(padded_rows(torch.zeros(0, dtype=torch.long), 3)) == []
