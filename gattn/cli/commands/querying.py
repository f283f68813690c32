"""The commands that read surveys: query, statistics."""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gattn.cli.terminal.output import print_notes, print_table, save_table, without_single_stack
from gattn.errors import FileError

if TYPE_CHECKING:
    import pandas as pd

TABLES = (".csv", ".parquet", ".json")
"""The kinds of files that a query's result can be written to."""

_MOST_ROWS = 40
_MOST_CHARACTERS = 60


def run_query(options: argparse.Namespace) -> None:
    """Query a survey with SQL: print the first rows, and write all of them."""
    from gattn.surveys.ask.sql import select
    from gattn.surveys.store.manifest import manifest_of

    manifest_of(options.folder)
    found = select(options.folder, options.query)
    _print_rows(found)
    if options.output:
        _save_rows(found, options.output)
        print(f"{options.output}: {len(found):,} rows")


def run_statistics(options: argparse.Namespace) -> None:
    """Print each head's mean score over a survey, or how two surveys differ."""
    from gattn.surveys.ask.reading import open_survey

    survey = open_survey(options.folder)
    if options.other_folder is None:
        table: Any = survey.statistics(options.score)
    else:
        table = survey.compare(open_survey(options.other_folder), options.score)
    print(f"{options.score}: {table.computed_from}")
    _print_rows(without_single_stack(table).reset_index())
    print_notes(table.notes)
    if options.output:
        save_table(table, options.output)
        print(f"{options.output}: {len(table):,} heads")


def run_examples(options: argparse.Namespace) -> None:
    """Print the texts of a survey in which a head has the most of a score, or write their page."""
    from gattn.surveys.ask.reading import open_survey

    found = open_survey(options.folder).examples(options.score, options.head, most=options.most)
    print(f"{options.score}: {found.computed_from}")
    _print_rows(found[["text_id", "score", "text"]])
    print_notes(found.notes)
    if options.output and options.output.suffix.lower() == ".csv":
        save_table(found, options.output)
    elif options.output:
        found.to_html(options.output, model=options.model)
    if options.output:
        print(f"{options.output}: {len(found):,} texts")


def _print_rows(table: pd.DataFrame) -> None:
    """Print the first rows, without characters that control a terminal."""
    shown = table.head(_MOST_ROWS).copy()
    shown.columns = [_shown(name) for name in shown.columns]
    for number, kind in enumerate(shown.dtypes):
        if kind.kind in "OUT" or kind == "str":
            shown.isetitem(number, [_shown(value) for value in shown.iloc[:, number]])
    columns = _fitting(shown)
    if columns and len(shown):
        print_table(shown.iloc[:, :columns], ".4g")
    else:
        print("no rows")
    if left := len(table) - len(shown):
        print(f"and {left:,} more rows, which -o includes")
    if rest := ", ".join(shown.columns[columns:]):
        print(f"columns not shown: {rest}")


def _fitting(shown: pd.DataFrame) -> int:
    """Count the columns that fit on a terminal; files and pipes take all."""
    if not sys.stdout.isatty():
        return len(shown.columns)
    room = shutil.get_terminal_size().columns
    counts = range(len(shown.columns), 1, -1)
    return next((n for n in counts if _width(shown.iloc[:, :n]) <= room), 1)


def _width(shown: pd.DataFrame) -> int:
    return max(map(len, shown.to_string(index=False, float_format="{:.4g}".format).split("\n")))


def _shown(value: Any) -> str:
    from gattn.names.text import visible

    is_missing = value is None or value != value  # NaN is not itself.
    return "NULL" if is_missing is True else visible(str(value), limit=_MOST_CHARACTERS)


def _save_rows(table: pd.DataFrame, path: Path) -> None:
    """Write all rows to a file whose suffix says its kind."""
    import pyarrow as pa

    from gattn.files.whole_files import whole_file

    try:
        with whole_file(path) as part:
            if path.suffix.lower() == ".csv":
                table.to_csv(part, index=False)
            elif path.suffix.lower() == ".json":
                table.to_json(part, orient="records", date_format="iso")
            else:
                table.to_parquet(part, index=False)
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise FileError(
            f"{path} cannot hold this result ({error}): choose or cast columns in the query, or "
            f"use another of {', '.join(TABLES)}."
        ) from error
