"""The names of edits in a picture: the head, and the tokens between which it is edited."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd

from gattn.drawing.canvas.frame import shown_text
from gattn.drawing.results.effects.sides import Sides
from gattn.names.pieces import spelled
from gattn.names.shortening import short_names
from gattn.names.text import numbered

_PLACES = ("stack", "layer", "head")
_ENDS = ("query", "key")
_WHOLE = 400
"""The most letters of an edit that are read to tell it from others."""
_SHORT = 6.0
"""How wide stacks are in short names, in font sizes."""


@dataclass(frozen=True)
class EditNames:
    """The names of some rows of a table of effects.

    Parameters
    ----------
    whole : list of str
        Their names: "2.0: lamp → river" without what the title says of all rows.
    brief : list of str
        The same without the end that all rows share, and with short names of stacks.
    shared : str
        What that end is called; "" if there is none.
    said : str
        What the edits are if all are of one kind, and no cuts; otherwise "".
    """

    whole: list[str]
    brief: list[str]
    shared: str = ""
    said: str = ""

    @classmethod
    def of(cls, table: pd.DataFrame, rows: Iterable[int]) -> EditNames:
        """Name some rows, by number: in words if all can be, or else as they are in Python."""
        some = table.iloc[list(rows)]
        texts = [shown_text(str(one), limit=_WHOLE) for one in some.get("edit", some.index)]
        edits = [_read({str(name): row[name] for name in row}) for row in some.to_dict("records")]
        known = [edit for edit in edits if edit is not None]
        if len(known) < len(texts):
            return cls(texts, texts)
        return _Words(table, known).names()


@dataclass(frozen=True)
class _Edit:
    """An edit of one place: its kind, where it is, and its other values."""

    kind: str
    where: Mapping[str, Any]
    others: Mapping[str, str]


def _read(row: Mapping[str, Any]) -> _Edit | None:
    """Read one row; None if it does not name a layer, or is no single edit."""
    numbers = {name: row.get(name) for name in (*_PLACES, *_ENDS)}
    where = {name: None if pd.isna(x) else x for name, x in numbers.items()}
    if where["layer"] is None:
        return None
    if "edit" not in row:
        return _Edit("Cut", where, {})
    try:
        call = ast.parse(str(row["edit"]), mode="eval").body
    except (SyntaxError, ValueError):
        return None
    if not isinstance(call, ast.Call) or call.args or not isinstance(call.func, ast.Name):
        return None
    given = {str(one.arg): one.value for one in call.keywords}
    for name in (*_PLACES, *_ENDS):
        value = given.pop(name, None)
        if value is not None and where[name] is None:
            where[name] = _plain(value)
    return _Edit(call.func.id, where, {name: _plain(value) for name, value in given.items()})


def _plain(value: ast.expr) -> str:
    """Write a value without Python's quotes."""
    items = value.elts if isinstance(value, (ast.List, ast.Tuple)) else [value]
    is_text = [isinstance(one, ast.Constant) and isinstance(one.value, str) for one in items]
    return ", ".join(
        shown_text(str(ast.literal_eval(one))) if plain else ast.unparse(one)
        for one, plain in zip(items, is_text, strict=True)
    )


@dataclass(frozen=True)
class _Words:
    """Writes edits in words."""

    table: pd.DataFrame
    edits: Sequence[_Edit]

    def names(self) -> EditNames:
        """Name all edits."""
        ends = [{side: self._token(edit, side) for side in _ENDS} for edit in self.edits]
        shared = _shared_end(ends)
        kinds = {(edit.kind, *edit.others.items()) for edit in self.edits}
        is_one = len(kinds) == 1
        stacks = (edit.where["stack"] for edit in self.edits)
        named = list(dict.fromkeys(str(stack) for stack in stacks if stack is not None))
        short = dict(zip(named, short_names(named, _SHORT), strict=True))
        whole, brief = (
            [
                _joined(self._head(edit, names), _edge(end, but), "" if is_one else _kind(edit))
                for edit, end in zip(self.edits, ends, strict=True)
            ]
            for names, but in (({one: shown_text(one) for one in named}, ""), (short, shared))
        )
        said = f"each edge {_edge({shared: ends[0][shared]})}" if shared else ""
        kind = _kind(self.edits[0]) if is_one and self.edits[0].kind != "Cut" else ""
        return EditNames(whole, brief, said, f"each: {kind}" if kind else "")

    @cached_property
    def _said_of_all(self) -> set[str]:
        """What the title says of all rows, the layer with the head."""
        found = set(shared_places(self.table))
        is_one = self.table["head"].isna().all() or "head" in found
        return found if is_one and _have_ends(self.table) else found & {"stack"}

    def _head(self, edit: _Edit, stacks: Mapping[str, str]) -> str:
        """Name the heads of an edit, unless the title does: "2.0", "layer 2", "encoder: 2.0"."""
        stack, layer, head = (edit.where[name] for name in _PLACES)
        found = f"layer {layer}" if head is None else f"{layer}.{head}"
        is_named = stack is not None and "stack" not in self._said_of_all
        named = [stacks[stack]] if is_named else []
        return " ".join(filter(None, [*named, found * ("layer" not in self._said_of_all)]))

    def _token(self, edit: _Edit, side: str) -> str:
        """Name a token by its text, after its position if texts repeat; "" if there is none."""
        at = edit.where[side]
        if at is None or isinstance(at, str):
            return at or ""
        texts = self._texts[edit.where["stack"]][side]
        text = texts.get(int(at), str(int(at)))
        is_told = len(set(texts.values())) == len(texts)
        return shown_text(text) if is_told else numbered(int(at), shown_text(text))

    @cached_property
    def _texts(self) -> dict[Any, dict[str, Mapping[int, str]]]:
        """The texts of tokens by stack, side and position."""
        found: dict[Any, dict[str, Mapping[int, str]]] = {}
        for stack in {edit.where["stack"] for edit in self.edits}:
            own = self.table
            if "stack" in own:
                own = own[own["stack"].isna() if stack is None else own["stack"] == stack]
            sides = Sides.of(own)
            found[stack] = {
                side: dict(zip(texts, spelled(texts.values()), strict=True))
                for side, texts in (("query", sides.queries), ("key", sides.keys))
            }
        return found


def _shared_end(ends: Sequence[Mapping[str, str]]) -> str:
    """Return the side on which all edges have one token, if they differ on the other."""
    if all(all(end.values()) for end in ends):
        for side, other in (_ENDS, _ENDS[::-1]):
            if len({end[side] for end in ends}) == 1 < len({end[other] for end in ends}):
                return side
    return ""


def _edge(end: Mapping[str, str], but: str = "") -> str:
    """Write an edge as information flows: "lamp → river", or "from lamp" to all queries."""
    query, key = (end.get(side, "") for side in _ENDS)
    if but:
        return query if but == "key" else key
    if query and key:
        return f"{key} → {query}"
    return f"to {query}" if query else f"from {key}" if key else ""


def _kind(edit: _Edit) -> str:
    """Write what an edit does: "Scale factor 0.5"."""
    return ", ".join([edit.kind, *(f"{name} {value}" for name, value in edit.others.items())])


def _joined(head: str, edge: str, kind: str) -> str:
    """Put the parts of a name together."""
    place = ": ".join(filter(None, [head, edge]))
    return " · ".join(filter(None, [place, kind]))


def shared_places(table: pd.DataFrame) -> dict[str, Any]:
    """Give the stack, the layer and the head that all rows have, each only within those before."""
    found: dict[str, Any] = {}
    for name in _PLACES:
        values = list(table[name].drop_duplicates()) if name in table else []
        if len(values) > 1:
            break
        if values and not pd.isna(values[0]):
            found[name] = values[0]
    return found


def edits_title(table: pd.DataFrame, *, are_cuts: bool) -> str:
    """Say what all rows of a table edit, and where."""
    shared = shared_places(table)
    parts = [shown_text(str(shared["stack"]))] if "stack" in shared else []
    if _have_ends(table):
        parts += [f"{name} {shared[name]}" for name in ("layer", "head") if name in shared]
    what = _what(table)
    doing = f"cutting {what}" if are_cuts else f"edits of {what}"
    return " · ".join([*parts, doing if what else "cuts" if are_cuts else "edits"])


def _what(table: pd.DataFrame) -> str:
    """Say what is edited, if all rows edit the same."""
    layer, head, query, key = (table[name].notna() for name in ("layer", "head", *_ENDS))
    if _have_ends(table):
        return (
            "edges to tokens" * (not key.any())
            or "edges from tokens" * (not query.any())
            or "edges"
        )
    if (query | key).any() or not layer.all():
        return ""
    return "heads" if head.all() else "layers" * (not head.any())


def _have_ends(table: pd.DataFrame) -> bool:
    return bool(table[list(_ENDS)].notna().any(axis=1).all())
