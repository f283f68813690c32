"""Node-link JSON, as NetworkX and D3 read it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import networkx as nx

from gattn.errors import FileError
from gattn.files.digraphs import directed, mapped, marked, unmarked
from gattn.files.plain import from_json, node_id, to_json
from gattn.head import AttentionGraph


def write(thing: AttentionGraph | nx.DiGraph[Any], path: Path) -> None:
    """Write a head or directed graph as node-link JSON."""
    graph = mapped(marked(thing), node_id, to_json)
    _refuse_taken_names(graph)
    document = nx.node_link_data(graph, edges="edges")
    for node in document["nodes"]:
        node["id"] = _id(node["id"])
    for edge in document["edges"]:
        edge["source"], edge["target"] = _id(edge["source"]), _id(edge["target"])
    with path.open("w", encoding="ascii") as file:
        json.dump(document, file, allow_nan=False)


def _id(node: Any) -> Any:
    """Write an id, a tuple as a list, which is how NetworkX reads it."""
    return [_id(part) for part in node] if isinstance(node, tuple) else to_json(node)


def _node(written: Any) -> Any:
    """Undo `_id`; of the ids of edges, NetworkX restores only the outermost tuple."""
    return tuple(map(_node, written)) if isinstance(written, list) else written


def _refuse_taken_names(graph: nx.DiGraph[Any]) -> None:
    names = {name for _, attributes in graph.nodes(data=True) for name in attributes} & {"id"}
    edge_names = {name for *_, attributes in graph.edges(data=True) for name in attributes}
    if taken := names | (edge_names & {"source", "target"}):
        raise FileError(
            f"Node-link JSON keeps the names {sorted(taken)} for itself: rename these attributes."
        )


def read(path: Path) -> AttentionGraph | nx.DiGraph[Any]:
    """Read node-link JSON."""
    try:
        with path.open(encoding="utf-8") as file:
            document = json.load(file, object_hook=from_json)
        links = "edges" if "edges" in document else "links"
        for edge in document[links]:
            edge["source"], edge["target"] = _node(edge["source"]), _node(edge["target"])
        graph = directed(nx.node_link_graph(document, edges=links), path)
    except FileError:
        raise
    except (
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        RecursionError,
        nx.NetworkXError,
    ) as error:
        raise FileError(
            f"{path} is not node-link JSON, or is damaged ({type(error).__name__}: {error}); "
            "expected an object with nodes and edges."
        ) from error
    return unmarked(graph, path)
