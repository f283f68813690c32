"""Node-link JSON, as NetworkX and D3 read it."""

from __future__ import annotations

import json
import re
from hashlib import sha256
from pathlib import Path
from typing import Any

import networkx as nx

from gattn.errors import FileError
from gattn.files.digraphs import check_ends, directed, mapped, marked, unmarked
from gattn.files.plain import DEEPEST_ID, from_json, node_id, parsed, to_json
from gattn.heads.head import AttentionGraph

_CHECKSUM = "sha256"
_DIGEST = re.compile("[0-9a-f]{64}")


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
        json.dump(document | {_CHECKSUM: _checksum(document)}, file, allow_nan=False)


def _checksum(document: dict[str, Any]) -> str:
    """Hash the content, whatever its layout."""
    canonical = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return sha256(canonical.encode()).hexdigest()


def _id(node: Any) -> Any:
    """Write an id; a tuple becomes a list, as NetworkX expects."""
    return [_id(part) for part in node] if isinstance(node, tuple) else to_json(node)


def _node(written: Any, depth: int = DEEPEST_ID) -> Any:
    """Undo `_id`; in edges, NetworkX restores only the outermost tuple."""
    if not isinstance(written, list):
        return written
    if not depth:
        raise ValueError(f"a node's id is nested more than {DEEPEST_ID} deep")
    return tuple(_node(part, depth - 1) for part in written)


def _refuse_taken_names(graph: nx.DiGraph[Any]) -> None:
    names = {name for _, attributes in graph.nodes(data=True) for name in attributes} & {"id"}
    edge_names = {name for *_, attributes in graph.edges(data=True) for name in attributes}
    if taken := names | (edge_names & {"source", "target"}):
        raise FileError(
            f"Node-link JSON reserves the names {sorted(taken)}: rename these attributes."
        )


def read(path: Path) -> AttentionGraph | nx.DiGraph[Any]:
    """Read node-link JSON, and verify its checksum if gattn wrote one."""
    try:
        text = path.read_text(encoding="utf-8")
        _check(path, parsed(text))
        document = parsed(text, hook=from_json)
        document.pop(_CHECKSUM, None)
        links = "edges" if "edges" in document else "links"
        for edge in document[links]:
            edge["source"], edge["target"] = _node(edge["source"]), _node(edge["target"])
        for node in document["nodes"]:
            node["id"] = _node(node["id"])
        nodes = {node["id"] for node in document["nodes"]}
        check_ends(path, nodes, ((edge["source"], edge["target"]) for edge in document[links]))
        graph = nx.node_link_graph(document, edges=links)
        return unmarked(directed(graph, path), path)
    except (FileError, OSError):
        raise
    except Exception as error:  # Foreign files can fail in any way.
        raise FileError(
            f"{path} is not node-link JSON, or is damaged ({type(error).__name__}: {error!s:.400}):"
            " expected an object with nodes and edges."
        ) from error


def _check(path: Path, document: dict[str, Any]) -> None:
    """Verify the checksum, which is found by its form, since its name may be damaged."""
    texts = {name: value for name, value in document.items() if isinstance(value, str)}
    forms = {name for name, text in texts.items() if _DIGEST.fullmatch(text)}
    found = forms | (document.keys() & {_CHECKSUM})
    for checksum in map(document.pop, found):
        if checksum != _checksum(document):
            raise FileError(
                f"{path} is damaged: its checksum does not match. If you changed the file "
                f"yourself, remove its {_CHECKSUM!r}."
            )
