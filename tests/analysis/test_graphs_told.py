"""What graphs of analyses say of themselves in one line."""

import re

import gattn
from gattn import AttentionGraph
from gattn.analysis import arborescence, routes

TEXT = "The river tall green lamp river tall green lamp river tall green"


def test_routes_say_where_they_lead():
    found = routes(TEXT, progress=False)
    assert repr(found) == (
        f"Routes({found.computed_from}; to position 12 “green”, which predicts “␣lamp”; "
        f"{len(found)} nodes, {found.number_of_edges()} edges)"
    )
    part = found.subgraph([found.end])
    assert repr(part).endswith("; 1 node, 0 edges)")
    del found.graph["position"]
    assert "to position" not in repr(found)


def test_layers_and_trees_say_how_large_they_are():
    unrolled = gattn.capture(TEXT).unroll()
    sizes = f"{len(unrolled)} nodes, {unrolled.number_of_edges()} edges"
    assert repr(unrolled) == f"Unrolled({unrolled.computed_from}; {sizes})"
    assert re.search("; rollout; 65 nodes, ", repr(unrolled.rollout(query=3)))
    tree = arborescence(AttentionGraph.from_dense([[0.0, 1], [0.5, 0.5]], tokens=["a", "b"]))
    assert repr(tree) == f"Tree({tree.computed_from}; 2 nodes, {tree.number_of_edges()} edge)"
    assert repr(type(tree)()) == "Tree(0 nodes, 0 edges)"
