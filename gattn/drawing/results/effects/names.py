"""The names of edits in a picture: the head, and the tokens between which it is edited."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd

from gattn.drawing.canvas.frame import shown_text
from gattn.drawing.results.effects.rows import ENDS, PLACES, Edited, Row, rows_of
from gattn.drawing.results.effects.sides import Sides
from gattn.drawing.results.effects.words import (
    edge_said,
    heads_said,
    is_everywhere,
    kind_in_brackets,
    kind_said,
    values_said,
)
from gattn.names.pieces import spelled
from gattn.names.shortening import short_names
from gattn.names.text import numbered

_WHOLE = 400
"""The most letters of an edit that are read to tell it from others."""
_LISTED = 4
"""How many kinds or places of edits a caption lists."""
_SHORT = 6.0
"""How wide stacks are in short names, in font sizes."""


@dataclass(frozen=True)
class EditNames:
    """The names of some rows of a table of effects.

    Parameters
    ----------
    whole : list of str
        Their names: "2.0: lamp → river" without what the title and caption say of all rows.
    brief : list of str
        The same without the end that all rows share, and with short names of stacks.
    shared : str
        What that end is called; "" if there is none.
    said : list of str
        What names leave out and the title does not say.
    """

    whole: list[str]
    brief: list[str]
    shared: str
    said: list[str]

    @classmethod
    def of(cls, table: pd.DataFrame, shown: Iterable[int]) -> EditNames:
        """Name some rows, by number: in words, or by their text if that is all they have."""
        edits = TableEdits(table)
        rows = [edits.rows[n] for n in shown]
        names = edits.stacks
        short = dict(zip(names, short_names(names, _SHORT), strict=True))
        whole = [edits.name(row, {one: shown_text(one) for one in names}) for row in rows]
        side, end = edits.shared_end(rows)
        brief = [edits.name(row, short, but=side) for row in rows]
        ends = dict.fromkeys(ENDS, "") | {side: end}
        return cls(whole, brief, f"each edge {edge_said(ends)}" if side else "", edits.said())


@dataclass(frozen=True)
class TableEdits:
    """The edits of a table, and what all of them share."""

    table: pd.DataFrame

    @cached_property
    def rows(self) -> list[Row]:
        """The edits of each row, without those that all rows have besides others."""
        return [row.but(self._base) for row in self._every]

    @cached_property
    def _every(self) -> list[Row]:
        return rows_of(self.table)

    @cached_property
    def _base(self) -> list[Edited]:
        """The edits that all rows have, if each has others, too."""
        rows = self._every
        base = [edit for edit in rows[0].edits if all(edit in row.edits for row in rows)]
        return base if all(len(row.edits) > len(base) for row in rows) else []

    @cached_property
    def edits(self) -> list[Edited]:
        """All edits of these rows."""
        return [edit for row in self.rows for edit in row.edits]

    @cached_property
    def stacks(self) -> list[str]:
        """The stacks that edits name."""
        named = (edit.where["stack"] for edit in self.edits)
        return list(dict.fromkeys(str(stack) for stack in named if stack is not None))

    @cached_property
    def _shared(self) -> Mapping[str, Mapping[str, Any]]:
        """The values that all edits of a kind have, if there are several."""
        found: dict[str, dict[str, Any]] = {}
        counts = Counter(edit.kind for edit in self.edits)
        for edit in self.edits:
            before = found.setdefault(edit.kind, dict(edit.others) if counts[edit.kind] > 1 else {})
            found[edit.kind] = {
                name: value for name, value in before.items() if edit.others.get(name) == value
            }
        return found

    @cached_property
    def _are_alike(self) -> bool:
        """Whether all edits are of one kind, which no name needs to say."""
        are_known = self.are_cuts or all(row.edits for row in self.rows)
        return len(self._shared) == 1 and are_known

    @cached_property
    def are_cuts(self) -> bool:
        """Whether all rows cut, also those that a user named."""
        kinds = self.table.get("kind", ())
        return "estimate" in self.table or (len(kinds) > 0 and all(kind == "Cut" for kind in kinds))

    def said(self) -> list[str]:
        """Say what names leave out and the title does not say."""
        kinds = [kind_said(*one) for one in self._shared.items()] if self._are_alike else []
        values = {} if self._are_alike else self._shared
        names = {name: shown_text(name) for name in self.stacks}
        return [
            *(f"each: {kind}" for kind in kinds if kind != "Cut"),
            *(f"each {kind}: {values_said(some)}" for kind, some in values.items() if some),
            *(f"all with {self._name(edit, names, is_whole=True)}" for edit in self._base),
        ]

    @cached_property
    def kinds(self) -> list[str]:
        """What the rows do, each once: "Cut", "Scale (factor 0.5)"; without rows that a user named.

        Empty if all rows cut, which titles say.
        """
        found = dict.fromkeys(
            " + ".join(kind_in_brackets(edit.kind, edit.others) for edit in row.edits)
            for row in self._every
            if row.edits
        )
        return [] if self.are_cuts and list(found) == ["Cut"] else list(found)

    def kinds_said(self) -> list[str]:
        """Say what the rows do where no row is named."""
        if len(self.kinds) == 1 and all(row.edits for row in self._every):
            return [f"each: {shown_text(self.kinds[0], limit=_WHOLE)}"]
        return [_some_said("edits of several kinds", self.kinds)] if self.kinds else []

    def places_said(self, what: str = "edits of several heads or layers") -> list[str]:
        """Say in which layers and heads the rows are where the title does not, if these differ.

        `what` is said of them.
        """
        columns = [name for name in ("layer", "head") if name in self.table]
        places = [
            {str(name): None if pd.isna(one) else int(one) for name, one in row.items()}
            for row in self.table[columns].drop_duplicates().to_dict("records")
        ]
        found = [heads_said(place) or "all heads" for place in places]
        return [_some_said(what, found)] if len(found) > 1 else []

    def title(self, named: Iterable[str] | None = None) -> str:
        """Say what all rows edit, and where: what of the places `named` all rows share.

        By default those that the names of rows leave to it.
        """
        shared = shared_places(self.table)
        named = self._in_title if named is None else named
        parts = [shown_text(str(shared["stack"]))] if "stack" in shared else []
        parts += [
            f"{name} {shared[name]}"
            for name in ("layer", "head")
            if name in shared and name in named
        ]
        what = _what(self.table)
        doing = f"cutting {what}" if self.are_cuts else f"edits of {what}"
        return " · ".join([*parts, doing if what else "cuts" if self.are_cuts else "edits"])

    @cached_property
    def _in_title(self) -> set[str]:
        """What the title says of all rows, the layer with the head, if names are left."""
        found = set(shared_places(self.table))
        is_one = self.table["head"].isna().all() or "head" in found
        are_told = all(
            row.edits and all(edit.has(*ENDS) or self._own(edit) for edit in row.edits)
            for row in self.rows
        )
        return found if is_one and are_told else found & {"stack"}

    def _own(self, edit: Edited) -> Mapping[str, Any]:
        """Return the values that not all edits of its kind share."""
        shared = self._shared[edit.kind]
        return {name: value for name, value in edit.others.items() if name not in shared}

    def name(self, row: Row, stacks: Mapping[str, str], but: str = "") -> str:
        """Name a row, without one end; `stacks` are their names."""
        names = [self._name(edit, stacks, but) for edit in row.edits]
        return " + ".join(names) or shown_text(row.text, limit=_WHOLE)

    def _name(
        self, edit: Edited, stacks: Mapping[str, str], but: str = "", *, is_whole: bool = False
    ) -> str:
        ends = {side: self.token(edit, side) for side in ENDS}
        left = (ends[side] for side in ENDS if side != but)
        edge = "".join(left) if but else edge_said(ends)
        in_title = set() if is_whole else self._in_title
        stack = stacks.get(edit.where["stack"], "") * ("stack" not in in_title)
        heads = heads_said(edit.where) * ("layer" not in in_title)
        place = ": ".join(filter(None, [" ".join(filter(None, [stack, heads])), edge]))
        is_told = is_whole or not self._are_alike
        others = edit.others if is_whole else self._own(edit)
        kind = kind_said(edit.kind * is_told, others)
        if is_everywhere(edit):
            place = "all heads" if not place else f"{place}: all heads"
        return shown_text(" · ".join(filter(None, [place, kind])), limit=_WHOLE)

    def shared_end(self, rows: Sequence[Row]) -> tuple[str, str]:
        """Return the side on which all edges have one token, and that, if the other differs."""
        if all(len(row.edits) == 1 for row in rows):
            ends = [{side: self.token(row.edits[0], side) for side in ENDS} for row in rows]
            if all(all(end.values()) for end in ends):
                for side, other in (ENDS, ENDS[::-1]):
                    if len({end[side] for end in ends}) == 1 < len({end[other] for end in ends}):
                        return side, ends[0][side]
        return "", ""

    def token(self, edit: Edited, side: str) -> str:
        """Name tokens by their texts, after their position if texts repeat; "" if none is named."""
        at = edit.where[side]
        texts = self._texts[edit.where["stack"]][side]
        are_told = len(set(texts.values())) == len(texts)

        def named(one: Any) -> str:
            if isinstance(one, str) or one not in texts:
                return shown_text(str(one))
            return shown_text(texts[one]) if are_told else numbered(one, shown_text(texts[one]))

        if at is None:
            return ""
        return ", ".join(map(named, at)) if isinstance(at, tuple) else named(at)

    @cached_property
    def _texts(self) -> dict[Any, dict[str, Mapping[int, str]]]:
        """The texts of tokens by stack, side and position."""
        found: dict[Any, dict[str, Mapping[int, str]]] = {}
        for stack in {edit.where["stack"] for row in self._every for edit in row.edits}:
            own = self.table
            if "stack" in own:
                own = own[own["stack"].isna() if stack is None else own["stack"] == stack]
            sides = Sides.of(own)
            found[stack] = {
                side: dict(zip(texts, spelled(texts.values()), strict=True))
                for side, texts in (("query", sides.queries), ("key", sides.keys))
            }
        return found


def _some_said(what: str, every: Sequence[str]) -> str:
    """List the first few of some kinds or places, and say how many others there are."""
    more = len(every) - _LISTED
    listed = ", ".join(shown_text(one, limit=80) for one in every[:_LISTED])
    return f"{what}: {listed}" + f" and {more:,} more" * (more > 0)


def shared_places(table: pd.DataFrame) -> dict[str, Any]:
    """Give the stack, the layer and the head that all rows have, each only within those before."""
    found: dict[str, Any] = {}
    for name in PLACES:
        values = list(table[name].drop_duplicates()) if name in table else []
        if len(values) > 1:
            break
        if values and not pd.isna(values[0]):
            found[name] = values[0]
    return found


def _what(table: pd.DataFrame) -> str:
    """Say what is edited, if all rows edit the same."""
    layer, head, query, key = (table[name].notna() for name in ("layer", "head", *ENDS))
    if table[list(ENDS)].notna().any(axis=1).all():
        return (
            "edges to tokens" * (not key.any())
            or "edges from tokens" * (not query.any())
            or "edges"
        )
    if (query | key).any() or not layer.all():
        return ""
    return "heads" if head.all() else "layers" * (not head.any())
