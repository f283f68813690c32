"""Reads each format of files of texts, a few rows at a time."""

from __future__ import annotations

import bz2
import codecs
import csv
import gzip
import io
import json
import lzma
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import PurePosixPath
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq

from gattn.errors import FileError
from gattn.surveys.inputs.rows import RowError

_LONGEST_LINE = 1 << 26
_ROWS = 64

Rows: TypeAlias = "Iterator[tuple[str, Any]]"
"""Where each row is, and the row, or a `RowError` in its place."""


def kinds(path: str) -> tuple[str, str]:
    """Return the format and the compression of a file from its suffixes, or refuse it."""
    suffixes = [suffix.lower() for suffix in PurePosixPath(path).suffixes]
    packing = suffixes.pop() if suffixes and suffixes[-1] in _STREAMS else ""
    kind = suffixes[-1] if suffixes else ""
    if kind in _LINES or (kind in _TABLES and not packing):
        return kind, packing
    hint = " If it has one object per line, rename it to .jsonl." if kind == ".json" else ""
    raise FileError(f"{path}: the suffix must be one of {SUFFIXES}.{hint}")


def rows_in(name: str, filesystem: pyarrow.fs.FileSystem, column: str) -> Rows:
    """Read a file row by row."""
    kind, packing = kinds(name)
    if kind in _TABLES:
        with filesystem.open_input_file(name) as source:
            schema, batches = _TABLES[kind](source)
            check_columns(name, schema.names, column)
            yield from table_rows(name, batches)
    else:
        with (
            filesystem.open_input_stream(name, compression=None) as packed,
            _STREAMS[packing](packed) as stream,
        ):
            yield from _LINES[kind](name, stream, column)


def table_rows(name: str, batches: Iterable[pa.RecordBatch]) -> Rows:
    """Turn batches of columns into rows, a few at a time."""
    row = 0
    for batch in batches:
        for start in range(0, len(batch), _ROWS):
            for value in _values(batch.slice(start, _ROWS)):
                row += 1
                yield f"{name}, row {row}", value


def check_columns(name: str, columns: Sequence[str], column: str) -> None:
    """Check that a table has a single column of texts, or ids."""
    if list(columns).count(column) > 1:
        raise FileError(f"{name} has several columns {column!r}: rename all but one.")
    if column not in columns and "input_ids" not in columns:
        shown = ", ".join(map(repr, columns[:20]))
        raise FileError(
            f"{name} has no column {column!r} or 'input_ids', only {shown}: say which column holds "
            "the texts."
        )


def _values(batch: pa.RecordBatch) -> list[Any]:
    try:
        return list(batch.to_pylist())
    except (ValueError, OverflowError, pa.ArrowException) as error:
        if len(batch) == 1:
            return [RowError(f"its columns cannot be read: {error}")]
        return [value for n in range(len(batch)) for value in _values(batch.slice(n, 1))]


def _parquet(source: pa.NativeFile) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    # Otherwise a whole row group is read at once, which may be the whole file.
    file = pq.ParquetFile(source, pre_buffer=False, buffer_size=1 << 20)
    return file.schema_arrow, file.iter_batches(batch_size=_ROWS)


def _arrow(source: pa.NativeFile) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    try:
        file = pa.ipc.open_file(source)
    except pa.ArrowInvalid:
        source.seek(0)
        stream = pa.ipc.open_stream(source)
        return stream.schema, iter(stream)
    return file.schema, map(file.get_batch, range(file.num_record_batches))


def _lines(name: str, stream: io.BufferedIOBase) -> Iterator[tuple[int, bytes]]:
    number = 0
    while line := stream.readline(_LONGEST_LINE + 1):
        number += 1
        if len(line) > _LONGEST_LINE:
            raise FileError(
                f"{name}: line {number} has more than {_LONGEST_LINE:,} bytes. Does the suffix fit "
                "the format of the file? Shorten the line, or leave the file out."
            )
        yield number, line.removeprefix(codecs.BOM_UTF8) if number == 1 else line


def _json_rows(name: str, stream: io.BufferedIOBase, column: str) -> Rows:
    for number, line in _lines(name, stream):
        if line.strip():
            yield f"{name}, line {number}", _parsed(line)


def _parsed(line: bytes) -> Any:
    try:
        return json.loads(line.decode())
    except json.JSONDecodeError as error:
        return RowError(f"expected one JSON object or text: {error.msg} at character {error.pos}")
    except (ValueError, RecursionError) as error:
        return RowError(f"expected one JSON object or text in UTF-8: {error}")


def _text_rows(name: str, stream: io.BufferedIOBase, column: str) -> Rows:
    for number, line in _lines(name, stream):
        if line.strip():
            yield f"{name}, line {number}", _decoded(line.removesuffix(b"\n").removesuffix(b"\r"))


def _decoded(line: bytes) -> str | RowError:
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        return RowError(f"expected a text in UTF-8: {error}")


def _csv_rows(name: str, stream: io.BufferedIOBase, column: str, delimiter: str) -> Rows:
    # Python's own limit is 131,072 characters per field, for the whole interpreter.
    csv.field_size_limit(max(csv.field_size_limit(), _LONGEST_LINE))
    # Invalid UTF-8 becomes lone surrogates, which are refused in texts as everywhere.
    lines = (line.decode("utf-8", "surrogateescape") for _, line in _lines(name, stream))
    records = _csv_records(name, csv.reader(lines, delimiter=delimiter, strict=True))
    where, header = next(records, ("", []))
    if isinstance(header, RowError):
        raise FileError(f"{where} should be the header, but {header}.")
    if header:
        check_columns(name, header, column)
    for where, fields in records:
        yield where, _csv_row(header, fields)


def _csv_records(name: str, reader: Any) -> Iterator[tuple[str, list[str] | RowError]]:
    while True:
        try:
            fields: list[str] | RowError = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            fields = RowError(f"this is not a row of CSV: {error}")
        if fields:
            yield f"{name}, line {reader.line_num}", fields


def _csv_row(header: list[str], fields: list[str] | RowError) -> Any:
    if isinstance(fields, RowError) or len(fields) == len(header):
        return fields if isinstance(fields, RowError) else dict(zip(header, fields, strict=True))
    return RowError(f"expected {len(header)} fields, like the header, not {len(fields)}")


def _zstd(source: pa.NativeFile) -> io.BufferedReader:
    return io.BufferedReader(pa.CompressedInputStream(source, "zstd"))


_STREAMS: dict[str, Callable[[Any], Any]] = {
    "": io.BufferedReader,
    ".gz": lambda source: gzip.GzipFile(fileobj=source),
    ".bz2": bz2.BZ2File,
    ".xz": lzma.LZMAFile,
    ".zst": _zstd,
}
_LINES: dict[str, Callable[[str, Any, str], Rows]] = {
    ".jsonl": _json_rows,
    ".ndjson": _json_rows,
    ".csv": partial(_csv_rows, delimiter=","),
    ".tsv": partial(_csv_rows, delimiter="\t"),
    ".txt": _text_rows,
}
_TABLES: dict[str, Callable[[Any], tuple[pa.Schema, Iterator[pa.RecordBatch]]]] = {
    ".parquet": _parquet,
    ".pq": _parquet,
    ".arrow": _arrow,
    ".feather": _arrow,
}
SUFFIXES = ", ".join([*_TABLES, *_LINES]) + " (the last five also with .gz, .bz2, .xz or .zst)"
