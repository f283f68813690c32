"""Columns of tables: the ends of edges, and their numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gattn.errors import GraphError, SelectionError, ShapeError
from gattn.names.tokens import described

if TYPE_CHECKING:
    import pandas as pd


def check_columns(frame: Any, *names: str) -> None:
    """Refuse what is not a data frame with these columns."""
    import pandas as pd

    if not isinstance(frame, pd.DataFrame):
        instead = ": pass its to_pandas()" if hasattr(frame, "to_pandas") else ""
        raise ShapeError(
            f"from_pandas takes a pandas.DataFrame, not a {type(frame).__name__}{instead}."
        )
    for name in names:
        if name in frame.index.names:
            raise GraphError(f"{name!r} is in the frame's index: pass frame.reset_index().")
        if name not in frame.columns:
            raise GraphError(
                f"The frame has no column {name!r}, but {', '.join(map(repr, frame.columns))}: "
                'name yours, as in from_pandas(frame, attention="weight").'
            )
    if twice := frame.columns[frame.columns.duplicated()].tolist():
        raise GraphError(f"The frame has two columns {twice[0]!r}: drop one.")


def numbers_in(frame: pd.DataFrame, name: str) -> NDArray[Any]:
    """Read a column of numbers; missing ones are NaN, which attention graphs refuse."""
    column = frame[name]
    found: NDArray[Any] = column.to_numpy()
    if found.dtype == object:
        try:
            return column.to_numpy(dtype=np.float64, na_value=np.nan)
        except (TypeError, ValueError) as error:
            raise ShapeError(
                f"The column {name!r} must hold numbers, not {column.dtype}: {error}."
            ) from error
    return found


class Nodes:
    """The nodes that a column names, by position or by text."""

    def __init__(self, tokens: Sequence[str], positions: Any) -> None:
        self.tokens, self.positions = tokens, positions

    def find(self, column: pd.Series[Any]) -> NDArray[np.int64]:
        """Find the node of each row, by its position or its text."""
        values = column.to_numpy()
        if not len(values):
            return np.zeros(0, np.int64)
        if values.dtype == object and all(type(one) is int for one in values):
            values = values.astype(np.int64)
        if values.dtype.kind in "iu":
            return self._at(values.astype(np.int64), column.name)
        places: dict[Any, int] = {}
        for row, one in enumerate(values.tolist()):
            if not isinstance(one, str) or one not in places:
                places[one] = self._named(one, row, column.name)
        return np.array([places[one] for one in values.tolist()], np.int64)

    def _at(self, positions: NDArray[np.int64], name: Any) -> NDArray[np.int64]:
        if self.positions is None:
            return positions
        known = {position: n for n, position in enumerate(np.asarray(self.positions).tolist())}
        if lost := [one for one in positions.tolist() if one not in known]:
            raise GraphError(
                f"The column {name!r} names position {lost[0]}, which is not among the "
                f"{len(known)} positions."
            )
        return np.array([known[one] for one in positions.tolist()], np.int64)

    def _named(self, text: Any, row: int, name: Any) -> int:
        if not isinstance(text, str):
            raise GraphError(
                f"The column {name!r} must hold positions, as whole numbers, or tokens' texts; row "
                f"{row} holds {text!r:.60}."
            )
        if not self.tokens:
            raise GraphError(
                f"The column {name!r} names tokens, such as {text!r:.60}: give all of them, in "
                "their order, as tokens=."
            )
        found = [n for n, token in enumerate(self.tokens) if token == text]
        if not found:
            raise SelectionError(
                f"No token {text!r:.60}, which the column {name!r} names in row {row}; "
                f"{described(self.tokens, text)}."
            )
        if len(found) > 1:
            raise GraphError(
                f"The token {text!r:.60} occurs {len(found)} times: name the ends of edges by "
                "position instead."
            )
        return found[0]
