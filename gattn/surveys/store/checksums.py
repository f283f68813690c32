"""Checksums of a survey's files, stored in the files themselves.

Parquet's own checksums cover only pages, and DuckDB and polars ignore them, while a flipped bit may
be in a header, a statistic or the footer. So the SHA-256 of all other bytes of a file stands right
before its footer, where no reader of Parquet looks. Rewriting the file drops it.
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
"""After this many nanoseconds, writing a file again surely changes its time of change."""


class Once:
    """Remembers which files were checked, until they change."""

    def __init__(self) -> None:
        self._known: dict[Path, tuple[int, ...]] = {}

    def is_new(self, path: Path) -> bool:
        """Return whether a file must be checked: it is new, has changed, or may have changed."""
        stat = path.stat()
        state = stat.st_mtime_ns, stat.st_ctime_ns, stat.st_size, stat.st_ino
        is_settled = time.time_ns() - stat.st_ctime_ns > _SETTLED
        if is_settled and self._known.get(path) == state:
            return False
        if is_settled:
            self._known[path] = state
        return True

    def forget(self, path: Path) -> None:
        """Have a file checked again next time."""
        self._known.pop(path, None)


_checked = Once()


def sign(path: Path) -> None:
    """Add its checksum to a Parquet file."""
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
    """Verify the checksum of a file, once per process unless the file changes.

    A wrong or missing one raises pyarrow.ArrowInvalid. Surveys written by earlier versions of gattn
    have no checksums, not even in the manifest.
    """
    if not _checked.is_new(path):
        return
    if (place := _place(path)) is None:
        if _is_of_signed(path):
            _checked.forget(path)
            raise pa.ArrowInvalid(
                "it is damaged: its checksum is missing; if you rewrote the file yourself, remove "
                "the 'sha256' of manifest.json"
            )
        return
    with path.open("rb") as file:
        file.seek(place)
        found = file.read(_SIZE)
    if found != _digest(path, place):
        _checked.forget(path)
        raise pa.ArrowInvalid("it is damaged: its checksum does not match")


def _is_of_signed(path: Path) -> bool:
    """Return whether the files of this survey have checksums, as its manifest then does."""
    manifest = path.parent.parent / "manifest.json"
    return manifest.is_file() and b'"sha256"' in manifest.read_bytes()


def _place(path: Path) -> int | None:
    """Find where the checksum of a file begins."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(size - 8, 0))
        footer = int.from_bytes(file.read(4), "little") + 8 + len(_MARK) + _SIZE
        start = file.seek(max(size - max(footer, _LEAST_FOOTER), 0))
        found = file.read().rfind(_MARK)
    place = start + found + len(_MARK)
    return None if found < 0 or place + _SIZE > size else place


def _digest(path: Path, place: int) -> bytes:
    """Hash a file except for its checksum."""
    digest = sha256()
    with path.open("rb") as file:
        while chunk := file.read(min(place - file.tell(), _CHUNK)):
            digest.update(chunk)
        file.seek(place + _SIZE)
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest().encode()
