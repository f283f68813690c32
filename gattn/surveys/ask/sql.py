"""Runs SQL on the tables of a survey with DuckDB, which is only allowed to read them."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import uuid4

from gattn.errors import FileError, SelectionError
from gattn.surveys.store.parts import read_rows
from gattn.surveys.store.schemas import TABLES
from gattn.surveys.store.tables import check_tables, files_of, named_in

if TYPE_CHECKING:
    import pandas as pd
    from duckdb import DuckDBPyConnection

Files: TypeAlias = Mapping[str, Sequence[Path]]
"""The files of each table."""

_KINDS = {
    "int64": "BIGINT",
    "int32": "INTEGER",
    "string": "VARCHAR",
    "float": "FLOAT",
    "double": "DOUBLE",
}


def select(folder: Path, query: str) -> pd.DataFrame:
    """Run a query on the tables of a survey that it names."""
    if not isinstance(query, str):
        raise SelectionError(f"sql takes a query as text, not {query!r:.80}.")
    return ask(folder, files_of(folder, named_in(query)), query)


def ask(folder: Path, files: Files, query: str, values: Sequence[Any] = ()) -> pd.DataFrame:
    """Run a query.

    Parameters
    ----------
    folder : Path
        The folder of all files; nothing else can be read.
    files : mapping of str to paths
        The files of each table.
    query : str
        One statement that reads.
    values : sequence
        The values for the question marks in the query.
    """
    import duckdb

    check_tables(files)
    with _connected(folder, files) as connection:
        try:
            _check_reads(connection, query)
            return connection.execute(query, list(values)).df()
        except (duckdb.Error, UnicodeEncodeError) as error:
            if isinstance(error, duckdb.OperationalError) or type(error) is duckdb.Error:
                _refuse_damaged(files)
            raise SelectionError(
                f"The query failed: {_printable(error)}\nThe tables are {', '.join(TABLES)}; "
                "`describe edges` lists the columns of one."
            ) from error


def _check_reads(connection: DuckDBPyConnection, query: str) -> None:
    from duckdb import StatementType, __version__

    query.encode()
    if "\0" in query and int(__version__.partition(".")[0]) < 2:
        raise SelectionError(
            f"DuckDB {__version__} reads a query only up to its first NUL character: write chr(0) "
            "instead, or install DuckDB 2."
        )
    kinds = [statement.type for statement in connection.extract_statements(query)]
    if kinds != [StatementType.SELECT]:
        found = ", ".join(kind.name for kind in kinds) or "nothing"
        raise SelectionError(
            "A query must be one statement that reads, such as SELECT, FROM, WITH, DESCRIBE or "
            f"SUMMARIZE, not {found}."
        )


@contextmanager
def _connected(folder: Path, files: Files) -> Iterator[DuckDBPyConnection]:
    """Open an in-memory database with views of the files, which can access nothing else."""
    import duckdb

    settings: dict[str, Any] = {
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
        "temp_directory": str(Path(tempfile.gettempdir()) / f"gattn-{uuid4().hex}"),
    }
    with duckdb.connect(":memory:", config=settings) as connection:
        own = folder.absolute()
        allowed = ", ".join(map(_literal, (own, _as_pattern(own))))
        connection.execute(f"SET allowed_directories = [{allowed}]")
        connection.execute("SET enable_external_access = false")
        for name, paths in files.items():
            try:
                connection.execute(f"CREATE VIEW {name} AS {_select(name, paths)}")
            except duckdb.Error as error:
                _refuse_damaged({name: paths})
                raise FileError(f"{folder / name} cannot be read: {_printable(error)}") from error
        connection.execute("SET lock_configuration = true")
        yield connection


def _refuse_damaged(files: Files) -> None:
    """Raise an error that names the damaged file, which DuckDB does not always do."""
    for paths in files.values():
        for path in paths:
            read_rows(path)


def _select(name: str, paths: Sequence[Path]) -> str:
    """Define a table: its files or, without any, its columns without rows."""
    if not paths:
        columns = [f"NULL::{_KINDS[str(field.type)]} AS {field.name}" for field in TABLES[name]]
        return f"SELECT {', '.join(columns)} WHERE false"
    listed = ", ".join(_literal(_as_pattern(path.absolute())) for path in paths)
    return (
        f"SELECT * FROM read_parquet([{listed}], union_by_name = true, hive_partitioning = false)"
    )


def _as_pattern(path: Path) -> str:
    """Write a path as a glob pattern that matches only this path."""
    return re.sub(r"([*?\[])", r"[\1]", str(path))


def _literal(text: object) -> str:
    return "'" + str(text).replace("'", "''") + "'"


def quoted(name: str) -> str:
    """Quote the name of a column for SQL."""
    return '"' + name.replace('"', '""') + '"'


def _printable(error: Exception) -> str:
    """Write an error without control characters, which cells may hold."""
    return "".join(
        one if one.isprintable() or one == "\n" else repr(one)[1:-1] for one in str(error)
    )
