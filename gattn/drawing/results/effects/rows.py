"""The edits of a table's rows, as data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from gattn.edit_records import EditRecord, from_text

PLACES = ("stack", "layer", "head")
ENDS = ("query", "key")
_WHERE = (*PLACES, *ENDS)


@dataclass(frozen=True)
class Edited:
    """An edit: its kind, where it is, and its other values."""

    kind: str
    where: Mapping[str, Any]
    others: Mapping[str, Any]

    def has(self, *names: str) -> bool:
        """Return whether it names any of these places."""
        return any(self.where[name] is not None for name in names)


@dataclass(frozen=True)
class Row:
    """The edits of a row; none if it holds them as a text alone, as its user may have written."""

    edits: tuple[Edited, ...]
    text: str = ""

    def but(self, some: Sequence[Edited]) -> Row:
        """Return it without some edits."""
        return replace(self, edits=tuple(edit for edit in self.edits if edit not in some))


def rows_of(table: pd.DataFrame) -> list[Row]:
    """Read the edits of all rows; rows of estimates are cuts."""
    return [_row({str(name): row[name] for name in row}) for row in table.to_dict("records")]


def _row(row: Mapping[str, Any]) -> Row:
    where = {name: _known(row.get(name)) for name in _WHERE}
    if "edit" not in row:
        return Row((Edited("Cut", where, {}),))
    text, record = str(row["edit"]), row.get("record")
    edits = from_text(record) if isinstance(record, str) else ()
    if text != ", ".join(edit.text for edit in edits):
        return Row((), text)
    if len(edits) > 1:
        where = {}
    return Row(tuple(_edited(one, where) for one in edits), text)


def _known(value: Any) -> Any:
    """Return the whole number that a file may hold as another one; None if there is none."""
    if value is None or pd.isna(value):
        return None
    return value if isinstance(value, str) else int(value)


def _edited(edit: EditRecord, found: Mapping[str, Any]) -> Edited:
    """Read an edit: its places are those that the run found, or else as it names them."""
    where = {}
    for name in _WHERE:
        place = found.get(name)
        where[name] = _plain(getattr(edit, name)) if place is None else place
    return Edited(edit.kind, where, edit.others)


def _plain(place: Any) -> Any:
    """Write a span as "2:5"."""
    if isinstance(place, slice):
        return ":".join("" if end is None else str(end) for end in (place.start, place.stop))
    return place
