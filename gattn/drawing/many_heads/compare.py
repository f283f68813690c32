"""Pictures of two runs on the same tokens: before, after and what changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pandas as pd
from matplotlib.colors import Colormap
from matplotlib.figure import Figure, SubFigure

from gattn.analysis.heads.compare import columns_of, compare_head, difference, mean_distance, pairs
from gattn.analysis.heads.divergences import FARTHEST
from gattn.analysis.reading.attention import Heads, named
from gattn.drawing.canvas.colours import Scale, colour_map
from gattn.drawing.canvas.frame import edits_between, shown_text
from gattn.drawing.canvas.pen import Pen
from gattn.drawing.chosen.given import checks_given
from gattn.drawing.chosen.heads import Chosen
from gattn.drawing.many_heads.draw_heads import (
    HeadOptions,
    edges_shown,
    key_value_groups,
    texts_of,
    what_is_shown,
)
from gattn.drawing.many_heads.grid import Block, Grid, Panel
from gattn.drawing.many_heads.grid_drawing import draw_grids
from gattn.drawing.many_heads.order import Arranged, Graphs, Order, titled
from gattn.drawing.many_heads.scores import HeadScore
from gattn.drawing.many_heads.sheet import inches_of
from gattn.drawing.matrices.cells import Pool
from gattn.drawing.styles.figures import check_one_size
from gattn.edit_records import union
from gattn.heads.head import AttentionGraph
from gattn.names.choices import HeadChoice

PLAIN = "before", "after"
_BLOCKS = (3,), (2, 1), (1, 1, 1)
"""How many of before, after and the change stand side by side, from the top to the bottom."""


@checks_given
def draw_compare(
    before: Heads,
    after: Heads,
    *,
    tokens: Sequence[str] = (),
    edits: str = "",
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
    """Draw every head before and after, and the change, after - before.

    The three stand side by side, or one below the other if there are few layers; all, or the change
    below the others, also if matrices are larger so on the given figure. Each is drawn as by
    `draw_heads`. Before and after share one scale; the change has another, a square-root scale from
    -1 to 1 around 0 (further if attention exceeds 1). Above a change stands its Jensen-Shannon
    distance as a bar, which is as wide as the matrix if before and after have nothing in common,
    and as a number where that has room.

    If the heads of the two sides differ in their weight function, normalizer or model, these
    replace "before" and "after".

    Parameters
    ----------
    before, after : Heads
        Two traces with the same tokens, stacks and heads; or anything else that holds attention,
        such as what two weight functions make of the same queries and keys.
    tokens : sequence of str
        The texts of the tokens, if both are arrays.
    edits : str
        What was edited between the two, in your words, for the caption; by default it names the
        edits recorded in the runs.
    heads : int, sequence of int, or sequence of (layer, head), optional
        Which heads, as in `draw_heads`: each in a row of larger matrices with their tokens.
    sort, label : str, mapping or Series, optional
        Scores to sort heads by and to write above them, as in `draw_heads`: the name of a column
        of `gattn.analysis.compare`, such as ``"distance"``, or of the head table of `before`, or
        numbers by (layer, head).
    cmap : str or Colormap, optional
        The colours of the change; their middle is 0.
    stack, within_layers, vmax, pool, title, caption, figsize, figure
        As in `draw_heads`.

    Raises
    ------
    SelectionError
        If there are no heads, or the two have other stacks, heads or tokens.
    ShapeError
        If attention is negative, or the given figure is too small.
    """
    check_one_size(figure, figsize)
    options = HeadOptions(
        heads, stack, sort, label, within_layers, vmax, pool, title, caption, cmap
    )
    before, after = named(before, tokens), named(after, tokens)
    found = {place: both for place, *both in pairs(before, after)}
    chosen = Chosen.of(before, {place: one for place, (one, _) in found.items()}, heads, stack)
    afters = {place: found[place][1] for place in chosen.graphs}
    known = _compared(chosen.graphs, afters) if {type(sort), type(label)} & {str} else None
    order = Order.of(
        chosen.graphs,
        sort,
        label,
        within_layers=within_layers,
        is_strip=chosen.is_strip,
        known=known,
    )
    scale = Scale.of(*chosen.graphs.values(), *afters.values(), vmax=vmax)
    plain = Pen(scale, colour_map(None, is_signed=False, is_area=True))
    signed = Scale(scale.top, is_signed=True, widest=scale.widest)
    change = Pen(signed, colour_map(cmap, is_signed=True, is_area=True), "change in attention")
    beyond = scale.beyond([*chosen.graphs.values(), *afters.values()])

    def grid_of(graphs: Graphs, across: int) -> Grid:
        """Make the grid of a stack, of a strip with so many heads side by side."""
        arranged = order.arrange(graphs, columns=across)
        groups = key_value_groups(graphs) if arranged.columns else ()
        sides = _Sides(graphs, {place: afters[place] for place in graphs})
        shown = [shown_text(sides.edits(edits), limit=200), *sides.caption()]
        blocks = sides.blocks(order, arranged, plain, change)
        named = replace(chosen, model="") if sides.are_models else chosen
        above, below, unlabelled = texts_of(options, named.title(graphs), order, shown, [beyond])
        return Grid(
            above, below, unlabelled, blocks, arranged.rows, groups, chosen.is_strip, pool,
            has_places=not arranged.rows, firsts=arranged.firsts,
            said_by_user=caption is not None,
        )  # fmt: skip

    stacks = chosen.stacks()
    size = figsize if figure is None else inches_of(figure)
    ways = [_stacked(grid_of(graphs, int(chosen.is_strip))) for graphs in stacks]
    every = [[grid for way in some for grid in way] for some in zip(*ways, strict=True)]
    if size is not None:
        shape = len(stacks) * size[0] / size[1]
        for blocks in _BLOCKS:
            for across in order.filling_columns(stacks, shape * len(blocks) / max(blocks)):
                flowing = map(grid_of, stacks, across)
                every.append([part for grid in flowing for part in grid.stacked(*blocks)])
    grids, *others = every
    return draw_grids(grids, figure, figsize=figsize, others=others)


def _stacked(grid: Grid) -> list[list[Grid]]:
    """List the ways in which before, after and the change may stand, the usual one first."""
    rows, columns = grid.size
    ways = [grid.stacked(*blocks) for blocks in _BLOCKS]
    return ways[::-1] if columns > 3 * rows else ways


def _compared(befores: Graphs, afters: Graphs) -> pd.DataFrame:
    rows = [compare_head(befores[place], afters[place]) for place in befores]
    return pd.DataFrame(columns_of(rows)).set_index(pd.MultiIndex.from_tuples(befores))


class _Sides:
    """The heads of a stack before and after, and what the two are called.

    Parameters
    ----------
    befores, afters : mapping of (str, int, int) to AttentionGraph
        The heads by stack, layer and head.
    """

    def __init__(self, befores: Graphs, afters: Graphs) -> None:
        self._befores, self._afters = befores, afters
        self._names = _side_names(list(befores.values()), list(afters.values()))
        models = {one.model for side in (befores, afters) for one in side.values()}
        self.are_models = set(self._names) == models

    def blocks(
        self, order: Order, arranged: Arranged, plain: Pen, change: Pen
    ) -> tuple[Block, ...]:
        """Return before, after and the change, with the same heads in the same places."""
        names = *self._names, "after − before" if self._names == PLAIN else "difference"
        ones, others, changes = {}, {}, {}
        for spot, place in arranged.spots.items():
            before, after, named = self._befores[place], self._afters[place], arranged.names[place]
            ones[spot] = Panel(before, order.labelled(place, named))
            others[spot] = Panel(after, named[1:])
            distance = mean_distance(before, after)
            said = _forms(named[1], distance_text(distance))
            changes[spot] = Panel(difference(before, after), said, distance / FARTHEST)
        sides = zip((ones, others, changes), (plain, plain, change), names, strict=True)
        return tuple(Block(*side, arranged.columns) for side in sides)

    def edits(self, said: str) -> str:
        """Return what was edited, in the caller's words if given."""
        one, other = (
            union(head.edits for head in side.values()) for side in (self._befores, self._afters)
        )
        return edits_between(one, other, said)

    def caption(self) -> list[str]:
        """Return what is shown."""
        before, after = self._names
        named = [] if self._names == PLAIN else [f"difference: {after} − {before}"]
        return [
            *named,
            *what_is_shown(self._befores, self._afters),
            *_kept({before: self._befores, after: self._afters}),
            "the bar above a change is its Jensen-Shannon distance, mean over queries; a full bar "
            f"is {FARTHEST:.3f}, no attention in common",
        ]


def _forms(name: str, text: str) -> tuple[str, ...]:
    """Write a head's distance after its name, which stays where only one of them has room."""
    return (titled(name, text), f"{name}:\n{text}", name) if name else (text, "")


def _side_names(
    befores: Sequence[AttentionGraph], afters: Sequence[AttentionGraph]
) -> tuple[str, str]:
    """Name two sides by what tells them apart."""
    for name in ("weight_function", "normalizer", "model"):
        one, other = ({getattr(head, name) for head in side} for side in (befores, afters))
        if len(one) == len(other) == 1 and one != other and all(one | other):
            return shown_text(one.pop()), shown_text(other.pop())
    return PLAIN


def _kept(sides: Mapping[str, Graphs]) -> list[str]:
    """Return how many edges are shown, if not all."""
    said = [
        f"{name} {edges_shown(heads.values())}"
        for name, heads in sides.items()
        if any(head.dropped_edges.any() for head in heads.values())
    ]
    return [*said, "edges that were not kept count as 0"] if said else []


def distance_text(distance: float) -> str:
    """Write a Jensen-Shannon distance; "0" only if there is none at all."""
    if 0 < distance < 5e-4:
        return "< 0.001"
    return f"{distance:.3f}" if distance else "0"
