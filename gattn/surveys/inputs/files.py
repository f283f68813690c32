"""Finds files of texts, by paths, folders, globs and URIs."""

from __future__ import annotations

import lzma
import os
import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import pyarrow as pa
import pyarrow.fs

from gattn.errors import FileError
from gattn.surveys.inputs.formats import SUFFIXES, Rows, kinds, rows_in

_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_WILDCARD = re.compile(r"[*?\[]")
_PATIENCE = 10
"""How many seconds to try network storage, in each of two steps."""
_DAMAGES = (pa.ArrowException, OSError, EOFError, UnicodeError, zlib.error, lzma.LZMAError)


class InputFile(NamedTuple):
    """A file to read, in a file system of pyarrow."""

    name: str
    size: int
    filesystem: pyarrow.fs.FileSystem


def is_uri(path: str) -> bool:
    """Return whether a path is a URI."""
    return bool(_URI.match(path))


def find_files(paths: Sequence[str | os.PathLike[str]]) -> list[InputFile]:
    """Find the files that paths, folders, globs and URIs name; those of each are sorted."""
    found = [file for path in paths for file in _found(os.fspath(path))]
    if not found:
        raise FileError("Expected at least one file to read texts from, got none.")
    return found


def rows_of(file: InputFile, column: str) -> Rows:
    """Read a file row by row."""
    with _readable(file.name):
        yield from rows_in(file.name, file.filesystem, column)


def _found(path: str) -> list[InputFile]:
    filesystem, place = _place(path)
    with _readable(path):
        here = filesystem.get_file_info(place)
        if here.type == pyarrow.fs.FileType.File:
            kinds(place)
            return [InputFile(place, here.size, filesystem)]
        if here.type == pyarrow.fs.FileType.Directory:
            infos = [i for i in _listed(filesystem, place, recursive=True) if _is_known(i.path)]
            wanted = f"expected a file with one of the suffixes {SUFFIXES}"
        elif _WILDCARD.search(place):
            infos = _matches(filesystem, place)
            wanted = "expected a file that it matches"
        else:
            raise FileError(f"{path}: expected a file or folder, but there is none.")
    if not infos:
        raise FileError(f"{path} names no file: {wanted}.")
    for info in infos:
        kinds(info.path)
    return [InputFile(info.path, info.size, filesystem) for info in infos]


def _place(path: str) -> tuple[pyarrow.fs.FileSystem, str]:
    if not is_uri(path):
        return pyarrow.fs.LocalFileSystem(), Path(path).as_posix()
    with _readable(path):
        filesystem, place = pyarrow.fs.FileSystem.from_uri(_patient(path))
        return filesystem, place


def _patient(uri: str) -> str:
    """Limit how long to try Google Cloud Storage, which otherwise takes minutes to fail."""
    if not uri.startswith(("gs://", "gcs://")) or "retry_limit_seconds=" in uri:
        return uri
    return f"{uri}{'&' if '?' in uri else '?'}retry_limit_seconds={_PATIENCE}"


def _listed(
    filesystem: pyarrow.fs.FileSystem, folder: str, *, recursive: bool
) -> list[pyarrow.fs.FileInfo]:
    """List the files of a folder, except hidden ones and those such as ``_SUCCESS``."""
    selector = pyarrow.fs.FileSelector(folder, recursive=recursive)
    infos = [
        info
        for info in filesystem.get_file_info(selector)
        if info.type == pyarrow.fs.FileType.File
        and not any(
            part.startswith((".", "_"))
            for part in PurePosixPath(info.path).relative_to(folder).parts
        )
    ]
    return sorted(infos, key=lambda info: str(info.path))


def _matches(filesystem: pyarrow.fs.FileSystem, pattern: str) -> list[pyarrow.fs.FileInfo]:
    parts = PurePosixPath(pattern).parts
    first = next(n for n, part in enumerate(parts) if _WILDCARD.search(part))
    folder, rest = PurePosixPath(*parts[:first]).as_posix(), parts[first:]
    if filesystem.get_file_info(folder).type != pyarrow.fs.FileType.Directory:
        return []
    found = []
    for info in _listed(filesystem, folder, recursive=len(rest) > 1):
        names = PurePosixPath(info.path).relative_to(folder).parts
        if len(names) == len(rest) and all(map(fnmatchcase, names, rest)):
            found.append(info)
    return found


@contextmanager
def _readable(name: str) -> Iterator[None]:
    try:
        yield
    except _DAMAGES as error:
        fault = error.strerror if isinstance(error, OSError) and error.strerror else error
        way_out = "Check the network and your access" if is_uri(name) else "Repair it"
        raise FileError(
            f"{name} cannot be read: {fault!s:.500}. {way_out}, or leave it out, and run again."
        ) from error


def _is_known(path: str) -> bool:
    try:
        return bool(kinds(path))
    except FileError:
        return False
