"""Pictures of what edits change in a model's answer, also on the graph itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import Colormap

from gattn.drawing.canvas.frame import describe
from gattn.drawing.canvas.sides import say_patches
from gattn.drawing.results.effects.layouts import LAYOUTS, Changes, none_said
from gattn.drawing.results.effects.names import TableEdits
from gattn.drawing.results.effects.sides import Sides, stacks_of
from gattn.edit_records import in_words
from gattn.errors import SelectionError

if TYPE_CHECKING:
    from gattn.models.effects.effect_tables import Effects

_EDGE = ["layer", "head", "query", "key"]
_IN_TITLES = {
    "edits": None,
    "heads": (),
    "arcs": ("layer", "head"),
    "matrix": ("layer", "head"),
    "layered": (),
}
"""Which places stand in the title: those that the picture does not show itself."""


def draw_effects(
    table: Effects,
    layout: str | None = None,
    *,
    ax: Axes | None = None,
    cmap: str | Colormap | None = None,
) -> Axes:
    """Draw what edits change in a metric of the model's answer.

    Colours show the change, around 0 if some are negative. If the table is of `gattn.estimate`,
    the estimates are drawn.

    Parameters
    ----------
    table : Effects
        What `gattn.effect` or `gattn.estimate` returns, or some of its rows.
    layout : str, optional
        "edits": one bar per edit, in the table's order; of more than 40 edits those that change
        most, the largest change first, without those that change nothing. "heads": a heatmap,
        layers by heads. For edits of single edges: "arcs" and "matrix" if they are of one head,
        "layered" if of several; there each pair of tokens in a layer shows its strongest head. Keys
        that are other tokens than queries, as in cross-attention, are on the left. By default the
        one that fits.

    Raises
    ------
    SelectionError
        If there are no rows, or the layout does not show edits of their kind.
    """
    check_effects(table)
    layout = _fitting(table) if layout is None else layout
    if layout not in LAYOUTS:
        raise SelectionError(f"layout is one of {', '.join(LAYOUTS)}, not {layout!r}.")
    _check_layout(table, layout)
    sides = Sides.of(table)
    changes = Changes.of(table, len(sides), cmap)
    ax, notes = LAYOUTS[layout](table, changes, sides, ax)
    what = layout if layout in ("edits", "heads") else "edges"
    if table[["query", "key"]].notna().any(axis=None):
        say_patches(ax, [*sides.queries.values(), *sides.keys.values()])
    edits = TableEdits(table)
    kinds = [] if layout == "edits" else edits.kinds_said()
    said = [*none_said(changes, what), *notes, *kinds, *around(table)]
    describe(ax, {}, edits.title(_IN_TITLES[layout]), said)
    return ax


def check_effects(table: pd.DataFrame) -> None:
    """Refuse a table without rows, or without the columns that say what was edited."""
    if not len(table) or not {"effect", "layer", "head", "query", "key"} <= set(table.columns):
        raise SelectionError(
            "There are no effects to draw: keep at least one row, and the columns layer, head, "
            "query, key and effect."
        )


def around(table: pd.DataFrame) -> list[str]:
    """Name the edits that the model ran with besides those measured, and add the table's notes."""
    edits = in_words(table.attrs.get("edits", ()))
    return [*([f"in the model {edits}"] if edits else []), *table.attrs.get("notes", ())]


def _are_edges(table: pd.DataFrame) -> bool:
    return bool(table[_EDGE].notna().all(axis=None)) and _are_unique(table)


def _are_heads(table: pd.DataFrame) -> bool:
    is_whole = table[["query", "key"]].isna().all(axis=None)
    return bool(is_whole and table[["layer", "head"]].notna().all(axis=None)) and _are_unique(table)


def _are_unique(table: pd.DataFrame) -> bool:
    """Return whether each place is edited only once; without names there is only one stack."""
    places = table[[*(["stack"] * (len(stacks_of(table)) > 1)), *_EDGE]]
    return not bool(places.duplicated().any())


def _heads_of(table: pd.DataFrame) -> int:
    columns = [*(["stack"] * (len(stacks_of(table)) > 1)), "layer", "head"]
    return len(table[columns].drop_duplicates())


def _fitting(table: pd.DataFrame) -> str:
    if "edit" in table and len(TableEdits(table).kinds) > 1:  # Bars name them.
        return "edits"
    if _are_edges(table):
        return "arcs" if _heads_of(table) == 1 else "layered"
    return "heads" if _are_heads(table) and len(stacks_of(table)) < 2 else "edits"


def _check_layout(table: pd.DataFrame, layout: str) -> None:
    if layout == "heads" and not _are_heads(table):
        raise SelectionError(
            "layout='heads' shows edits of whole heads, each once: try layout='edits'."
        )
    if layout in ("arcs", "matrix", "layered") and not _are_edges(table):
        raise SelectionError(
            f"layout={layout!r} shows edits of single edges, with layer, head, query and key, each "
            "once: try layout='edits'."
        )
    if layout in ("arcs", "matrix") and _heads_of(table) > 1:
        raise SelectionError(
            f"layout={layout!r} shows the edges of one head, but there are {_heads_of(table)}: "
            "choose some rows, such as found[(found.layer == 2) & (found['head'] == 0)], or "
            "layout='layered'."
        )
    if layout in ("heads", "layered") and len(stacks := stacks_of(table)) > 1:
        raise SelectionError(
            f"layout={layout!r} shows one stack, but there are {', '.join(stacks)}: choose one, as "
            f"in found[found['stack'] == {stacks[0]!r}]."
        )
