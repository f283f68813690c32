"""GraphML, as NetworkX, Gephi, yEd and igraph read it.

XML cannot hold control characters and turns carriage returns into newlines, so texts are escaped
(`gattn.files.plain.escape`), and node ids are written as Python literals.
"""

from __future__ import annotations

from ast import literal_eval
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import ParseError
from xml.parsers import expat

import networkx as nx

from gattn.errors import FileError
from gattn.files.digraphs import directed, is_marked, mapped, marked, unmarked
from gattn.files.plain import escape, node_id, scalar, unescape
from gattn.head import AttentionGraph

_TAKEN = {"id", "node_default", "edge_default"}


def write(thing: AttentionGraph | nx.DiGraph[Any], path: Path) -> None:
    """Write a head or directed graph as GraphML."""
    graph = mapped(marked(thing), lambda node: repr(node_id(node)), _xml_value)
    if taken := _TAKEN & set(graph.graph):
        raise FileError(
            f"GraphML keeps the names {sorted(taken)} for itself: rename these graph attributes."
        )
    nx.write_graphml_xml(graph, path)


def _xml_value(value: Any) -> Any:
    value = scalar(value)
    if isinstance(value, str):
        return escape(value)
    if isinstance(value, bool | int | float):
        return value
    raise FileError(f"GraphML holds numbers and texts, not {value!r}: remove or rename it.")


def read(path: Path) -> AttentionGraph | nx.DiGraph[Any]:
    """Read GraphML."""
    _refuse_document_types(path)
    try:
        graph = directed(nx.read_graphml(path), path)
        for name in ("node_default", "edge_default"):
            graph.graph.pop(name, None)
        if is_marked(graph):
            graph = mapped(graph, _node, _restored)
    except FileError:
        raise
    except (ValueError, KeyError, SyntaxError, ParseError, nx.NetworkXError) as error:
        raise FileError(
            f"{path} is not GraphML, or is damaged ({type(error).__name__}: {error})."
        ) from error
    return unmarked(graph, path)


def _node(written: str) -> Any:
    try:
        node = literal_eval(written)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as error:
        raise FileError(f"{written[:80]!r} is not the id of a node as gattn writes it.") from error
    return node_id(node)


def _restored(value: Any) -> Any:
    return unescape(value) if isinstance(value, str) else value


def _refuse_document_types(path: Path) -> None:
    """Refuse XML that declares entities, which can grow without bound as they are read."""

    def refuse(*_: Any) -> None:
        raise FileError(f"{path} declares a document type; GraphML needs none: remove <!DOCTYPE>.")

    parser = expat.ParserCreate()
    parser.StartDoctypeDeclHandler = refuse
    try:
        with path.open("rb") as file:
            parser.ParseFile(file)
    except expat.ExpatError as error:
        raise FileError(f"{path} is not GraphML, or is damaged: {error}.") from error
