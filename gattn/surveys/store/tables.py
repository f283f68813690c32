"""The tables of a survey: their files, and scanning them with polars."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from gattn.errors import DependencyError, FileError
from gattn.surveys.store.checksums import Once, check_file
from gattn.surveys.store.parts import count_rows, part_of, part_path, parts_in, reading
from gattn.surveys.store.schemas import LISTS, TABLES

if TYPE_CHECKING:
    import polars as pl


def files_of(
    folder: Path, tables: Iterable[str], text_id: int | None = None
) -> dict[str, list[Path]]:
    """List the files of tables, of all parts of a survey or of the part with a text."""
    parts = parts_in(folder)
    if text_id is not None:
        first = part_of(parts, text_id)
        parts = [] if first is None else [first]
    files = {name: [part_path(folder, name, first) for first in parts] for name in TABLES}
    return {name: _there(name, files) for name in tables}


def _there(name: str, files: Mapping[str, list[Path]]) -> list[Path]:
    """List the files that a table has, or should have because texts were captured."""
    if name == "texts":
        return files[name]
    known = set(files[name][0].parent.glob("*.parquet")) if files[name] else set()
    return [
        path
        for path, texts in zip(files[name], files["texts"], strict=True)
        if path in known or (name in LISTS and count_rows(texts))
    ]


_right = Once()


def check_tables(files: Mapping[str, Sequence[Path]]) -> None:
    """Check the files of tables, as DuckDB and polars check nothing."""
    todo = [(name, path) for name, paths in files.items() for path in paths]
    with ThreadPoolExecutor() as pool:
        for _ in pool.map(lambda one: check_table(*one), todo):
            pass


def check_table(name: str, path: Path) -> None:
    """Check a file of a table; raises the errors of `check_tables`."""
    with reading(path):
        check_file(path)
        if not _right.is_new(path):
            return
        found = pq.read_schema(path)
    for field in TABLES[name]:
        place = found.get_field_index(field.name)
        kind = None if place < 0 else found.field(place).type
        if kind != field.type and not (kind == pa.float64() and field.type == pa.float32()):
            _right.forget(path)
            raise FileError(
                f"{path} is not a file of the table {name!r}: its column {field.name!r} must be "
                f"{field.type}, but {'is missing' if kind is None else f'is {kind}'}."
            )


def named_in(query: str) -> list[str]:
    """List the tables that a query may read: those that it names, or all of them."""
    words = set(re.findall(r"\w+", query.lower()))
    return [name for name in TABLES if name in words] or list(TABLES)


def scan(table: str, files: list[Path]) -> pl.LazyFrame:
    """Scan the files of a table with polars; a column that a file lacks is null."""
    try:
        import polars as pl
    except ImportError as error:
        raise DependencyError("This needs polars: pip install 'gattn[polars]'.") from error
    check_tables({table: files})
    try:
        found = [pq.read_schema(path) for path in files]
        schema = pa.unify_schemas([TABLES[table], *found], promote_options="permissive")
    except (pa.ArrowException, OSError) as error:
        raise FileError(f"The table {table!r} cannot be read: {error}") from error
    columns = pl.DataFrame(schema.empty_table()).schema
    if not files:
        return pl.LazyFrame(schema=columns)
    return pl.scan_parquet(
        files, schema=columns, missing_columns="insert", glob=False, hive_partitioning=False
    )
