"""Saves and loads files; the suffix of the path says the format."""

from __future__ import annotations

import errno
import os
import platform
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import uuid4

from safetensors import SafetensorError

from gattn.errors import FileError
from gattn.files import archive, exports, graphml, node_link
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
UNNAMED = ".gattn-"
"""How the names of unfinished files begin."""
_LONG_AGO = 86_400
"""After how many seconds such a file from another machine counts as a leftover."""


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
    path = _as_path(path)
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

    Raises
    ------
    FileError
        If the file is missing, damaged, foreign, newer than this gattn, or a one-way export.
    """
    path = _as_path(path)
    suffix = path.suffix.lower()
    if suffix not in _READERS:
        one_way = " is an export for other tools; it" if suffix in _WRITERS else ""
        raise FileError(f"{path}{one_way} cannot be loaded; gattn loads {', '.join(_READERS)}.")
    try:
        found = _kind_of(path)
        thing: Thing | None = _READERS[suffix](path) if found == "file" else None
    except (OSError, RuntimeError, ValueError) as error:
        if isinstance(error, FileError):
            raise
        raise FileError(f"{_shown(path)} cannot be read: {_reason(error)}.") from error
    if thing is None:
        found = found or f"there is none in {path.parent.absolute()}"
        raise FileError(f"{_shown(path)}: expected a file, but {found}.")
    return thing


def _as_path(path: str | os.PathLike[str]) -> Path:
    try:
        made = Path(path)
    except TypeError as error:
        raise FileError(f"A path must be a str or a pathlib.Path, not {path!r:.80}.") from error
    _check_name(made)
    return made


def _check_name(path: Path) -> None:
    if "\0" in str(path):
        raise FileError(f"{str(path)!r} is not a valid file name: it contains a NUL.")


def _kind_of(path: Path) -> str:
    """Say what a path names: "file", something else, or "" if nothing exists there."""
    if not path.exists():
        return (
            f"it is a link to {path.readlink()}, which does not exist" if path.is_symlink() else ""
        )
    if path.is_file():
        return "file"
    return "it is a folder" if path.is_dir() else "it is a device or a pipe"


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Give a temporary path to write to, which replaces `path` once it is on disk.

    An existing file keeps its mode and owner, and is unchanged if writing fails. A link stays a
    link.
    """
    _check_name(path)
    try:
        target = path.resolve()
        if target.is_symlink():
            raise FileError(f"{path} cannot be written: it is a link to itself.")
        found = _kind_of(target)
        if found not in ("", "file") or not target.parent.is_dir():
            place = (
                found.replace("it", str(target), 1) or f"the folder {target.parent} does not exist"
            )
            raise FileError(f"Cannot write {target.name}: {place}.")
        remove_leftovers(target.parent)
    except (OSError, RuntimeError, ValueError) as error:
        if isinstance(error, FileError):
            raise
        raise FileError(f"{_shown(path)} cannot be written: {_reason(error)}.") from error
    try:
        with replacing(target) as part:
            yield part
    except (OSError, SafetensorError) as error:
        raise FileError(
            f"{_shown(path)} cannot be written: {_reason(error)}. {_way_out(error)}"
        ) from error


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Do what `whole_file` does, for a path without links, with the errors of the system."""
    part = path.with_name(f"{UNNAMED}{_here()}-{os.getpid()}-{uuid4().hex[:12]}.part")
    before = path.stat() if path.exists() else None
    try:
        mode = 0o666 if before is None else 0o600
        os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode))
        mode = part.stat().st_mode
        yield part
        with part.open("rb+") as written:
            os.fsync(written.fileno())
        part.chmod(stat.S_IMODE(mode if before is None else _same_owner(part, before)))
        part.replace(path)
        sync_folder(path.parent)
    finally:
        part.unlink(missing_ok=True)


def _same_owner(part: Path, before: os.stat_result) -> int:
    """Give a file the owner of another, and return a mode that lets nobody else read it."""
    own = part.stat()
    if (own.st_uid, own.st_gid) != (before.st_uid, before.st_gid):
        try:
            os.chown(part, before.st_uid, before.st_gid)
        except OSError:
            return before.st_mode & ~stat.S_IRWXG
    return before.st_mode


def remove_leftovers(folder: Path) -> None:
    """Remove unfinished files of saves that were killed, on this machine or long ago."""
    for name in os.listdir(folder):
        if name.startswith(UNNAMED) and name.endswith(".part"):
            with suppress(OSError):
                if _is_left_over(folder / name):
                    (folder / name).unlink()


def _is_left_over(part: Path) -> bool:
    here, _, rest = part.name.removeprefix(UNNAMED).partition("-")
    process = rest.partition("-")[0]
    if here == _here() and process.isdecimal():
        return not _is_running(int(process))
    return time.time() - part.stat().st_mtime > _LONG_AGO


def _is_running(process: int) -> bool:
    if os.name != "posix":
        return True  # only POSIX has a signal that does nothing
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


@cache
def _here() -> str:
    """Identify this machine, since its last start, and this namespace of processes."""
    parts = [platform.node()]
    for place in ("/proc/sys/kernel/random/boot_id", "/proc/self/ns/pid"):
        with suppress(OSError):
            is_link = os.path.islink(place)
            parts.append(os.readlink(place) if is_link else Path(place).read_text())
    return sha256(" ".join(parts).encode()).hexdigest()[:8]


def _shown(path: Path) -> str:
    name = str(path)
    shown = "".join(one if one.isprintable() else repr(one)[1:-1] for one in name[:200])
    return shown + (" ..." if len(name) > 200 else "")


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


_WAYS_OUT = {
    errno.ENOSPC: "Make room, or save elsewhere.",
    errno.EDQUOT: "Make room, or save elsewhere.",
    errno.ENAMETOOLONG: "Use a shorter name.",
    errno.ENOENT: "Make the folder first, or save elsewhere.",
}


def _way_out(error: Exception) -> str:
    """Say what to do about an error of writing."""
    number = getattr(error, "errno", None) or 0
    if number in (errno.EACCES, errno.EPERM, errno.EROFS):
        return (
            "To replace a file safely, a new one is written next to it and renamed, so the folder "
            "must allow new files. Save elsewhere, or make the folder writable."
        )
    return _WAYS_OUT.get(number, "Make room, or save elsewhere.")


def sync_folder(folder: Path) -> None:
    """Make sure that the names in a folder are on disk, if its file system can."""
    if os.name == "posix":
        with suppress(OSError):
            descriptor = os.open(folder, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
