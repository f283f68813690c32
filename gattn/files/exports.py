r"""One-way exports for other tools: GEXF for Gephi, DOT for Graphviz, CSV for tables.

Control characters and lone surrogates, which these tools cannot show, are written as
\u and four digits.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import networkx as nx
from networkx.readwrite.gexf import GEXFWriter

from gattn.edit_records import from_text
from gattn.errors import FileError
from gattn.files.digraphs import as_digraph, mapped
from gattn.files.plain import printable, scalar
from gattn.heads.head import AttentionGraph

_READ_BY_GRAPHVIZ = ("layer", "layers", "model")
"""Attributes that Graphviz would read as instructions."""


def write_gexf(thing: AttentionGraph | nx.DiGraph[Any], path: Path) -> None:
    """Write a head or directed graph as GEXF, with each node labelled by its token."""
    graph = _labelled(thing)
    try:
        writer = GEXFWriter(encoding="utf-8", prettyprint=True)
        writer.add_graph(graph)
        if edits := _edits(thing):
            ElementTree.SubElement(writer.xml.find("meta"), "description").text = edits
        with path.open("wb") as file:
            writer.write(file)
    except (TypeError, nx.NetworkXError) as error:
        raise FileError(f"GEXF cannot hold this graph: {error}.") from error


def write_dot(thing: AttentionGraph | nx.DiGraph[Any], path: Path) -> None:
    """Write a head or directed graph as DOT, with each node labelled by its token."""
    graph = _labelled(thing)
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.write("digraph {\n")
        file.writelines(f"  {_dot_pair(n, v)};\n" for n, v in graph.graph.items())
        for node, attributes in graph.nodes(data=True):
            file.write(f"  {_quoted(node)}{_dot_list(attributes)};\n")
        for source, target, attributes in graph.edges(data=True):
            file.write(f"  {_quoted(source)} -> {_quoted(target)}{_dot_list(attributes)};\n")
        file.write("}\n")


def write_csv(thing: AttentionGraph | nx.DiGraph[Any], path: Path) -> None:
    """Write the edges of a head or directed graph as a table; the model's edits are a column.

    Tokens are not escaped. A spreadsheet treats those that start with ``=``, ``+``, ``-`` or ``@``
    as formulas: import such columns as text, or read the file with pandas.
    """
    if isinstance(thing, AttentionGraph):
        table = thing.to_pandas()
        for name in ("query_token", "key_token"):
            table[name] = [printable(token) for token in table[name]]
    else:
        table = nx.to_pandas_edgelist(mapped(as_digraph(thing), _text, _value))
    if edits := _edits(thing):
        table["edits"] = edits
    table.to_csv(path, index=False, encoding="utf-8")


def _edits(thing: AttentionGraph | nx.DiGraph[Any]) -> str:
    """Name all edits that the model ran with; "" if it had none."""
    if isinstance(thing, AttentionGraph):
        return printable("; ".join(map(str, thing.edits)))
    edits = thing.graph.get("edits", "")
    with suppress(TypeError, ValueError):  # else another program wrote them
        edits = "; ".join(map(str, from_text(edits)))
    return printable(str(edits))


def _labelled(thing: AttentionGraph | nx.DiGraph[Any]) -> nx.DiGraph[Any]:
    graph = mapped(as_digraph(thing), _text, _value)
    for _, attributes in graph.nodes(data=True):
        if "token" in attributes:
            attributes.setdefault("label", attributes["token"])
    return graph


def _text(node: Any) -> str:
    return printable(str(node))


def _value(value: Any) -> Any:
    value = scalar(value)
    return value if isinstance(value, bool | int | float) else printable(str(value))


def _quoted(value: Any) -> str:
    escaped = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _dot_pair(name: str, value: Any) -> str:
    own = f"attention_{name}" if name in _READ_BY_GRAPHVIZ else name
    return f"{_quoted(own)}={_quoted(value)}"


def _dot_list(attributes: dict[str, Any]) -> str:
    pairs = (_dot_pair(name, value) for name, value in attributes.items())
    return f" [{', '.join(pairs)}]" if attributes else ""
