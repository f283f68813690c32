"""Checksums of a survey's files, each in the file itself.

Parquet's own are of pages alone, and neither DuckDB nor polars looks at them; a flipped bit may as
well be in a header, a statistic or the footer. So the SHA-256 of all other bytes of a file stands
right before its footer, where no reader of Parquet looks. It goes when the file is written anew.
"""

from __future__ import annotations

import os
import time
from hashlib import sha256
from pathlib import Path

import pyarrow as pa

_MARK = b"gattn.sha256="
_SIZE = 64
_CHUNK = _LEAST_FOOTER = 1 << 16
_SETTLED = 2_000_000_000
"""The nanoseconds after which a file that is written again has another time of change."""


class Once:
    """Remembers which files were checked, until they are changed."""

    def __init__(self) -> None:
        self._known: dict[Path, tuple[int, ...]] = {}

    def is_new(self, path: Path) -> bool:
        """Say whether a file was not checked as it is now, or was changed so lately that it may be.

        Raises
        ------
        OSError
            Where there is no such file.
        """
        stat = path.stat()
        state = stat.st_mtime_ns, stat.st_ctime_ns, stat.st_size, stat.st_ino
        is_settled = time.time_ns() - stat.st_ctime_ns > _SETTLED
        if is_settled and self._known.get(path) == state:
            return False
        if is_settled:
            self._known[path] = state
        return True

    def forget(self, path: Path) -> None:
        """Check a file again the next time."""
        self._known.pop(path, None)


_checked = Once()


def sign(path: Path) -> None:
    """Put its checksum into a file of Parquet that has none."""
    with path.open("rb+") as file:
        file.seek(-8, os.SEEK_END)
        size = int.from_bytes(file.read(4), "little") + 8
        place = file.seek(-size, os.SEEK_END)
        footer = file.read()
        file.seek(place)
        file.write(_MARK + b"0" * _SIZE + footer)
        file.flush()
        digest = _digest(path, place + len(_MARK))
        file.seek(place + len(_MARK))
        file.write(digest)


def check_file(path: Path) -> None:
    """Hold a file against its checksum, once in a process while it is not changed.

    Files of a survey that an earlier gattn wrote have none, and neither has its manifest.

    Raises
    ------
    pyarrow.ArrowInvalid
        Where it does not have its checksum.
    OSError
        Where it cannot be read.
    """
    if not _checked.is_new(path):
        return
    if (place := _place(path)) is None:
        if _is_of_signed(path):
            _checked.forget(path)
            raise pa.ArrowInvalid(
                "it is damaged: its checksum is not there; if you wrote it anew yourself, remove "
                "the 'sha256' of manifest.json"
            )
        return
    with path.open("rb") as file:
        file.seek(place)
        found = file.read(_SIZE)
    if found != _digest(path, place):
        _checked.forget(path)
        raise pa.ArrowInvalid("it is damaged: it does not have its checksum")


def _is_of_signed(path: Path) -> bool:
    """Say whether the survey that a file is of was written with checksums, as its manifest was."""
    manifest = path.parent.parent / "manifest.json"
    return manifest.is_file() and b'"sha256"' in manifest.read_bytes()


def _place(path: Path) -> int | None:
    """Find where in a file its checksum stands."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(size - 8, 0))
        footer = int.from_bytes(file.read(4), "little") + 8 + len(_MARK) + _SIZE
        start = file.seek(max(size - max(footer, _LEAST_FOOTER), 0))
        found = file.read().rfind(_MARK)
    place = start + found + len(_MARK)
    return None if found < 0 or place + _SIZE > size else place


def _digest(path: Path, place: int) -> bytes:
    """Digest all of a file but its checksum."""
    digest = sha256()
    with path.open("rb") as file:
        while chunk := file.read(min(place - file.tell(), _CHUNK)):
            digest.update(chunk)
        file.seek(place + _SIZE)
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest().encode()
