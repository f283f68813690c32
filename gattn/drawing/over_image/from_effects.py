"""Numbers of patches, from what edits of them change in a model's answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from gattn.drawing.canvas.frame import shown_text
from gattn.drawing.chosen.queries import Tokens
from gattn.drawing.over_image.patches import Patches, grid_of
from gattn.drawing.results.effects.draw_effects import around, check_effects
from gattn.drawing.results.effects.layouts import Changes, none_said
from gattn.drawing.results.effects.names import TableEdits
from gattn.drawing.results.effects.sides import stacks_of, told_apart, told_texts
from gattn.errors import SelectionError
from gattn.heads.geometry import Grid
from gattn.names.tokens import cells_of

_NONE = "the table does not say which patches its tokens are"


def of_effects(table: pd.DataFrame, query: Any, key: Any, grid: Any) -> Patches:
    """Read effects or estimates, one for each patch; see `gattn.drawing.draw_image`."""
    check_effects(table)
    if len(stacks := stacks_of(table)) > 1:
        raise SelectionError(
            f"A picture shows one stack, but there are {', '.join(stacks)}: choose one, as in "
            f"found[found['stack'] == {stacks[0]!r}]."
        )
    asked, side = _sides(table, query, key)
    texts = told_texts(table)
    labels = texts[side]
    if not labels:
        raise SelectionError(_unknown(table, side))
    lie, known = cells_of(labels), None
    if lie is not None:
        rows, columns, cells = lie
        known = Grid(rows, columns, np.array(cells))
    found = grid_of(known, grid, len(labels), _NONE)
    said = ["each patch: edges from it" if side == "key" else "each patch: edges to it"]
    outlined: tuple[tuple[int, int], ...] = ()
    if asked:
        known = None if told_apart(table) else found
        named = texts[asked] or list(map(str, range(1 + int(table[asked].max()))))
        tokens = Tokens(range(len(named)), named, known, asked)
        wanted = query if asked == "query" else key
        chosen = _only(table[asked]) if wanted is None else tokens.find(wanted)
        if len(chosen) != 1:
            raise SelectionError(f"Effects of edges are drawn of one {asked}, not {len(chosen)}.")
        table = table[(table[asked] == chosen[0]).fillna(value=False)]
        called = tokens.called(chosen)
        said = [f"edges from {called}" if asked == "key" else f"edges to {called}"]
        if known is not None and known.cells[chosen[0]] >= 0:
            outlined = (divmod(int(known.cells[chosen[0]]), known.columns),)
        if not len(table):
            raise SelectionError(f"The table has no edits of {said[0]}.")
        if table[side].isna().any():
            raise SelectionError(
                f"{asked}= chooses edges, but the table has edits of all edges of a token: leave "
                f"out {asked}=, or select the rows of single edges."
            )
    places = table[side].to_numpy(dtype=np.int64)
    if len(np.unique(places)) < len(places):
        raise SelectionError(
            "A picture has one number per patch, but several edits are of the same one, and "
            "effects do not add up: choose rows of one head, such as found[(found.layer == 2) & "
            "(found['head'] == 0)], or draw an array (rows, columns) of your own: "
            "gattn.drawing.draw_image(array, image)."
        )
    said += _off_image(found.cells[places] < 0)
    edits = TableEdits(table)
    changes = Changes.of(table, len(labels), None)
    values = np.full(len(labels), np.nan)
    values[places] = changes.values
    said += [*none_said(changes, "edits"), *edits.kinds_said(), *edits.places_said()]
    return Patches(
        found.spread(values),
        found,
        changes.pen.name,
        edits.title(("layer", "head")),
        tuple(shown_text(text, limit=400) for text in [*said, *around(table)] if text),
        outlined,
    )


def _off_image(are_off: NDArray[np.bool_]) -> list[str]:
    """Say how many edits are of tokens that are no patch, such as a class token."""
    off = int(are_off.sum())
    said = f"{off} of {len(are_off)} edits {'is' if off == 1 else 'are'} of no patch"
    return [said] if off else []


def _sides(table: pd.DataFrame, query: Any, key: Any) -> tuple[str, str]:
    """Return which side is asked about, "" if edits are of whole tokens, and which has patches."""
    has = {side: table[side].notna() for side in ("query", "key")}
    if query is not None or key is not None:
        return ("query", "key") if query is not None else ("key", "query")
    for side, other in (("key", "query"), ("query", "key")):
        if has[side].all() and not has[other].any():
            return "", side
    if all(some.all() for some in has.values()):
        for side, other in (("query", "key"), ("key", "query")):
            if table[side].nunique() == 1:
                return side, other
        raise SelectionError(
            "The table has edges of many queries and keys: pass query=(7, 9) for the edges to one "
            "patch, or key= for those from one."
        )
    raise SelectionError(
        "Over an image are drawn edits of one token or one edge each, such as Cut(layer=2, key=5): "
        "select their rows. table.draw() shows all others."
    )


def _unknown(table: pd.DataFrame, side: str) -> str:
    """Say why it is not known how many tokens a side has."""
    if "tokens" not in table.attrs:
        return f"{_NONE}: keep attrs['tokens'], as rows selected from it do."
    told = table.attrs["tokens"]
    if isinstance(told, Mapping) and not stacks_of(table) and len(told) > 1:
        return (
            f"The rows do not say which stack they are of, and there are {', '.join(told)}: name "
            f"one in the edits, as in Cut(stack={next(iter(told))!r}, layer=0, key=5)."
        )
    plural = {"query": "queries", "key": "keys"}[side]
    return (
        f"An image has one number per patch, but the texts or images that the table is of differ "
        f"in their number of {plural}: measure effects on one of them."
    )


def _only(column: pd.Series[Any]) -> list[int]:
    return [int(one) for one in column.unique()]
