"""The tables of a survey, as data frames or by SQL."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from operator import index
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np

from gattn.errors import SelectionError
from gattn.surveys.ask.definitions import definitions_of
from gattn.surveys.ask.sql import ask, select
from gattn.surveys.store.parts import count_rows
from gattn.surveys.store.schemas import TABLES
from gattn.surveys.store.tables import files_of, scan

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

_LARGEST = {"text_id": 2**63 - 1, "layer": 2**31 - 1, "head": 2**31 - 1}
"""The largest numbers that the columns hold."""

_WITH_TOKENS = """
SELECT edges.*, queries.token AS query_token, keys.token AS key_token
FROM edges
LEFT JOIN tokens AS queries ON queries.role <> 'key' AND queries.text_id = edges.text_id
    AND queries.stack = edges.stack AND queries.position = edges.query
LEFT JOIN tokens AS keys ON keys.role <> 'query' AND keys.text_id = edges.text_id
    AND keys.stack = edges.stack AND keys.position = edges.key
WHERE {}
ORDER BY edges.text_id, list_position(?, edges.stack), edges.layer, edges.head, edges.query,
    edges.key
"""
_STACKS = "SELECT stack FROM tokens WHERE text_id = (SELECT min(text_id) FROM tokens)"
"""The stacks of a text, in the order in which they ran."""


@dataclass(frozen=True, repr=False)
class Tables:
    """The tables in the folder of a survey, and what its manifest says of them."""

    folder: Path
    manifest: Mapping[str, Any]

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
            Sorted by text, stack in the order in which they ran, layer, head, query and key.

        Raises
        ------
        SelectionError
            If a number is not whole, or a stack not a name. No edges match what is not there.
        FileError
            If a file is missing or damaged.
        """
        asked = {"text_id": text_id, "stack": stack, "layer": layer, "head": head}
        chosen = {
            name: stack_name(value) if name == "stack" else in_column(name, value)
            for name, value in asked.items()
            if value is not None
        }
        text = None if text_id is None else whole_number("text_id", text_id)
        where = " AND ".join(f"edges.{name} = ?" for name in chosen) or "true"
        values: list[Any] = list(chosen.values())
        files = files_of(self.folder, ["edges", "tokens"], text)
        if not tokens:
            return ask(self.folder, files, f"SELECT * FROM edges WHERE {where}", values)
        stacks = list(dict.fromkeys(ask(self.folder, files, _STACKS)["stack"]))
        return ask(self.folder, files, _WITH_TOKENS.format(where), [*values, stacks or [""]])

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

    @property
    def _edits(self) -> list[str]:
        return list(self.manifest.get("edits") or ())

    def _told(self, heads: pd.DataFrame) -> pd.DataFrame:
        """Add the edits and the version of the score definitions to a table's ``attrs``."""
        heads.attrs["definitions"] = definitions_of(self.manifest)
        if self._edits:
            heads.attrs["edits"] = self._edits
        return heads

    def _count(self, table: str) -> int:
        return sum(map(count_rows, files_of(self.folder, [table])[table]))

    def _ask(self, tables: Iterable[str], query: str) -> pd.DataFrame:
        return ask(self.folder, files_of(self.folder, tables), query)


def whole_number(name: str, given: Any) -> int:
    """Take the number of a text, layer or head."""
    if isinstance(given, (bool, np.bool_)) or not isinstance(given, SupportsIndex):
        raise SelectionError(f"{name} must be a whole number, not {given!r:.80}.")
    return index(given)


def in_column(name: str, given: Any) -> int:
    """Take a number as a column holds it; -1 and the largest match no row."""
    return max(-1, min(whole_number(name, given), _LARGEST[name]))


def stack_name(given: Any) -> str:
    """Take the name of a stack."""
    if not isinstance(given, str):
        raise SelectionError(
            f"stack must be the name of one, such as 'decoder', not {given!r:.80}."
        )
    return given
