"""Finds the rows of a text in a survey, or says why there are none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from gattn.errors import FileError, SelectionError
from gattn.surveys.store import queue
from gattn.surveys.store.parts import part_of, part_path, parts_in, read_rows
from gattn.surveys.store.schemas import LISTS
from gattn.surveys.store.tables import check_table

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    Rows: TypeAlias = dict[str, pa.Table]
    """The rows of each table."""

_ANYWHERE: Mapping[str, Any] = MappingProxyType({})


def rows_of(folder: Path, text_id: int, place: Mapping[str, Any] = _ANYWHERE) -> Rows:
    """Read the rows of a text, of all its heads or of those at a place, or say why it has none."""
    first = part_of(parts_in(folder), text_id)
    texts = _row(folder, "texts", first, text_id)
    if first is None or texts is None:
        raise SelectionError(_why_missing(folder, first, text_id))
    of_text = [("text_id", "=", text_id)]
    of_place = of_text + [(name, "=", value) for name, value in place.items()]
    rows = {"texts": texts}
    for name in LISTS:
        path = part_path(folder, name, first)
        check_table(name, path)
        rows[name] = read_rows(path, filters=of_text if name == "tokens" else of_place)
    return rows


def all_rows(folder: Path) -> Iterator[tuple[int, Rows]]:
    """Iterate over all texts and their rows, with one part in memory at a time."""
    for first in parts_in(folder):
        check_table("texts", part_path(folder, "texts", first))
        texts = read_rows(part_path(folder, "texts", first))
        if not len(texts):
            continue
        for name in LISTS:
            check_table(name, part_path(folder, name, first))
        tables = {name: read_rows(part_path(folder, name, first)) for name in LISTS}
        tables["texts"] = texts
        numbers = {name: table["text_id"].to_numpy() for name, table in tables.items()}
        for name, column in numbers.items():
            least = 1 if name == "texts" else 0
            if tables[name]["text_id"].null_count or (np.diff(column) < least).any():
                raise FileError(
                    f"{part_path(folder, name, first)}: its text_id are out of order; write the "
                    "survey again."
                )
        for text_id in texts["text_id"].to_pylist():
            yield (
                text_id,
                {name: _cut(table, numbers[name], text_id) for name, table in tables.items()},
            )


def _cut(table: pa.Table, numbers: NDArray[np.int64], text_id: int) -> pa.Table:
    """Slice a text's rows from those of its part, which are sorted."""
    start, stop = np.searchsorted(numbers, [text_id, text_id + 1]).tolist()
    return table.slice(start, stop - start)


def _row(folder: Path, table: str, first: int | None, text_id: int) -> pa.Table | None:
    """Read the single row that a table has for a text, if it has one."""
    if first is None or not (path := part_path(folder, table, first)).exists():
        return None
    check_table(table, path)
    rows = read_rows(path)
    numbers = rows["text_id"].to_pylist()
    return rows.slice(numbers.index(text_id), 1) if text_id in numbers else None


def _why_missing(folder: Path, first: int | None, text_id: int) -> str:
    failed = _row(folder, "failures", first, text_id)
    if failed is not None:
        return f"Text {text_id} could not be captured: {failed['reason'][0]}"
    todo = part_of(queue.parts(folder), text_id)
    if todo is not None and text_id in queue.read(folder, todo)["text_id"].to_pylist():
        return f"Text {text_id} is still to do: run the same survey again to resume."
    return f"Text {text_id} was not chosen: `survey.texts` lists those that are in {folder}."
