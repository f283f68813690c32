"""What it means that a head, a trace or a graph came back."""

from dataclasses import fields

import networkx as nx
import numpy as np

from gattn.heads.head import AttentionGraph
from gattn.heads.trace import AttentionTrace

SIZES = ("num_queries", "num_keys", "query_offset", "is_bipartite")


def assert_same_head(one: AttentionGraph, other: AttentionGraph) -> None:
    """Equal bit for bit, up to the form of the token graph."""
    for field in fields(AttentionGraph):
        left, right = getattr(one, field.name), getattr(other, field.name)
        if field.name == "graph":
            for name in SIZES:
                assert getattr(left, name) == getattr(right, name), name
            np.testing.assert_array_equal(left.edge_index, right.edge_index)
        elif isinstance(left, np.ndarray):
            assert (left.dtype, left.tobytes()) == (right.dtype, right.tobytes()), field.name
        else:
            assert left == right, field.name


def assert_same_trace(one: AttentionTrace, other: AttentionTrace) -> None:
    assert (one.model, one.text, one.generated) == (other.model, other.text, other.generated)
    places = [{name: sorted(stack) for name, stack in x.stacks.items()} for x in (one, other)]
    assert places[0] == places[1]
    for name, stack in other.stacks.items():
        for place, head in stack.items():
            assert_same_head(one[name][place], head)


def assert_same_graph(one: nx.DiGraph, other: nx.DiGraph) -> None:
    assert type(other) is nx.DiGraph
    assert list(one.nodes(data=True)) == list(other.nodes(data=True))
    assert sorted(one.edges(data=True), key=repr) == sorted(other.edges(data=True), key=repr)
    assert one.graph == other.graph
