"""Answers SQL over the tables of a survey, by DuckDB, which is held to reading them."""

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
from gattn.surveys.store.tables import TABLES, check_tables

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


def ask(folder: Path, files: Files, query: str, values: Sequence[Any] = ()) -> pd.DataFrame:
    """Answer a query.

    Parameters
    ----------
    folder : Path
        Where all files are; nothing else can be read.
    files : mapping of str to paths
        The tables, and the files of each.
    query : str
        One statement that reads.
    values : sequence
        What stands for the question marks of the query.

    Raises
    ------
    SelectionError
        Where the query is none, asks for what is not there, or would do more than read.
    FileError
        Where a file is missing or damaged.
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
                f"This query has no answer: {_printable(error)}\nThe tables are "
                f"{', '.join(TABLES)}; `describe edges` lists the columns of one."
            ) from error


def _check_reads(connection: DuckDBPyConnection, query: str) -> None:
    from duckdb import StatementType, __version__

    query.encode()
    if "\0" in query and int(__version__.partition(".")[0]) < 2:
        raise SelectionError(
            f"DuckDB {__version__} reads a query only up to its first NUL character: write chr(0) "
            "for it, or install DuckDB 2."
        )
    kinds = [statement.type for statement in connection.extract_statements(query)]
    if kinds != [StatementType.SELECT]:
        found = ", ".join(kind.name for kind in kinds) or "nothing"
        raise SelectionError(
            "A query is one statement that reads, such as SELECT, FROM, WITH, DESCRIBE or "
            f"SUMMARIZE; this is {found}."
        )


@contextmanager
def _connected(folder: Path, files: Files) -> Iterator[DuckDBPyConnection]:
    """Open a database in memory that has views of the files, and can reach nothing else."""
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
    """Find the file that cannot be read, which DuckDB does not always name."""
    for paths in files.values():
        for path in paths:
            read_rows(path)


def _select(name: str, paths: Sequence[Path]) -> str:
    """Write what a table is: its files, or where there are none its columns without rows."""
    if not paths:
        columns = [f"NULL::{_KINDS[str(field.type)]} AS {field.name}" for field in TABLES[name]]
        return f"SELECT {', '.join(columns)} WHERE false"
    listed = ", ".join(_literal(_as_pattern(path.absolute())) for path in paths)
    return (
        f"SELECT * FROM read_parquet([{listed}], union_by_name = true, hive_partitioning = false)"
    )


def _as_pattern(path: Path) -> str:
    """Write a path as the pattern that matches nothing else."""
    return re.sub(r"([*?\[])", r"[\1]", str(path))


def _literal(text: object) -> str:
    return "'" + str(text).replace("'", "''") + "'"


def quoted(name: str) -> str:
    """Write the name of a column as SQL does."""
    return '"' + name.replace('"', '""') + '"'


def _printable(error: Exception) -> str:
    """Write an error without what would act on a terminal, which cells may hold."""
    return "".join(
        one if one.isprintable() or one == "\n" else repr(one)[1:-1] for one in str(error)
    )
