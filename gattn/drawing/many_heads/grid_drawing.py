"""Draws small matrices in rows and columns, with what stands around them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from math import ceil
from typing import Any, TypeAlias

from matplotlib.figure import Figure, SubFigure

from gattn.drawing.canvas.labels import font_size, small_size, widest_of
from gattn.drawing.canvas.pen import Pen
from gattn.drawing.many_heads.grid import Block, Grid
from gattn.drawing.many_heads.grid_plan import MARGIN, Plan
from gattn.drawing.many_heads.sheet import (
    Sheet,
    as_inches,
    inches_of,
    line_height,
)
from gattn.drawing.matrices.cells import EdgeCells, sink_columns
from gattn.drawing.styles.figures import new_figure, within_page
from gattn.errors import ShapeError
from gattn.heads.head import AttentionGraph

Line: TypeAlias = "list[tuple[float, float]]"
_EVERY = (1, 2, 4, 5, 10, 20, 50)
"""Of how many columns one is numbered where not all numbers have room."""
_EVENED = 3
"""How often the height of a figure is shared out among grids, so that their matrices are alike."""
_IN_ROWS = 1.5
"""How much more the area of matrices is worth whose rows are layers."""
_STEPS = 16
"""In how many steps a page without room becomes wider, until it has some."""
_HALVINGS = 6
"""How often the room is halved in which a figure is looked for that has some."""


def draw_grids(
    grids: Sequence[Grid],
    figure: Figure | SubFigure | None,
    new: Callable[[tuple[float, float]], Figure | SubFigure] = new_figure,
    figsize: tuple[float, float] | None = None,
    others: Sequence[Sequence[Grid]] = (),
) -> Figure:
    """Draw grids one below the other, where no figure is given in a `new` one, which they fit.

    They fill a figure that is given, or one of the size `figsize`; one of `others`, which show the
    same, does so instead where its matrices are larger then. What has no room makes none.
    """
    usual, plans = _usual(grids)
    given = figsize if figure is None else inches_of(figure)
    if given is not None:
        plans = _largest([grids, *others], given)
    _check_room([grids, *others], plans, given or usual, usual)
    figure = new(figsize or usual) if figure is None else figure
    sheet, top, first = Sheet(figure), 0.0, plans[0]
    for plan in plans:
        first = first if plan.grid.continues else plan
        plan.tell(has_labels=first.has_labels)
        _Drawing(sheet, plan, top).draw()
        top += plan.height
    return figure.figure


def _usual(grids: Sequence[Grid]) -> tuple[tuple[float, float], list[Plan]]:
    """Plan grids in their usual size, all equally wide, on a page if they have room there.

    If not, they are as small as they have room.
    """
    wide = max(Plan(grid).width for grid in grids)
    plans = [Plan(grid, wide) for grid in grids]
    size = wide, sum(plan.height for plan in plans)
    narrow = within_page(*size)[0]
    slim = [Plan(grid, narrow) for grid in grids]
    page = within_page(narrow, sum(plan.height for plan in slim))
    if page == size:
        return size, plans
    for some in (slim, _filling(grids, page)):
        if sum(plan.height for plan in some) <= page[1] + 1e-6 and _have_room(some):
            return (narrow, sum(plan.height for plan in some)), some
    for width in (narrow + (wide - narrow) * step / _STEPS for step in range(_STEPS)):
        slim = [Plan(grid, width) for grid in grids]
        if _have_room(slim):
            return (width, sum(plan.height for plan in slim)), slim
    return size, plans


def _have_room(plans: Iterable[Plan]) -> bool:
    return all(plan.has_room for plan in plans)


def _largest(ways: Sequence[Sequence[Grid]], size: tuple[float, float]) -> list[Plan]:
    """Plan what fills a figure with the largest matrices; rows have names if no head has one."""
    best = max((_filling(grids, size) for grids in ways), key=_how_large)
    named = [plan if plan.has_names else _with_named_rows(plan) for plan in best]
    return named if _have_room(named) else best


def _with_named_rows(plan: Plan) -> Plan:
    """Name each row by its first head, if others follow in order."""
    rows = plan.grid.firsts
    return Plan(replace(plan.grid, rows=rows), plan.width, plan.height) if rows else plan


def _how_large(plans: Sequence[Plan]) -> tuple[bool, bool, float]:
    """Return whether plans, and names, have room, and the area of their smallest matrices.

    Where no name is whole, matrices are worth half of their area; those in rows of their layer are
    worth more than others.
    """
    area = min(plan.panel[0] * plan.panel[1] * (1 + plan.whole_names) / 2 for plan in plans)
    if not any(plan.grid.has_places for plan in plans):
        area *= _IN_ROWS
    return _have_room(plans), all(plan.has_names for plan in plans), area


def _filling(grids: Sequence[Grid], size: tuple[float, float]) -> list[Plan]:
    """Plan grids so that they fill a figure, with matrices as large as possible."""
    wide, tall = size
    usual = [Plan(grid, wide) for grid in grids]
    whole = sum(plan.height for plan in usual)
    ways = [[Plan(plan.grid, wide, tall * plan.height / whole) for plan in usual]]
    for _ in range(_EVENED * (len(grids) > 1)):  # names above larger matrices may be longer
        texts = [plan.texts for plan in ways[-1]]
        if sum(texts) >= tall:
            break
        parts = _even(usual, tall - sum(texts))
        some = zip(grids, texts, parts, strict=True)
        ways.append([Plan(grid, wide, text + part) for grid, text, part in some])
    return max(ways, key=_how_large)


def _even(plans: Sequence[Plan], whole: float) -> list[float]:
    """Share out a height so that matrices are equally large, if they are no larger than planned."""
    sides = [max(plan.panel) for plan in plans]
    low, high = 0.0, max(sides)
    for _ in range(_STEPS):
        middle = (low + high) / 2
        parts = [
            plan.matrices * min(middle / side, 1) for plan, side in zip(plans, sides, strict=True)
        ]
        low, high = (middle, high) if sum(parts) <= whole else (low, middle)
    return [whole * part / sum(parts) for part in parts]


def _check_room(
    ways: Sequence[Sequence[Grid]],
    plans: Sequence[Plan],
    given: tuple[float, float],
    usual: tuple[float, float],
) -> None:
    """Refuse a figure that is too small, and say how high it must be, or how large, at least."""
    if _have_room(plans):
        return
    wide, tall = _with_room(ways, given, usual)
    raise ShapeError(
        f"The heads have no room on a figure of {given[0]:.1f} x {given[1]:.1f} inches: give one "
        f"of about {wide:.1f} x {tall:.1f}, a smaller font, or fewer heads."
    )


def _with_room(
    ways: Sequence[Sequence[Grid]], given: tuple[float, float], usual: tuple[float, float]
) -> tuple[float, float]:
    """Find the lowest figure with room of the same width, or else the smallest between two."""
    (wide, tall), (widest, tallest) = given, map(max, given, usual)

    def size(share: float) -> tuple[float, float]:
        found = wide + share * (widest - wide), tall + share * (tallest - tall)
        return ceil(10 * found[0] - 1e-6) / 10, ceil(10 * found[1] - 1e-6) / 10

    if _have_room(_largest(ways, (wide, tallest))):
        widest = wide
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        has_room = _have_room(_largest(ways, size(middle)))
        low, high = (low, middle) if has_room else (middle, high)
    return size(high)


class _Drawing:
    """Draws a grid on a sheet, `top` inches below its upper end."""

    def __init__(self, sheet: Sheet, plan: Plan, top: float) -> None:
        self._sheet, self._plan, self._top, self._grid = sheet, plan, top, plan.grid

    def draw(self) -> None:
        """Draw the panels and all that stands around them."""
        plan, grid = self._plan, self._grid
        x, style = plan.beside, {"va": "top", "linespacing": 1.25}
        at, named = self._top + MARGIN, {"size": font_size(), "gid": "gattn-title"}
        self._sheet.write(x, at, plan.title, **named, **style)
        at, said = self._top + plan.over_caption, {"alpha": 0.75, "gid": "gattn-caption"}
        self._sheet.write_for(x, at, self._caption, **said, **style)
        for row, name in enumerate(grid.rows):
            self._write_aside(name, self._y(row) + plan.panel[1] / 2, va="center")
        for number, block in enumerate(grid.blocks):
            self._draw_block(number, block)
            self._name_columns(number, block)
            self._name_groups(number)
        x = self._x(len(grid.blocks) - 1, grid.size[1]) + 0.1
        for number, pen in enumerate(grid.keys):
            right, down = plan.key_place(number)
            self._sheet.add_key(x + right, self._y(0) + down, plan.key, pen)

    def _caption(self, dots: float) -> str:
        """Return the caption for a resolution, at which pixels may share cells."""
        return self._plan.caption if self._plan.pooled(dots) else self._plan.plain_caption

    def _x(self, block: int, column: int) -> float:
        long = self._grid.size[1] * self._plan.step + self._plan.between
        return self._plan.left + block * long + column * self._plan.step

    def _y(self, row: int) -> float:
        return self._top + self._plan.top + self._plan.above + row * self._plan.row

    def _write_aside(self, text: str, y: float, **style: Any) -> None:
        """Write in the left margin."""
        self._sheet.write(self._plan.left - as_inches(6), y, text, ha="right", **style)

    def _name_columns(self, number: int, block: Block) -> None:
        """Write "head 3" above each column, or where these do not fit, "head" once and numbers."""
        plan = self._plan
        y = self._top + plan.groups - 0.3 * line_height(font_size())
        self._sheet.write(self._x(number, 0), y, block.name, size=font_size())
        names = [f"head {column}" for column in block.columns]
        y = self._top + plan.top - as_inches(max(2, 0.25 * small_size()))  # for what hangs below
        every = 1
        if names and not _fit(names, plan.step):
            names = list(block.columns)
            every = next((n for n in _EVERY if _fit(names, n * plan.step)), len(names))
            if number == 0:
                self._write_aside("head", y)
        for column, name in list(enumerate(names))[::every]:
            self._sheet.write(self._x(number, column) + plan.panel[0] / 2, y, name, ha="center")

    def _name_groups(self, number: int) -> None:
        """Draw a line above the columns that share a key-value head, and name it."""
        plan, groups = self._plan, self._grid.groups
        if not groups:
            return
        y = self._top + plan.columns - as_inches(2)
        names = [f"key-value head {group}" for group, _, _ in groups]
        if not _fit(names, plan.step * min(1 + last - first for _, first, last in groups)):
            names = [str(group) for group, _, _ in groups]
            if number == 0:
                self._write_aside("key-value", y - as_inches(3))
        lines: list[Line] = []
        for name, (_, first, last) in zip(names, groups, strict=True):
            left, right = self._x(number, first), self._x(number, last) + plan.panel[0]
            lines.append([(left, y), (right, y)])
            self._sheet.write((left + right) / 2, y - as_inches(3), name, ha="center")
        self._sheet.add_lines(lines, "gattn-key-value-heads", linewidths=0.8, alpha=0.75)

    def _draw_block(self, number: int, block: Block) -> None:
        plan, names = self._plan, self._plan.names[number]
        frames: list[Line] = []
        marks: list[Line] = []
        bars: list[tuple[float, float, float]] = []
        for (row, column), panel in block.panels.items():
            x, y = self._x(number, column), self._y(row)
            frames.append(self._draw_panel(panel.head, block.pen, x, y))
            marks += list(self._generated(panel.head, x, y))
            above, name = y - plan.clear, names.texts[row, column]
            if name:
                self._sheet.write(x, above, name, size=names.size, va="bottom", linespacing=1.1)
            if panel.bar is not None:
                bars.append((x, above + as_inches(3), panel.bar))
            if (number, column) == (0, 0):
                self._label_queries(y)
            if (row + 1, column) not in block.panels:
                self._label_keys(panel.head, x, y + plan.panel[1])
        self._sheet.add_lines(frames, "gattn-frames", linewidths=0.4, alpha=0.35)
        self._sheet.add_lines(marks, "gattn-generated", linewidths=1.4)
        self._draw_bars(bars)

    def _draw_bars(self, bars: Sequence[tuple[float, float, float]]) -> None:
        whole, thick = self._plan.panel[0], {"linewidths": 1.8}
        wholes: list[Line] = [[(x, y), (x + whole, y)] for x, y, _ in bars]
        shares: list[Line] = [[(x, y), (x + whole * share, y)] for x, y, share in bars]
        self._sheet.add_lines(wholes, "gattn-whole-bars", alpha=0.15, **thick)
        self._sheet.add_lines(shares, "gattn-bars", **thick)

    def _draw_panel(self, head: AttentionGraph, pen: Pen, x: float, y: float) -> Line:
        """Draw a matrix, and give its frame, which leaves out the sink."""
        plan, (wide, tall) = self._plan, self._plan.panel
        found = EdgeCells.of(head, pool=self._grid.pool)
        self._sheet.add_image((x, y, wide, tall), found, pen)
        wide -= 2 * sink_columns(head) * plan.token(head)[0]
        return [(x, y), (x + wide, y), (x + wide, y + tall), (x, y + tall), (x, y)]

    def _generated(self, head: AttentionGraph, x: float, y: float) -> Iterator[Line]:
        """Return lines beside the rows and above the columns of generated tokens."""
        graph, (across, down), apart = head.graph, self._plan.token(head), as_inches(2.5)
        last = graph.num_queries if graph.is_bipartite else graph.num_tokens - graph.query_offset
        row, column = max(last - head.generated, 0), graph.num_tokens - head.generated
        if row < min(last, graph.num_queries):
            low = y + graph.num_queries * down
            yield [(x - apart, y + row * down), (x - apart, low)]
        if not graph.is_bipartite and column < graph.num_keys:
            right = x + graph.num_keys * across
            yield [(x + column * across, y - apart), (right, y - apart)]

    def _label_queries(self, y: float) -> None:
        labels, down = self._plan.queries, self._plan.token(self._grid.head)[1]
        for place, text in enumerate(labels.texts):
            if text:
                there = y + (place + 0.5) * down
                self._write_aside(text, there, va="center", size=labels.size)

    def _label_keys(self, head: AttentionGraph, x: float, y: float) -> None:
        plan, labels, across = self._plan, self._plan.keys, self._plan.token(head)[0]
        style: dict[str, Any] = {"ha": "center", "va": "top", "rotation": labels.rotation}
        places = [x + (key + 0.5) * across for key in range(head.graph.num_keys)]
        if head.sink is not None:
            places.append(x + plan.panel[0] - across * sink_columns(head) / 2)
        for place, text in zip(places, labels.texts, strict=False):
            if text:
                self._sheet.write(place, y + as_inches(3), text, size=labels.size, **style)


def _fit(names: Sequence[str], room: float) -> bool:
    return as_inches((widest_of(names) + 0.5) * small_size()) <= room
