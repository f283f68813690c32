"""Opens surveys: their traces, tables and statistics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from operator import index
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np

from gattn.checks import check_options
from gattn.edit_records import in_words
from gattn.errors import SelectionError
from gattn.heads.head import AttentionGraph
from gattn.heads.trace import AttentionTrace
from gattn.surveys.ask.definitions import definitions_of
from gattn.surveys.ask.finding import all_rows, rows_of
from gattn.surveys.ask.sql import ask, quoted, select
from gattn.surveys.ask.statistics import PLACE, HeadStatistics, head_statistics
from gattn.surveys.store.manifest import manifest_of
from gattn.surveys.store.parts import count_rows
from gattn.surveys.store.rebuilding import trace_of
from gattn.surveys.store.schemas import TABLES
from gattn.surveys.store.tables import files_of, scan

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

    from gattn.surveys.ask.comparison import HeadComparison

_LARGEST = {"text_id": 2**63 - 1, "layer": 2**31 - 1, "head": 2**31 - 1}
"""The largest numbers that the columns hold."""

_WITH_TOKENS = """
SELECT edges.*, queries.token AS query_token, keys.token AS key_token
FROM edges
LEFT JOIN tokens AS queries ON queries.role <> 'key' AND queries.text_id = edges.text_id
    AND queries.stack = edges.stack AND queries.position = edges.query
LEFT JOIN tokens AS keys ON keys.role <> 'query' AND keys.text_id = edges.text_id
    AND keys.stack = edges.stack AND keys.position = edges.key
WHERE {} ORDER BY ALL
"""


def open_survey(folder: str | PathLike[str]) -> Survey:
    """Open a survey to read, even while it is being written.

    Parameters
    ----------
    folder : path
        The folder that `gattn.survey` wrote.

    Returns
    -------
    Survey
        Its traces and tables.

    Raises
    ------
    FileError
        If there is no survey, its manifest is damaged, or a newer gattn wrote it.

    Examples
    --------
    >>> survey = gattn.open_survey("survey")
    >>> survey.heads.groupby(["layer", "head"])["induction"].mean()
    >>> survey.trace(text_id=17)[1, 3].draw()
    """
    folder = Path(folder)
    return Survey(folder, manifest_of(folder))


@dataclass(frozen=True, repr=False)
class Survey:
    """A survey on disk: the traces of many texts, and tables of them.

    It holds nothing in memory: every call reads the parts that are finished by then, never half of
    one.

    Parameters
    ----------
    folder : Path
        The survey's folder.
    manifest : mapping
        The settings and the model that it was run with.
    """

    folder: Path
    manifest: Mapping[str, Any]

    def __len__(self) -> int:
        """Count the texts that were captured."""
        return self._count("texts")

    @property
    def is_complete(self) -> bool:
        """Whether every chosen text was captured or has failed."""
        return len(self) + self._count("failures") == int(self.manifest["num_texts"])

    def __repr__(self) -> str:
        texts, failures = len(self), self._count("failures")
        left = int(self.manifest["num_texts"]) - texts - failures
        failed = f", {failures:,} failed" if failures else ""
        todo = f", {left:,} to do" if left else ""
        edits = "".join(f"; {said}" for said in [in_words(self._edits)] if said)
        return (
            f"Survey({self.manifest['model']}: {texts:,} texts{failed}{todo}; "
            f"keep={self.manifest['keep']}{edits}; {self.folder})"
        )

    @property
    def _edits(self) -> list[str]:
        return list(self.manifest.get("edits") or ())

    # Traces

    def trace(self, text_id: int) -> AttentionTrace:
        """Read the trace of one text, as it was captured.

        Parameters
        ----------
        text_id : int
            The text's number among all texts of the input, counted from 0.

        Raises
        ------
        SelectionError
            If it is not there; the message says whether it failed, is to do or was not chosen.
        FileError
            If a file is damaged.
        """
        number = _whole("text_id", text_id)
        return trace_of(rows_of(self.folder, number), self.manifest["model"])

    def graph(
        self, text_id: int, layer: int, head: int, *, stack: str | None = None
    ) -> AttentionGraph:
        """Read the graph of one head of one text, without the others.

        Parameters
        ----------
        text_id, layer, head : int
            Which text, layer and head.
        stack : str, optional
            The stack, if there are several.

        Raises
        ------
        SelectionError, FileError
            As `trace` does.
        """
        text_id = _whole("text_id", text_id)
        chosen = {"layer": layer, "head": head}
        place: dict[str, Any] = {name: _in_column(name, one) for name, one in chosen.items()}
        if stack is not None:
            place["stack"] = _stack(stack)
        tables = rows_of(self.folder, text_id, place)
        if not len(tables["heads"]):
            raise SelectionError(
                f"Text {text_id} has no head at {place}: `survey.trace({text_id})` lists its "
                "stacks, layers and heads."
            )
        found = trace_of(tables, self.manifest["model"])
        return (found if stack is None else found[stack])[layer, head]

    def traces(self) -> Iterator[tuple[int, AttentionTrace]]:
        """Iterate over all texts in order: the ``text_id`` and the trace of each.

        One part, of at most 64 texts, is in memory at a time.
        """
        for text_id, tables in all_rows(self.folder):
            yield text_id, trace_of(tables, self.manifest["model"])

    # Tables

    @property
    def heads(self) -> pd.DataFrame:
        """The table ``heads``: one row per text and head, with all scores.

        Loading it takes about 300 bytes per row; use `sql` to load fewer columns or rows.
        """
        return self._told(self._ask(["heads"], "SELECT * FROM heads"))

    @property
    def texts(self) -> pd.DataFrame:
        """The table ``texts``: one row per captured text, loaded completely."""
        return self._ask(["texts"], "SELECT * FROM texts")

    @property
    def failures(self) -> pd.DataFrame:
        """The table ``failures``: one row per text that could not be captured, with the reason."""
        return self._ask(["failures"], "SELECT * FROM failures")

    def edges(
        self,
        *,
        layer: int | None = None,
        head: int | None = None,
        text_id: int | None = None,
        stack: str | None = None,
        tokens: bool = False,
    ) -> pd.DataFrame:
        """List edges, one per row; only the matching ones are loaded.

        Parameters
        ----------
        layer, head, text_id : int, optional
            Only edges of this layer, head and text.
        stack : str, optional
            Only edges of this stack.
        tokens : bool
            Whether to name the tokens at both ends, in ``query_token`` and ``key_token``.

        Returns
        -------
        DataFrame
            Sorted by text, stack, layer, head, query and key.

        Raises
        ------
        SelectionError
            If a number is not whole, or a stack not a name. No edges match what is not there.
        FileError
            If a file is missing or damaged.
        """
        asked = {"text_id": text_id, "stack": stack, "layer": layer, "head": head}
        chosen = {
            name: _stack(value) if name == "stack" else _in_column(name, value)
            for name, value in asked.items()
            if value is not None
        }
        text = None if text_id is None else _whole("text_id", text_id)
        where = " AND ".join(f"edges.{name} = ?" for name in chosen) or "true"
        values = list(chosen.values())
        query = _WITH_TOKENS.format(where) if tokens else f"SELECT * FROM edges WHERE {where}"
        files = files_of(self.folder, ["edges", "tokens"], text)
        return ask(self.folder, files, query, values)

    def sql(self, query: str) -> pd.DataFrame:
        """Run a SQL query with DuckDB.

        Parameters
        ----------
        query : str
            One statement that reads the tables ``texts``, ``edges``, ``queries``, ``heads``,
            ``tokens`` and ``failures``.

        Raises
        ------
        SelectionError
            If the query is invalid, names what does not exist, or does more than read.
        FileError
            If a file is missing or damaged.

        Examples
        --------
        >>> survey.sql("select layer, head, avg(induction) from heads group by all")
        """
        return select(self.folder, query)

    def polars(self, table: str) -> pl.LazyFrame:
        """Scan a table with polars, which reads only what a query needs.

        Parameters
        ----------
        table : str
            ``texts``, ``edges``, ``queries``, ``heads``, ``tokens`` or ``failures``.

        Raises
        ------
        SelectionError
            If there is no such table.
        DependencyError
            If polars is not installed.
        """
        if not isinstance(table, str) or table not in TABLES:
            raise SelectionError(f"No table {table!r}; a survey has {', '.join(TABLES)}.")
        return scan(table, files_of(self.folder, [table])[table])

    # Statistics

    def statistics(self, score: str, **options: Any) -> HeadStatistics:
        """Take the mean of a score over all texts; see `gattn.surveys.head_statistics`."""
        check_options(head_statistics, options, "statistics()")
        return head_statistics(self._scores(score), score, **options)

    def compare(self, other: Survey, score: str, **options: Any) -> HeadComparison:
        """Compare with a survey of the same texts; see `gattn.surveys.compare_heads`.

        Raises
        ------
        SelectionError
            If `other` is not a survey, texts with the same number differ, or the two surveys define
            the score differently.
        OptionError
            If there is no such option.
        """
        from gattn.surveys.ask.comparison import compare_heads
        from gattn.surveys.ask.pairing import check_same_scores, check_same_texts

        if not isinstance(other, Survey):
            raise SelectionError(
                f"other must be a Survey, as gattn.open_survey(folder) opens it, not {other!r:.80}."
            )
        check_options(compare_heads, options, "compare()")
        check_same_scores(self, other, score)
        check_same_texts(self, other)
        return compare_heads(self._scores(score), other._scores(score), score, **options)

    def _scores(self, score: str) -> pd.DataFrame:
        """Load one score of all heads."""
        known = self._ask(["heads"], "SELECT * FROM heads LIMIT 0").columns
        if score not in known:
            raise SelectionError(
                f"No score {score!r:.200} in {self.folder}; its heads have {', '.join(known)}."
            )
        columns = ", ".join(map(quoted, ["text_id", *PLACE, score]))
        return self._told(self._ask(["heads"], f"SELECT {columns} FROM heads"))

    def _told(self, heads: pd.DataFrame) -> pd.DataFrame:
        """Add the edits and the version of the score definitions to a table's ``attrs``."""
        heads.attrs["definitions"] = definitions_of(self.manifest)
        if self._edits:
            heads.attrs["edits"] = self._edits
        return heads

    # Files

    def _count(self, table: str) -> int:
        return sum(map(count_rows, files_of(self.folder, [table])[table]))

    def _ask(self, tables: Iterable[str], query: str) -> pd.DataFrame:
        return ask(self.folder, files_of(self.folder, tables), query)


def _whole(name: str, given: Any) -> int:
    """Take the number of a text, layer or head."""
    if isinstance(given, (bool, np.bool_)) or not isinstance(given, SupportsIndex):
        raise SelectionError(f"{name} must be a whole number, not {given!r:.80}.")
    return index(given)


def _in_column(name: str, given: Any) -> int:
    """Take a number as a column holds it; -1 and the largest match no row."""
    return max(-1, min(_whole(name, given), _LARGEST[name]))


def _stack(given: Any) -> str:
    if not isinstance(given, str):
        raise SelectionError(
            f"stack must be the name of one, such as 'decoder', not {given!r:.80}."
        )
    return given
