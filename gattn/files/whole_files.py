"""Writes files that appear complete or not at all."""

from __future__ import annotations

import errno
import os
import platform
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from hashlib import sha256
from pathlib import Path
from uuid import uuid4

from safetensors import SafetensorError

from gattn.errors import FileError

UNNAMED = ".gattn-"
"""How the names of unfinished files begin."""
_LONG_AGO = 86_400
"""After how many seconds such a file from another machine counts as a leftover."""


def as_path(given: str | os.PathLike[str], example: str = "lamp.gattn") -> Path:
    """Read a path that a caller gave; an error names one as an example."""
    try:
        path = Path(given)
    except TypeError as error:
        raise FileError(
            f"A path must be a str or a pathlib.Path, such as {example!r}, not {given!r:.80}."
        ) from error
    check_name(path)
    return path


def check_name(path: Path) -> None:
    """Refuse a path that no file can have."""
    if "\0" in str(path):
        raise FileError(f"{str(path)!r} is not a valid file name: it contains a NUL.")


def kind_of(path: Path) -> str:
    """Return what a path names: "file", something else, or "" if nothing exists there."""
    if not path.exists():
        return (
            f"it is a link to {path.readlink()}, which does not exist" if path.is_symlink() else ""
        )
    if path.is_file():
        return "file"
    return "it is a folder" if path.is_dir() else "it is a device or a pipe"


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Return a temporary path to write to, which replaces `path` once it is on disk.

    An existing file keeps its mode and owner, and is unchanged if writing fails. A link stays a
    link.
    """
    check_name(path)
    try:
        target = path.resolve()
        if target.is_symlink():
            raise FileError(f"{path} cannot be written: it is a link to itself.")
        found = kind_of(target)
        if found not in ("", "file") or not target.parent.is_dir():
            place = (
                found.replace("it", str(target), 1) or f"the folder {target.parent} does not exist"
            )
            way_out = "Save elsewhere." if found else _WAYS_OUT[errno.ENOENT]
            raise FileError(f"Cannot write {target.name}: {place}. {way_out}")
        remove_leftovers(target.parent)
    except (OSError, RuntimeError, ValueError) as error:
        if isinstance(error, FileError):
            raise
        raise FileError(f"{shown_path(path)} cannot be written: {reason_of(error)}.") from error
    try:
        with replacing(target) as part:
            yield part
    except (OSError, SafetensorError) as error:
        raise FileError(
            f"{shown_path(path)} cannot be written: {reason_of(error)}. {_way_out(error)}"
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
    """Give the file the other's owner, and return a mode that lets nobody else read it."""
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


def shown_path(path: Path) -> str:
    """Write a path of bounded length, without control characters."""
    name = str(path)
    shown = "".join(one if one.isprintable() else repr(one)[1:-1] for one in name[:200])
    return shown + (" ..." if len(name) > 200 else "")


def reason_of(error: Exception) -> str:
    """Return what the system says about an error, or its message."""
    return getattr(error, "strerror", None) or str(error)


_WAYS_OUT = {
    errno.ENOSPC: "Make room, or save elsewhere.",
    errno.EDQUOT: "Make room, or save elsewhere.",
    errno.ENAMETOOLONG: "Use a shorter name.",
    errno.ENOENT: "Make the folder first, or save elsewhere.",
}


def _way_out(error: Exception) -> str:
    """Return what to do about an error of writing."""
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
