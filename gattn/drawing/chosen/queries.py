"""Which tokens are asked about: by patch, by moment, by position or by text."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gattn.drawing.canvas.frame import shown_text, token_said
from gattn.drawing.canvas.sides import patches_said
from gattn.errors import SelectionError
from gattn.heads.geometry import Geometry, Grid, Times
from gattn.heads.head import AttentionGraph
from gattn.names.tokens import find_text, find_token


class Tokens:
    """The tokens of one side, which are found by where they lie, too.

    Parameters
    ----------
    positions : sequence of int
        Their positions.
    labels : sequence of str
        Their texts.
    geometry : Geometry or None
        Where they lie.
    name : str
        What they are called: "query" or "key".
    """

    def __init__(
        self,
        positions: Sequence[int],
        labels: Sequence[str],
        geometry: Geometry | None,
        name: str,
    ) -> None:
        self.positions, self.labels, self.geometry = positions, labels, geometry
        self.name = name

    def find(self, wanted: Any) -> list[int]:
        """Find one token, or those of a list: a patch is ``(row, column)``, a float a second.

        Raises
        ------
        SelectionError
            If there is no such token, or none are wanted.
        """
        if isinstance(wanted, list | np.ndarray | range):
            if found := [self._find_one(one) for one in wanted]:
                return found
            raise SelectionError(f"No {self.name} is given: the list is empty.")
        return [self._find_one(wanted)]

    def _find_one(self, wanted: Any) -> int:
        if isinstance(wanted, tuple | list | np.ndarray) and len(wanted) == 2:
            if isinstance(self.geometry, Grid):
                return self.geometry.token_at(wanted[0], wanted[1], self.name)
            raise SelectionError(
                f"{self.name}={tuple(wanted)!r:.60} is a row and a column, but here {self.plural} "
                f"are not patches of a picture; {self._instead()}"
            )
        if isinstance(self.geometry, Times) and _is_float(wanted):
            return self.geometry.token_at(float(wanted), self.name)
        if wanted == "class" and self._apart and not find_text("class", self.labels):
            return self._apart[0]
        return find_token(wanted, self.positions, self.labels, self.name)

    def _instead(self) -> str:
        if self.geometry is None:
            return "say where they lie, as in head.on_grid(14, 14)."
        return "name one by its position or text."

    @property
    def _apart(self) -> list[int]:
        """The tokens that are no patches."""
        if not isinstance(self.geometry, Grid):
            return []
        return np.flatnonzero(self.geometry.cells < 0).tolist()

    def usual(self) -> list[int]:
        """Return the tokens shown if none are named: the first one apart, or else all."""
        return self._apart[:1] or list(range(len(self.positions)))

    def called(self, chosen: Sequence[int]) -> str:
        """Name tokens for a caption: "patch (row 7, column 9)", "query 3 “dog”", "9 queries"."""
        if len(chosen) > 3:
            every = "all " if len(chosen) == len(self.positions) else ""
            return f"{every}{len(chosen)} {self.plural}"
        *first, last = map(self._called_one, chosen)
        return f"{', '.join(first)} and {last}" if first else last

    @property
    def plural(self) -> str:
        """What several are called."""
        return "queries" if self.name == "query" else f"{self.name}s"

    def short(self, token: int) -> str:
        """Name a token above a panel: "(7, 9)", "class"."""
        if isinstance(self.geometry, Grid) and self.geometry.cells[token] >= 0:
            return str(divmod(int(self.geometry.cells[token]), self.geometry.columns))
        return shown_text(self.labels[token], limit=24)

    def _called_one(self, token: int) -> str:
        if isinstance(self.geometry, Grid) and self.geometry.cells[token] >= 0:
            row, column = divmod(int(self.geometry.cells[token]), self.geometry.columns)
            return f"patch (row {row}, column {column})"
        if isinstance(self.geometry, Times) and self.geometry.is_somewhere[token]:
            start, stop = self.geometry.stretches[token].tolist()
            return f"{self.name} {start:.6g}–{stop:.6g} s"
        return f"{self.name} {token_said(self.positions[token], self.labels, token)}"


def _is_float(wanted: Any) -> bool:
    return isinstance(wanted, Real | np.floating) and not isinstance(wanted, int | np.integer)


def sides(head: AttentionGraph) -> tuple[Tokens, Tokens]:
    """Return the queries and the keys of a head, to find tokens among."""
    keys, queries = head.node_ids()
    places, of_queries = head.geometry, head.query_geometry
    if not head.graph.is_bipartite and places is not None:
        first = head.graph.query_offset
        of_queries = places[slice(first, first + len(queries))]
        places = places[slice(len(keys))]
    return (
        Tokens(queries, head.query_labels(), of_queries, "query"),
        Tokens(keys, head.labels()[: len(keys)], places, "key"),
    )


def names_said(head: AttentionGraph) -> str:
    """Say how patches are named, if tokens are."""
    return patches_said(head.labels(), head.query_labels())


def check_same_tokens(heads: Sequence[AttentionGraph]) -> None:
    """Refuse heads of several runs, or of stacks with other tokens."""
    first = heads[0]
    for head in heads:
        is_same = (head.labels(), head.query_labels()) == (first.labels(), first.query_labels())
        if not is_same or (head.geometry, head.query_geometry) != (
            first.geometry,
            first.query_geometry,
        ):
            raise SelectionError(
                "These heads have different tokens, or tokens that lie elsewhere; a picture shows "
                "heads of the same tokens."
            )


def rows_of(
    head: AttentionGraph, chosen: Sequence[int], values: str, *, by_key: bool
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Average a head's numbers over some queries, by key, or over some keys, by query.

    An edge that is not there counts as 0; the second array says which tokens have any.
    """
    ends = (head.key, head.query) if by_key else (head.query, head.key)
    size = head.graph.num_queries if by_key else head.graph.num_keys
    is_asked = np.isin(ends[0], chosen)
    others, numbers = ends[1][is_asked], head.edge_values[values][is_asked]
    amounts = np.bincount(others, numbers.astype(np.float64), size) / len(set(chosen))
    return amounts, np.bincount(others, minlength=size) > 0
