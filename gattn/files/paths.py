"""Saves and loads; a path's suffix says what kind of file it is."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import uuid4

from gattn.errors import FileError
from gattn.files import archive, exports, graphml, node_link
from gattn.head import AttentionGraph
from gattn.trace import AttentionTrace

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
UNNAMED = ".gattn-"
"""How the names of files begin that are not whole yet."""


def save(thing: Thing, path: str | os.PathLike[str]) -> None:
    """Write a file of the kind its suffix says. The file appears whole or not at all.

    Parameters
    ----------
    thing : AttentionGraph, AttentionTrace or networkx.DiGraph
        What to save, such as a head, a trace or an unrolled graph.
    path : path
        ``.gattn`` holds heads and traces, without logits; ``.json`` (node-link) and ``.graphml``
        hold heads and directed graphs; all three `load` back whole. ``.gexf``, ``.dot``, ``.gv``
        and ``.csv`` are exports of the same for other tools.

    Raises
    ------
    FileError
        Where the suffix is unknown, or cannot hold such a thing.
    """
    path = Path(path)
    writer = _WRITERS.get(path.suffix.lower())
    if writer is None:
        known = [".gattn"] if isinstance(thing, AttentionTrace) else list(_WRITERS)
        raise FileError(f"{path}: the suffix must be one of {', '.join(known)}.")
    if isinstance(thing, AttentionTrace) and writer is not archive.write:
        raise FileError(
            f"{path}: a trace is saved as .gattn; for {path.suffix} save one head, as in "
            f"trace[1, 3].save({path.name!r})."
        )
    with whole_file(path) as part:
        writer(thing, part)


def load(path: str | os.PathLike[str]) -> Thing:
    """Read what `save` wrote, or any directed graph in ``.json`` (node-link) or ``.graphml``.

    Raises
    ------
    FileError
        Where the file is missing, damaged, foreign, newer than this gattn, or a one-way export.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in _READERS:
        one_way = " is an export for other tools; it" if suffix in _WRITERS else ""
        raise FileError(f"{path}{one_way} cannot be loaded; gattn loads {', '.join(_READERS)}.")
    if not path.is_file():
        found = "it is a folder" if path.is_dir() else f"there is none in {path.parent.absolute()}"
        raise FileError(f"{path}: expected a file, but {found}.")
    thing: Thing = _READERS[suffix](path)
    return thing


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Give a path to write to, which replaces `path` once it is written and on the disk."""
    path = path.resolve()
    if path.is_dir() or not path.parent.is_dir():
        place = f"{path} is a folder" if path.is_dir() else f"there is no folder {path.parent}"
        raise FileError(f"Cannot write {path.name}: {place}.")
    part = path.with_name(f"{UNNAMED}{uuid4().hex}.part")
    try:
        part.touch()
        mode = part.stat().st_mode
        yield part
        part.chmod(mode)
        with part.open("rb+") as written:
            os.fsync(written.fileno())
        part.replace(path)
        sync_folder(path.parent)
    finally:
        part.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Make sure that the names in a folder are on the disk, where its file system can."""
    if os.name == "posix":
        with suppress(OSError):
            descriptor = os.open(folder, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
