"""The inputs of a survey: texts from files, tables or Python, one at a time."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import pyarrow as pa

from gattn.errors import FileError
from gattn.surveys.inputs.files import InputFile, find_files, is_uri, rows_of
from gattn.surveys.inputs.formats import Rows, check_columns, table_rows
from gattn.surveys.inputs.rows import RowError, metadata_of, row_of


@dataclass(frozen=True)
class InputText:
    """One text of a survey, or its token ids, or the reason why there are neither.

    `text_id` counts the rows of the whole input from 0, and `metadata` is a JSON object of a row's
    other columns.
    """

    text_id: int
    text: str | None = None
    input_ids: Sequence[int] | None = None
    decoder_input_ids: Sequence[int] | None = None
    metadata: str = "{}"
    reason: str | None = None


class Inputs:
    """A stream of texts that restarts with each loop over it.

    Parameters
    ----------
    rows : callable
        Starts the stream.
    column : str
        The column that holds the texts.
    description : str
        The source, in a few words.
    fingerprint : str, optional
        Identifies these inputs, if that is known without reading them.
    walks_once : bool
        Whether `rows` can be called only once.
    most : int, optional
        The most texts to read.
    """

    def __init__(
        self,
        rows: Callable[[], Rows],
        column: str,
        description: str,
        *,
        fingerprint: str | None = None,
        walks_once: bool = False,
        most: int | None = None,
    ) -> None:
        self.description = description
        self.walks_once = walks_once
        self._rows = rows
        self._column = column
        self._known = fingerprint
        self._most = most
        self._read: str | None = None

    def __iter__(self) -> Iterator[InputText]:
        """Read the texts, one at a time.

        Raises
        ------
        FileError
            If a file is damaged, there are no texts at all, or an iterator is used up.
        """
        if self.walks_once and self._read is not None:
            raise FileError(
                f"{self.description} can be read only once: pass a list of texts, or files."
            )
        digest, self._read = hashlib.sha256(), ""
        text = None
        for text_id, (where, value) in enumerate(islice(self._rows(), self._most)):
            text = _input_text(text_id, where, value, self._column)
            digest.update(_content(text))
            yield text
        if text is None:
            raise FileError(f"Expected at least one text, but {self.description} holds none.")
        self._read = digest.hexdigest()

    @property
    def fingerprint(self) -> str:
        """A digest that identifies these inputs.

        For files it is made of their names and sizes; for anything else of the content, which is
        read now if it was not read before.
        """
        if self._known is not None:
            return self._known
        if not self._read:
            for _ in self:
                pass
        return self._read or ""

    def first(self, most: int | None) -> Inputs:
        """Return only the first texts; all of them if `most` is None."""
        if most is None:
            return self
        return Inputs(
            self._rows,
            self._column,
            self.description,
            fingerprint=self._known,
            walks_once=self.walks_once,
            most=most if self._most is None else min(most, self._most),
        )


def read_inputs(texts: Any, column: str = "text") -> Inputs:
    """Turn anything that holds texts into a stream of them.

    Parameters
    ----------
    texts : iterable, table, path or list of paths
        An iterable of texts, of rows or of sequences of token ids; a pandas or polars DataFrame or
        a pyarrow Table; or files, as `read_files` takes them. A single string must name a file, a
        folder, a glob or a URI; strings in a list are texts, and files are given as paths.
        Rows are mappings. They are read from ``input_ids`` (and ``decoder_input_ids``) if they have
        them, without the padding that the attention mask marks, and otherwise from `column`; all
        other columns are metadata.
    column : str
        The column that holds the texts.

    Raises
    ------
    FileError
        If a file does not exist or has an unknown format, or `texts` holds no texts.
    """
    if isinstance(texts, str):
        return _read_named(texts, column)
    if isinstance(texts, os.PathLike):
        return read_files([texts], column)
    if isinstance(texts, list | tuple) and texts:
        if all(isinstance(text, os.PathLike) for text in texts):
            return read_files(texts, column)
        if all(isinstance(text, str) and os.path.isfile(text) for text in texts):
            raise FileError(
                f"{texts[0]!r} and the others are names of files, but strings in a list are texts: "
                "pass files as paths, as in [pathlib.Path(name) for name in names]."
            )
    elif hasattr(texts, "__arrow_c_stream__") and hasattr(texts, "columns"):
        return _read_table(texts, column)
    if isinstance(texts, bytes | Mapping) or not isinstance(texts, Iterable):
        raise FileError(
            "Expected an iterable of texts, rows or sequences of token ids, a table, or paths, not "
            f"{_kind(texts)}."
        )
    return Inputs(
        lambda: ((f"text {n}", text) for n, text in enumerate(texts)),
        column,
        f"the {_kind(texts)}",
        walks_once=iter(texts) is texts,
    )


def read_files(paths: Sequence[str | os.PathLike[str]], column: str = "text") -> Inputs:
    """Read texts from files.

    Parameters
    ----------
    paths : sequence of paths
        Files, folders with files at any depth, globs (``*``, ``?`` and ``[ab]``, none of which
        crosses a ``/``) and URIs such as ``s3://``. The files of a folder or a glob are sorted.
        Files are Parquet (``.parquet``, ``.pq``), Arrow (``.arrow``, ``.feather``), or lines in
        UTF-8: ``.jsonl`` and ``.ndjson`` with an object, a text or a list of ids per line, ``.csv``
        and ``.tsv`` with a header, and ``.txt`` with a text per line. Files of lines may be
        compressed (``.gz``, ``.bz2``, ``.xz``, ``.zst``); blank lines are skipped. Folders may hold
        other files, which are ignored, as are files that begin with ``.`` or ``_``.
    column : str
        The column that holds the texts.

    Raises
    ------
    FileError
        If there is no such file, or its format is unknown.
    """
    files = find_files(paths)
    names = [file.name for file in files]
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3:,} more" if len(names) > 3 else "")
    return Inputs(
        lambda: (row for file in files for row in rows_of(file, column)),
        column,
        shown,
        fingerprint=_fingerprint(files, column),
    )


def _read_named(path: str, column: str) -> Inputs:
    try:
        return read_files([path], column)
    except FileError as error:
        if is_uri(path) or os.path.exists(path):
            raise
        raise FileError(
            f"Expected a list of texts, or an existing path, not {path[:60]!r}: pass a single text "
            "in a list."
        ) from error


def _read_table(table: Any, column: str) -> Inputs:
    name = f"the {_kind(table)}"
    return Inputs(lambda: _table_rows(name, table, column), column, name)


def _table_rows(name: str, table: Any, column: str) -> Rows:
    try:
        batches = pa.RecordBatchReader.from_stream(table)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise FileError(
            f"{name} cannot be read as a table: {error}. Pass its rows instead, as in "
            "frame.to_dict('records')."
        ) from error
    check_columns(name, batches.schema.names, column)
    yield from table_rows(name, batches)


def _input_text(text_id: int, where: str, value: Any, column: str) -> InputText:
    try:
        if isinstance(value, RowError):
            raise value
        return InputText(text_id, *row_of(value, column))
    except RowError as error:
        return InputText(text_id, metadata=metadata_of(value, column), reason=f"{where}: {error}.")


def _content(text: InputText) -> bytes:
    ids = (text.input_ids, text.decoder_input_ids)
    return json.dumps([text.text, *ids, text.metadata, text.reason]).encode()


def _kind(thing: Any) -> str:
    kind = type(thing)
    package = kind.__module__.partition(".")[0]
    return kind.__name__ if package == "builtins" else f"{package} {kind.__name__}"


def _fingerprint(files: Sequence[InputFile], column: str) -> str:
    sizes = [(os.path.basename(file.name), file.size) for file in files]
    return hashlib.sha256(json.dumps([column, sizes]).encode()).hexdigest()
