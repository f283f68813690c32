"""Pictures of all heads of a trace at a glance, and of chosen ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TypeAlias

from matplotlib.colors import Colormap
from matplotlib.figure import Figure, SubFigure

from gattn.analysis.reading.attention import Heads, named
from gattn.analysis.reading.heads import by_place
from gattn.drawing.canvas.colours import Scale, colour_map
from gattn.drawing.canvas.frame import edits_said
from gattn.drawing.canvas.labels import with_powers
from gattn.drawing.canvas.pen import Pen
from gattn.drawing.chosen.given import checks_given
from gattn.drawing.chosen.heads import Chosen
from gattn.drawing.chosen.shown import all_of, kept_by, share_of
from gattn.drawing.many_heads.grid import Block, Grid, Panel
from gattn.drawing.many_heads.grid_drawing import draw_grids
from gattn.drawing.many_heads.order import Graphs, Order, is_narrow, strip_columns
from gattn.drawing.many_heads.scores import HeadScore
from gattn.drawing.many_heads.sheet import inches_of
from gattn.drawing.many_heads.telling import draw_beside, telling_head, two_sides
from gattn.drawing.matrices.cells import Pool, check_pool
from gattn.drawing.styles.figures import check_one_size
from gattn.edit_records import union
from gattn.heads.given.weights import what_of
from gattn.heads.head import AttentionGraph
from gattn.names.choices import HeadChoice
from gattn.names.text import writable

Groups: TypeAlias = "tuple[tuple[int, int, int], ...]"


@checks_given
def draw_heads(
    attention: Heads,
    *,
    tokens: Sequence[str] = (),
    heads: HeadChoice = None,
    stack: str | None = None,
    sort: HeadScore | None = None,
    label: HeadScore | None = None,
    within_layers: bool = False,
    vmax: float | None = None,
    pool: Pool = "mean",
    title: str | None = None,
    caption: str | None = None,
    cmap: str | Colormap | None = None,
    figsize: tuple[float, float] | None = None,
    figure: Figure | SubFigure | None = None,
) -> Figure:
    """Draw every head as a small heatmap: layers are rows, heads are columns.

    In each matrix rows are queries and columns keys, a sink on the right, and every kept edge is
    shown. All share one scale from 0 to 1 (further if attention exceeds 1, and from -1 if it is
    signed). Where pixels hold several cells, they show their mean; the caption says so.
    With grouped queries, a line above the heads that share a key-value head names it; lines
    beside the rows and above the columns mark generated tokens. On a new figure, one head of a
    short text stands beside them as a graph with its tokens: the one whose queries, on average,
    read most from a single token that is neither the first nor next to them.

    Parameters
    ----------
    attention : Heads
        A trace, a stack, or anything else that holds attention, as in `gattn.analysis.head_table`.
    tokens : sequence of str
        The texts of an array's tokens, which traces know.
    heads : int, sequence of int, or sequence of (layer, head), optional
        Which heads: some of each layer, or single ones, also as text such as ``"1.1,2.0"``. They
        are drawn as a strip of larger matrices with their tokens.
    stack : str, optional
        The stack to draw; by default all of them, one below the other.
    sort : str, mapping or Series, optional
        A score to sort heads by, the largest first: the name of a column of
        `gattn.analysis.head_table`, or numbers by (layer, head).
    label : str, mapping or Series, optional
        A score to write above each head, such as ``"label"``, which says in words what it does; by
        default the score that sorts them.
    within_layers : bool
        Whether layers stay rows, and `sort` sorts the heads of each.
    vmax : float, optional
        The end of the scale, where attention is small everywhere; by default 1.
    pool : {"mean", "max"}
        What a pixel shows that holds several cells: their mean, which counts pairs without an edge
        as 0, or the one of the largest size. Pixels are those of the file that is saved.
    title, caption : str, optional
        Instead of the model's name above, and of what is said below; "" for none.
    cmap : str or Colormap, optional
        The colours.
    figsize : (float, float), optional
        The width and height in inches of the new figure. Matrices are as large as they have room,
        with square cells, and stand further apart where some is left; a strip takes the rows in
        which its matrices are largest.
    figure : Figure or SubFigure, optional
        Where to draw. By default a new pyplot figure of fitting size, which ``plt.show()`` shows;
        it is yours to close.

    Raises
    ------
    SelectionError
        If there is no such stack, head or score, or nothing to draw, or a trace is given tokens.
    ShapeError
        If the given figure is too small, or there is not one text per token.
    """
    check_one_size(figure, figsize)
    options = HeadOptions(
        heads, stack, sort, label, within_layers, vmax, pool, title, caption, cmap
    )
    attention = named(attention, tokens)
    size = figsize if figure is None else inches_of(figure)
    grids, *others = ways_of(attention, options, size)
    is_plain = heads is sort is label is None and len(grids) == 1
    if figure is None and figsize is None and is_plain:
        graphs = by_place(attention)
        if (place := telling_head(graphs)) is not None:
            found = draw_grids(grids, None, two_sides)
            draw_beside(found, graphs[place], vmax=vmax, cmap=cmap)
            return found
    return draw_grids(grids, figure, figsize=figsize, others=others)


@dataclass(frozen=True)
class HeadOptions:
    """What a user chose for a picture of many heads; `draw_heads` explains each."""

    heads: HeadChoice = None
    stack: str | None = None
    sort: HeadScore | None = None
    label: HeadScore | None = None
    within_layers: bool = False
    vmax: float | None = None
    pool: Pool = "mean"
    title: str | None = None
    caption: str | None = None
    cmap: str | Colormap | None = None

    def __post_init__(self) -> None:
        check_pool(self.pool)


def ways_of(
    attention: Heads, options: HeadOptions, size: tuple[float, float] | None = None
) -> list[list[Grid]]:
    """Lay out the heads of each stack: as usual, and where columns are free also for a size."""
    chosen = Chosen.of(attention, by_place(attention), options.heads, options.stack)
    every = chosen.graphs.values()
    order = Order.of(
        chosen.graphs,
        options.sort,
        options.label,
        within_layers=options.within_layers,
        is_strip=chosen.is_strip,
    )
    scale = Scale.of(*every, vmax=options.vmax)
    pen = Pen(scale, colour_map(options.cmap, is_signed=scale.is_signed, is_area=True))

    def grid_of(graphs: Graphs, across: int) -> Grid:
        places = order.arrange(graphs, across)
        panels = {
            spot: Panel(graphs[one], order.labelled(one, places.names[one]))
            for spot, one in places.spots.items()
        }
        block = Block(panels, pen, columns=places.columns)
        groups = key_value_groups(graphs) if places.columns else ()
        edits = edits_said(union(head.edits for head in graphs.values()))
        beyond = scale.beyond(graphs.values())
        shown = [edges_shown(graphs.values()), *what_is_shown(graphs)]
        title, caption, unlabelled = texts_of(
            options, chosen.title(graphs), order, shown, [beyond, edits]
        )
        return Grid(
            title, caption, unlabelled, (block,), places.rows, groups, chosen.is_strip,
            options.pool, has_places=not places.rows, firsts=places.firsts,
            said_by_user=options.caption is not None,
        )  # fmt: skip

    stacks = chosen.stacks()
    ways = [tuple(strip_columns(graphs) if chosen.is_strip else 0 for graphs in stacks)]
    if size is not None and (order.is_free or any(map(is_narrow, stacks))):
        ways += order.filling_columns(stacks, len(stacks) * size[0] / size[1])
    return [list(map(grid_of, stacks, across)) for across in dict.fromkeys(ways)]


def texts_of(
    options: HeadOptions, title: str, order: Order, before: Iterable[str], after: Iterable[str]
) -> tuple[str, str, str]:
    """Return title, caption, and caption where labels have no room; the user's own if given."""
    said = ([*before, *order.said(has_room=has_room), *after] for has_room in (True, False))
    captions = [with_powers("; ".join(filter(None, parts))) for parts in said]
    own = [options.title, options.caption, options.caption]
    title, caption, unlabelled = (
        writable(usual if given is None else given)
        for usual, given in zip([title, *captions], own, strict=True)
    )
    return title, caption, unlabelled


def edges_shown(heads: Iterable[AttentionGraph]) -> str:
    """Say how many edges are shown, and if not all, by which rule and how much of the attention."""
    heads = list(heads)
    kept = sum(head.graph.num_edges for head in heads)
    total = sum(int(head.total_edges.sum()) for head in heads)
    if kept == total:
        return all_of(total)
    mass = sum(float(head.kept_mass.sum()) for head in heads)
    whole = sum(float(head.total_mass.sum()) for head in heads)
    some = f"{kept:,} of {total:,} edges{share_of(mass, whole, what_of(heads))}"
    return ": ".join(filter(None, [kept_by(heads), some]))


def what_is_shown(*sides: Graphs) -> list[str]:
    """Return what rows, columns and marks of small matrices are."""
    heads = [head for side in sides for head in side.values()]
    said = ["rows are queries, columns keys"]
    if any(head.sink is not None for head in heads):
        said[0] += ", the last one the sink"
    if any(head.generated for head in heads):
        said.append("lines mark generated tokens")
    is_grouped = any(head.key_value_head is not None for head in heads)
    if is_grouped and not key_value_groups(sides[0]):
        said.append("key-value heads differ between layers")
    empty = [head for head in heads if head.sink is None and not head.graph.num_edges]
    if 0 < len(empty) < len(heads):
        said.append(_empty_said(empty))
    return said


def _empty_said(heads: Sequence[AttentionGraph]) -> str:
    """Say why the matrices of some heads are empty."""
    if any(head.total_edges.any() for head in heads):
        return "an empty matrix: none of its edges were kept"
    return "an empty matrix has no edges" + " left" * any(head.edits for head in heads)


def key_value_groups(graphs: Graphs) -> Groups:
    """Find the runs of columns that share a key-value head: the head, first and last column.

    There are none where queries are not grouped, or not alike in all layers.
    """
    read: dict[int, set[int | None]] = {}
    for (_, _, head), graph in graphs.items():
        read.setdefault(head, set()).add(graph.key_value_head)
    columns = [read[head] for head in sorted(read)]
    if any(len(found) > 1 for found in columns):
        return ()
    runs = groupby(range(len(columns)), lambda column: next(iter(columns[column])))
    listed = [(number, list(run)) for number, run in runs]
    return tuple((number, run[0], run[-1]) for number, run in listed if number is not None)
