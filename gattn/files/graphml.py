"""GraphML, as NetworkX, Gephi, yEd and igraph read it.

XML cannot hold control characters and turns carriage returns into newlines, so text is escaped
(`gattn.files.plain.escape`), and node ids are written as Python literals.
"""

from __future__ import annotations

import re
from ast import literal_eval
from hashlib import sha256
from pathlib import Path
from typing import Any
from xml.parsers import expat

import networkx as nx

from gattn.errors import FileError
from gattn.files.digraphs import check_ends, directed, is_marked, mapped, marked, unmarked
from gattn.files.plain import DEEPEST_ID, escape, node_id, scalar, unescape
from gattn.heads.head import AttentionGraph

_TAKEN = {"id", "node_default", "edge_default"}
_DIGEST = re.compile(rb"[0-9a-f]{64} -->\s*\Z")
_CHECKSUM = b"<!-- gattn sha256:%s -->"
_DEEPEST = 100
_ESCAPE = r"\\(?:[\\'\"nrt]|x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8})"
_TEXT = rf"""'(?:[^'\\]|{_ESCAPE})*'|"(?:[^"\\]|{_ESCAPE})*\""""
_PART = re.compile(rf"\ *(?:True|False|-?[0-9]+|{_TEXT}|(?P<sign>[(),]))")


def write(thing: AttentionGraph | nx.DiGraph[Any], path: Path) -> None:
    """Write a head or directed graph as GraphML."""
    graph = mapped(marked(thing), lambda node: repr(node_id(node)), _xml_value)
    if taken := _TAKEN & set(graph.graph):
        raise FileError(
            f"GraphML reserves the names {sorted(taken)}: rename these graph attributes."
        )
    nx.write_graphml_xml(graph, path)
    with path.open("ab+") as file:
        file.seek(0)
        file.write(_checksum(file.read()) + b"\n")


def _checksum(content: bytes) -> bytes:
    """Write the checksum of a file as a comment; line endings do not count."""
    lines = content.rstrip().replace(b"\r\n", b"\n")
    return _CHECKSUM % sha256(lines).hexdigest().encode()


def _xml_value(value: Any) -> Any:
    value = scalar(value)
    if isinstance(value, str):
        return escape(value)
    if isinstance(value, bool | int | float):
        return value
    raise FileError(
        f"GraphML holds numbers and text, not {value!r}: remove or convert this attribute."
    )


def read(path: Path) -> AttentionGraph | nx.DiGraph[Any]:
    """Read GraphML, and verify its checksum if gattn wrote one."""
    try:
        _check(path, path.read_bytes())
        graph = directed(nx.read_graphml(path), path)
        for name in ("node_default", "edge_default"):
            graph.graph.pop(name, None)
        if is_marked(graph):
            graph = mapped(graph, _node, _restored)
        return unmarked(graph, path)
    except (FileError, OSError):
        raise
    except Exception as error:  # Foreign files can fail in any way.
        raise FileError(
            f"{path} is not GraphML, or is damaged ({type(error).__name__}: {error!s:.400})."
        ) from error


def _check(path: Path, content: bytes) -> None:
    place = max(content.rfind(b"<!--"), 0)
    # Found by its form, since its name may be damaged.
    if _DIGEST.search(content[place:]) and content[place:].strip() != _checksum(content[:place]):
        raise FileError(
            f"{path} is damaged: its checksum does not match. If you changed the file yourself, "
            "remove the comment at its end."
        )
    _walk(path, content)


def _node(written: str) -> Any:
    """Read an id from its Python literal: an int, a str, or a tuple of these."""
    levels: list[list[Any]] = [[]]
    place, wants_part = 0, True
    while place < len(written):
        found = _PART.match(written, place)
        sign = found["sign"] if found else "?"
        if sign == ")" and len(levels) > 1:
            levels[-2].append(tuple(levels.pop()))
        elif sign == "(" and wants_part and len(levels) <= DEEPEST_ID:
            levels.append([])
        elif found and sign is None and wants_part:
            levels[-1].append(_part(found[0].strip()))
        elif sign != "," or wants_part or len(levels) == 1:
            break
        place = found.end() if found else place
        wants_part = sign in ("(", ",")
    if place < len(written) or [len(level) for level in levels] != [1]:
        raise FileError(f"{written[:80]!r} is not the id of a node as gattn writes it.")
    return levels[0][0]


def _part(written: str) -> int | str:
    if written in ("True", "False"):
        return written == "True"
    text: int | str = literal_eval(written) if written[0] in "'\"" else int(written)
    return text


def _restored(value: Any) -> Any:
    return unescape(value) if isinstance(value, str) else value


def _walk(path: Path, content: bytes) -> None:
    """Refuse XML with entities, which can grow without bound, deep nesting, or missing nodes."""
    depth = 0
    nodes: set[str] = set()
    edges: list[tuple[str, str]] = []

    def refuse(*_: Any) -> None:
        raise FileError(
            f"{path} declares a document type, which GraphML does not need: remove <!DOCTYPE>."
        )

    def start(name: str, attributes: dict[str, str]) -> None:
        nonlocal depth
        depth += 1
        if depth > _DEEPEST:
            raise FileError(f"{path} is not GraphML: its elements are nested {depth} deep.")
        kind = name.rpartition(":")[2]
        if kind == "node":
            nodes.add(attributes["id"])
        elif kind == "edge":
            edges.append((attributes["source"], attributes["target"]))

    def end(*_: Any) -> None:
        nonlocal depth
        depth -= 1

    parser = expat.ParserCreate()
    parser.StartDoctypeDeclHandler = refuse
    parser.StartElementHandler, parser.EndElementHandler = start, end
    try:
        parser.Parse(content, True)
    except expat.ExpatError as error:
        is_bytes = content.startswith(b"<") and content[1:2] != b"\0"  # not UTF-16
        if is_bytes and (b"\0" in content or b"&#0;" in content):
            raise FileError(
                f"{path} is not GraphML: it holds a NUL, which XML cannot; gattn writes it as "
                f"\\u0000 ({error})."
            ) from error
        raise
    check_ends(path, nodes, edges)
