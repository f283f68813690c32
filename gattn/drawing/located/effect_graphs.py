"""What edits of edges change, on the layout that a graph brings with it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from matplotlib.axes import Axes
from matplotlib.colors import Colormap

from gattn.drawing.canvas.frame import KEY_WIDTH, describe, make_room
from gattn.drawing.canvas.keys import add_line_key
from gattn.drawing.canvas.labels import font_size, small_size, width_of
from gattn.drawing.chosen.given import checks_given
from gattn.drawing.located.on_layout import NOT_KNOWN, axes_with, draw_on_layout
from gattn.drawing.results.effects.draw_effects import around, check_effects
from gattn.drawing.results.effects.layouts import MOST_EDGES, Changes, none_said, strongest_said
from gattn.drawing.results.effects.names import TableEdits
from gattn.drawing.results.effects.sides import stacks_of, told_apart, told_texts
from gattn.errors import SelectionError, ShapeError
from gattn.heads.geometry import Layout
from gattn.names.text import wrapped

if TYPE_CHECKING:
    from gattn.models.effects.effect_tables import Effects


@checks_given
def draw_effects_graph(
    table: Effects,
    places: Any = None,
    *,
    figsize: tuple[float, float] | None = None,
    ax: Axes | None = None,
    cmap: str | Colormap | None = None,
    labels: bool = True,
    legend: bool = True,
) -> Axes:
    """Draw what edits of a graph's edges change, on its layout: all nodes where they lie.

    Edges run from key to query. Their colours and widths are the change, around 0 if some are
    negative, which are dashed, too. Where heads or layers have the same edge, it shows the largest
    of their changes. Other edges of the table are faint; only the ends of edges are named.
    `figsize`, `ax`, `cmap`, `labels` and `legend`: see `gattn.drawing`.

    Parameters
    ----------
    table : Effects
        What `gattn.effect` or `gattn.estimate` returns of edits of single edges, such as
        ``Cut(query=3, key=5)``, or some of its rows.
    places : array (nodes, 2) or mapping of node to (x, y)
        Where the nodes lie, as ``data.pos`` or ``networkx.spring_layout(graph)``.

    Raises
    ------
    SelectionError
        If some edits are not of single edges, or queries and keys are not the same nodes.
    ShapeError
        If it is not known where the nodes lie, or some have no place.
    """
    check_effects(table)
    _check_edges(table)
    if places is None:
        raise ShapeError(NOT_KNOWN)
    names = _names(table, places)
    where = Layout.named(places, range(len(names)), names).places
    changes = Changes.of(table, len(names), cmap)
    chosen = changes.strongest(MOST_EDGES)
    pairs = list(zip(table["key"].astype(int), table["query"].astype(int), strict=True))
    sizes = {pairs[n]: float(changes.values[n]) for n in chosen}  # the strongest comes last
    notes = [*none_said(changes), *strongest_said(changes, chosen)]
    ax, is_own = axes_with(len(names), ax, figsize, legend=legend)
    room = KEY_WIDTH * font_size() / small_size()
    pen = replace(changes.pen, name=wrapped(changes.pen.name, room, width_of))
    draw_on_layout(ax, names, where, sizes, set(pairs) - set(sizes), pen, labels=labels)
    if legend and sizes:
        add_line_key(ax, pen)
    edits = TableEdits(table)
    shared = ["of each edge the largest change, among"] * (len(sizes) < len(chosen))
    said = [*notes, *edits.kinds_said(), *edits.places_said(*shared), *around(table)]
    describe(ax, {}, edits.title(("layer", "head")), said)
    if is_own:
        make_room(ax)
    return ax


def _check_edges(table: Effects) -> None:
    if len(stacks := stacks_of(table)) > 1:
        raise SelectionError(
            f"A graph shows one stack, but there are {', '.join(stacks)}: choose one, as in "
            f"found[found['stack'] == {stacks[0]!r}]."
        )
    if told_apart(table):
        raise SelectionError(
            "The queries and keys of these edges are different tokens, so they are not the nodes "
            "of one graph: found.draw() shows them side by side."
        )
    if bool(table[["query", "key"]].isna().any(axis=None)):
        raise SelectionError(
            "On a graph are drawn edits of single edges, with query and key, such as Cut(query=3, "
            "key=5): select their rows. found.draw() shows all others."
        )


def _names(table: Effects, places: Any) -> list[str]:
    """Name all nodes: as the table tells them, otherwise by their numbers."""
    told = told_texts(table)["key"]
    if told:
        return told
    most = int(table[["query", "key"]].to_numpy(dtype=int).max())
    return [str(n) for n in range(max(most + 1, len(places)))]
