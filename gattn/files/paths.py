"""Saves and loads files; the suffix of the path says the format."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from gattn.errors import FileError
from gattn.files import archive, exports, graphml, node_link
from gattn.files.whole_files import as_path, kind_of, reason_of, shown_path, whole_file
from gattn.heads.head import AttentionGraph
from gattn.heads.trace import AttentionTrace

if TYPE_CHECKING:
    import networkx as nx

    Thing: TypeAlias = AttentionGraph | AttentionTrace | nx.DiGraph[Any]
_WRITERS: dict[str, Callable[[Any, Path], None]] = {
    ".gattn": archive.write,
    ".json": node_link.write,
    ".graphml": graphml.write,
    ".gexf": exports.write_gexf,
    ".dot": exports.write_dot,
    ".gv": exports.write_dot,
    ".csv": exports.write_csv,
}
_READERS: dict[str, Callable[[Path], Any]] = {
    ".gattn": archive.read,
    ".json": node_link.read,
    ".graphml": graphml.read,
}


def save(thing: Thing, path: str | os.PathLike[str]) -> None:
    """Write a file in the format of its suffix. It appears complete or not at all.

    Parameters
    ----------
    thing : AttentionGraph, AttentionTrace or networkx.DiGraph
        What to save, such as a head, a trace or an unrolled graph.
    path : path
        ``.gattn`` holds heads and traces, without logits; ``.json`` (node-link) and ``.graphml``
        hold heads and directed graphs; `load` reads all three. ``.gexf``, ``.dot``, ``.gv`` and
        ``.csv`` are exports of heads and directed graphs for other tools.

    Raises
    ------
    FileError
        If the suffix is unknown, or its format cannot hold such a thing.
    """
    path = as_path(path)
    writer = _WRITERS.get(path.suffix.lower())
    if writer is None:
        known = [".gattn"] if isinstance(thing, AttentionTrace) else list(_WRITERS)
        raise FileError(f"{path}: the suffix must be one of {', '.join(known)}.")
    if isinstance(thing, AttentionTrace) and writer is not archive.write:
        raise FileError(
            f"{path}: a trace is saved as .gattn; as {path.suffix} save one head, as in "
            f"trace[1, 3].save({path.name!r})."
        )
    with whole_file(path) as part:
        writer(thing, part)


def load(path: str | os.PathLike[str]) -> Thing:
    """Read a file from `save`, or any directed graph in ``.json`` (node-link) or ``.graphml``.

    Parameters
    ----------
    path : str or path
        The file; its ending says which format it has.

    Returns
    -------
    AttentionTrace, AttentionGraph or networkx.DiGraph
        What was saved; another tool's graph as a DiGraph, which `AttentionGraph.from_networkx`
        reads.

    Raises
    ------
    FileError
        If the file is missing, damaged, foreign, newer than this gattn, or a one-way export.
    """
    path = as_path(path)
    suffix = path.suffix.lower()
    if suffix not in _READERS:
        one_way = " is an export for other tools; it" if suffix in _WRITERS else ""
        raise FileError(f"{path}{one_way} cannot be loaded; gattn loads {', '.join(_READERS)}.")
    try:
        found = kind_of(path)
        thing: Thing | None = _READERS[suffix](path) if found == "file" else None
    except (OSError, RuntimeError, ValueError) as error:
        if isinstance(error, FileError):
            raise
        raise FileError(f"{shown_path(path)} cannot be read: {reason_of(error)}.") from error
    if thing is None:
        found = found or f"there is none in {path.parent.absolute()}"
        raise FileError(f"{shown_path(path)}: expected a file, but {found}.")
    return thing
