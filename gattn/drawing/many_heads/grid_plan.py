"""How large the parts of a picture of many heads are, so that all its texts have room."""

from __future__ import annotations

from math import inf

from gattn.drawing.canvas.keys import bar_name
from gattn.drawing.canvas.labels import (
    COARSEST,
    Labels,
    fit,
    font_size,
    larger,
    small_size,
    widest_of,
    width_of,
)
from gattn.drawing.chosen.queries import names_said
from gattn.drawing.many_heads.grid import Grid
from gattn.drawing.many_heads.panel_names import PanelNames
from gattn.drawing.many_heads.panel_tokens import are_few, fit_tokens
from gattn.drawing.many_heads.sheet import as_inches, key_width, line_height
from gattn.drawing.matrices.cells import COARSE, pooling_said, sink_columns
from gattn.drawing.matrices.minus import MARKED, marked_said
from gattn.heads.head import AttentionGraph
from gattn.names.text import wrapped

_THUMBNAIL, _TOKEN, _PANEL = 1.15, 0.24, (1.9, 4.2)
"""Inches of a thumbnail; of a token where tokens are written, and of the panel they are part of."""
_NARROWEST, _WIDEST, _WIDEST_BLOCKS = 5.0, 14.0, 21.0
BETWEEN, MARGIN = 0.35, 0.15
"""Inches between blocks, and around all."""
_FILLED = 0.92
"""How much of the distance between panels they fill."""
_CLEAR = 0.15
"""The most that stays clear above a panel without a name, as a share of its longer side."""
_LEAST, _LEAST_KEY, _LEAST_OF_TWO = 0.07, 0.4, 0.3
"""Inches of a matrix and of a key of colours, at least; of one that stands above another."""
_SHORT_KEY = 0.9
"""To how many inches a key of colours shrinks beside low matrices."""
_BETWEEN_KEYS = 0.25
"""Inches between keys of colours, one below the other."""
_GAP = 0.03
"""The share of a given figure's width that lies between blocks, if that is less than usual."""
_MOST_APART = 0.25
"""How far panels move apart to fill a given figure, at most: the share of their width or height."""
_NO_LABELS = Labels([], 0, 0)
_TRIES = 6
"""How often panels are measured again to fill a height."""
_MOST_LINES, _LINED = 2, 0.4
"""How many lines a name may have, where there is room for them; inches of a matrix below them."""
_APART = 1.0
"""The least distance between the names of two panels, in font sizes."""
_WORTH = 1.5
"""By how much tokens may shrink the sides of matrices."""
_REACH = 0.18
"""The share of the width or height of a given figure that tokens beside matrices may take."""


class Plan:
    """How large the parts of a grid are, in inches.

    Parameters
    ----------
    grid : Grid
        The grid.
    width : float, optional
        Its width; by default that of panels of the usual size.
    height : float, optional
        The height to fill; by default that of panels of the usual size.
    """

    def __init__(self, grid: Grid, width: float | None = None, height: float | None = None) -> None:
        self.grid = grid
        self._reach, self.between, self._key_width = (inf, inf), BETWEEN, key_width()
        self._apart, self._pitch = (0.0, 0.0), 0.0
        if width is not None and height is not None:
            self._reach = _REACH * width / as_inches(1), _REACH * height / as_inches(1)
            self.between = min(BETWEEN, _GAP * width)
        self.has_keys_below = height is not None and len(grid.keys) > 1
        self.is_labelled = grid.is_labelled
        self._plan_all(width, height)
        if self.is_labelled and height is not None:
            self._leave_out_tokens(width, height)
        if self.has_keys_below and not self._have_keys_room_below():
            self.has_keys_below = False
            self._plan_all(width, height)
        if height is not None and self._longest_name > self.key:  # it takes two lines
            self._key_width += line_height(small_size())
            self._plan_all(width, height)

    def _leave_out_tokens(self, width: float | None, height: float) -> None:
        """Write no tokens if few have room, or if they would take it from matrices or names."""
        few, side, whole = are_few(self.keys, self.queries), max(self.panel), self.whole_names
        self.is_labelled = False
        self._plan_all(width, height)
        if not few and max(self.panel) < _WORTH * side and self.whole_names <= whole:
            self.is_labelled = True
            self._plan_all(width, height)

    def _plan_all(self, width: float | None, height: float | None) -> None:
        self._plan(width, height, self._left())
        for _ in range(_TRIES if height is not None and self.is_labelled else 0):
            left = MARGIN + as_inches(self.queries.widest + 6)
            if abs(left - self.left) < as_inches(1):
                break
            self._plan(width, height, left)

    def _plan(self, width: float | None, height: float | None, left: float) -> None:
        """Plan with so many inches left of the panels."""
        grid = self.grid
        rows, columns = grid.size
        across = grid.shape[0]
        count, usual = columns * len(grid.blocks), _usual_side(grid)
        self.left, self._wider = left, 1.0
        self.beside = MARGIN if self.is_labelled and height is not None else left
        around = self.left + self.between * (len(grid.blocks) - 1)
        around += self._key_width * (1 if self.has_keys_below else len(grid.keys)) + MARGIN
        if width is None:
            most = larger() * (_WIDEST if len(grid.blocks) == 1 else _WIDEST_BLOCKS)
            wanted = around + count * usual * across / _FILLED
            width = min(max(wanted, _NARROWEST * larger()), most)
        self.width = width
        side = max(_FILLED * (width - around) / count / across, 0.05)
        self._pitch = (width - around) / count if height is not None else 0.0
        for self._lines in range(_MOST_LINES, -1, -1):
            self._measure(side if height else min(side, usual))
            if height is None or (self._fill(height, side) and self.has_names):
                break
        if height is not None and self._lines > 1 and max(self.panel) < _LINED:
            self._write_in_a_line(height, side)
        is_large = max(self.panel) >= _LEAST
        if height is not None:
            self._move_apart(width - around, height)
        self.texts = self.top + rows * self.above + self.bottom
        self.matrices = rows * (self.row - self.above)
        wanted = self.top + rows * self.row + self.bottom
        least = self.top + self.above + 1.2 * larger() + self.under_caption - MARGIN
        self.height = height or max(wanted, least)
        long = self.height - self.top - self.above - self.under_caption
        if height is not None:  # the caption stands below the key
            long = min(long, max(rows * self.row - self.above, _SHORT_KEY * larger()))
        below = len(grid.keys) - 1 if self.has_keys_below else 0
        self.key: float = min(1.5 * larger(), (long - below * _BETWEEN_KEYS) / (1 + below))
        if below:
            beside = (rows * self.row - self.above - _BETWEEN_KEYS) / 2
            self.key = min(self.key, max(beside, self._longest_name + as_inches(small_size())))
        long = self.key + below * (self.key + _BETWEEN_KEYS)
        drawn = max(rows * self.row + as_inches(self.keys.extent), self.above + long)
        self.over_caption = self.top + drawn + 0.6 * line_height(small_size())
        least = _LEAST_OF_TWO if self.has_keys_below else _LEAST_KEY
        self.has_room = is_large and self.key >= least
        self.has_room &= self._has_block_names(columns * self.step + self.between)

    def _fill(self, height: float, side: float) -> bool:
        """Shrink panels until they fit in a height; tell whether they are large enough then."""
        rows, down = self.grid.size[0], self.grid.shape[1]
        for _ in range(_TRIES):  # names above smaller panels may take more lines
            row = (height - self.top - self.bottom) / rows - self.above + _clear(side)
            wanted = max(down / _FILLED, down + 1 - _FILLED)
            fitting = max((row - _clear()) / wanted, row / (wanted + _CLEAR), 0.05)
            if fitting >= side and self.row * rows + self.top + self.bottom <= height:
                break
            side = min(side, fitting)
            self._measure(side)
        return max(self.panel) >= _LEAST

    def _write_in_a_line(self, height: float, side: float) -> None:
        """Let names above small matrices have one line, if some form of all is whole in it."""
        lines, whole = self._lines, self.whole_names
        for self._lines in (1, lines):
            self._measure(side)
            if self._fill(height, side) and self.has_names and self.whole_names >= whole:
                break

    def _move_apart(self, wide: float, height: float) -> None:
        """Widen panels whose cells are too narrow, and move all apart, where they leave room."""
        rows, count = self.grid.size[0], self.grid.size[1] * len(self.grid.blocks)
        side = max(self.panel)
        self._widen(0.99 * _FILLED * wide / count, side)
        most = [_MOST_APART * one for one in self.panel]
        loose = 0.99 * (wide - count * self.panel[0] / _FILLED) * (count > 1)
        across = max(min(loose / count, most[0]), 0.0)
        lines, has_names = self._lines, self.has_names
        for self._lines in range(lines, -1, -1):  # there is room for longer names
            self._apart = across, 0.0
            self._measure(side)
            if self._loose(height) >= 0 and self.has_names >= has_names:
                break
        else:
            self._lines, self._apart, across = lines, (0.0, 0.0), 0.0
            self._measure(side)
        loose = 0.99 * self._loose(height) * (rows > 1)
        self._apart = across, max(min(loose / rows, most[1]), 0.0)
        self._measure(side)
        self._apart = 0.0, 0.0

    def _widen(self, most: float, side: float) -> None:
        """Let matrices that are drawn higher than their cells are square be wider, up to `most`."""
        across, down = self.token(self.grid.head)
        self._wider = max(min(down / across, most / self.panel[0]), 1.0)
        if self._wider > 1.0:
            self._measure(side)

    def _loose(self, height: float) -> float:
        """Return how many inches of a height nothing takes."""
        return height - self.top - self.bottom - self.grid.size[0] * self.row

    @property
    def _longest_name(self) -> float:
        """The length in inches of the longest name beside a key of colours."""
        return as_inches(widest_of(pen.name for pen in self.grid.keys) * small_size())

    def _have_keys_room_below(self) -> bool:
        """Whether keys one below the other are long enough, and their names apart."""
        long = self.key / as_inches(1)
        lines = [line for pen in self.grid.keys for line in bar_name(pen.name, long).split("\n")]
        apart = long + _BETWEEN_KEYS / as_inches(1) - _APART * small_size()
        return self.key >= _LEAST_OF_TWO and widest_of(lines) * small_size() <= apart

    def key_place(self, number: int) -> tuple[float, float]:
        """Return how far right of the first key, and below it, a key of colours lies."""
        if self.has_keys_below:
            return 0.0, number * (self.key + _BETWEEN_KEYS)
        return number * self._key_width, 0.0

    def _has_block_names(self, room: float) -> bool:
        """Whether what stands above a block ends before the next one's name."""
        return self._widest_block <= room

    @property
    def _widest_block(self) -> float:
        """The inches that the name of a block takes, but for the last, which ends the line."""
        *some, _ = (block.name for block in self.grid.blocks)
        return as_inches((widest_of(some) + _APART) * font_size()) if some else 0.0

    @property
    def _pitch_of_blocks(self) -> float:
        """How far panels must stand apart, in inches, for the names of blocks."""
        return 1.01 * (self._widest_block - self.between) / self.grid.size[1]

    @property
    def has_names(self) -> bool:
        """Whether in each block any name, if there are some, has room above its panel."""
        return all(any(names.texts.values()) or not names.count for names in self.names)

    @property
    def whole_names(self) -> float:
        """The share of names above panels that are whole."""
        count = sum(names.count for names in self.names)
        return sum(names.whole for names in self.names) / count if count else 1.0

    def _left(self) -> float:
        """Find the room that the names of rows, or the tokens of queries, take."""
        grid, widest = self.grid, 0.0
        if grid.rows:
            names = [*grid.rows, "head", *["key-value"] * bool(grid.groups)]
            widest = widest_of(names) * small_size()
        if self.is_labelled:
            named = dict(enumerate(grid.head.query_labels()))
            tokens = fit(named, 99, rotations=(90,), reach=self._reach[0])
            widest = tokens.widest + width_of("0000 ") * tokens.size
        return MARGIN + as_inches(widest + 6)

    def _measure(self, side: float) -> None:
        grid, line = self.grid, line_height(small_size())
        size = 0.9 * font_size() if grid.is_strip else small_size()
        across, down = grid.shape
        self.panel = side * across * self._wider, side * down
        self.step = self.panel[0] / _FILLED + self._apart[0]
        room = (self.width - self.beside - MARGIN) / as_inches(1) / COARSEST
        self.title = wrapped(grid.title, room / font_size(), grid.measure)
        self.names = [
            PanelNames.fitting(block, self._room_of_names(size), size, self._lines, grid.measure)
            for block in grid.blocks
        ]
        apart = max(self._pitch_of_names, self._pitch_of_blocks)
        self.step = max(self.step, min(self._pitch, apart))
        lines = 0
        for has_labels in (True, False) if grid.continues else (self.has_labels,):
            self.tell(has_labels=has_labels)
            lines = max(lines, self.caption.count("\n"))
        self.clear = _clear(side) + as_inches(5 * grid.has_bars + 3 * bool(grid.head.generated))
        self.above = self.clear + max(names.height for names in self.names)
        self.row = self.above + self.panel[1] + (1 - _FILLED) * side + self._apart[1]
        self.under_title = MARGIN
        if self.title:
            self.under_title += line_height(font_size()) * (1.4 + self.title.count("\n"))
        self.groups = self.under_title + 1.1 * line_height(font_size()) * bool(grid.blocks[0].name)
        self.columns = self.groups + 1.6 * line * bool(grid.groups)
        self.top = self.columns + 1.1 * line * bool(grid.blocks[0].columns)
        self.keys = self.queries = _NO_LABELS
        if self.is_labelled:
            sizes = self.panel[0], self.token(grid.head)
            self.keys, self.queries = fit_tokens(grid, *sizes, self.step, self._reach)
        below = line * (1.6 + lines) if self.caption else 0.0
        self.bottom = MARGIN + as_inches(self.keys.extent) + below
        self.under_caption = MARGIN + below

    def _room_of_names(self, size: float) -> float:
        """Return the inches that a name above a panel may take, away from the next one's."""
        if self.grid.size[1] == len(self.grid.blocks) == 1:
            return self.panel[0]
        return (max(self.step, self._pitch) - as_inches(_APART * size)) / COARSEST

    @property
    def _pitch_of_names(self) -> float:
        """How far panels must stand apart, in inches, for the names above them."""
        named = [names for names in self.names if any(names.texts.values())]
        found = [as_inches((COARSEST * one.widest + _APART) * one.size) for one in named]
        return max(found, default=0.0)

    @property
    def has_labels(self) -> bool:
        """Whether what stands above the heads of the first block is whole."""
        first = self.names[0]
        return bool(first.whole or not first.count)

    def tell(self, *, has_labels: bool) -> None:
        """Write the captions, which say whether labels are above heads, here or in a grid above."""
        plain, pooled = self._said(has_labels=has_labels), self.pooled()
        room = (self.width - self.beside - MARGIN) / as_inches(1) / COARSEST
        self.plain_caption, self.caption = (
            wrapped(said, room / small_size(), self.grid.measure)
            for said in (plain, "; ".join(filter(None, [plain, pooled])))
        )

    def _said(self, *, has_labels: bool) -> str:
        """Add to the caption, unless it is the user's, what the size of the panels leaves out."""
        grid = self.grid
        if grid.said_by_user or not grid.caption:
            return grid.caption
        count = sum(names.count for names in self.names)
        shown = sum(names.shown for names in self.names)
        whole = sum(names.whole for names in self.names)
        lacks = f"{whole} of {count} names are whole" * (0 < whole < count)
        if shown < count:
            lacks = f"{shown} of {count} heads' names have room"
            lacks = lacks if shown else "no room for heads' names"
        if grid.rows and grid.rows == grid.firsts:
            lacks = "rows are named by their first head, layer.head"
        top = grid.top_of_marked
        are_marked = top is not None and min(self.token(grid.head)) >= as_inches(MARKED)
        marked = marked_said(top) if top is not None and are_marked else ""
        caption = grid.caption if has_labels else grid.unlabelled
        places = names_said(grid.head) if self.is_labelled else ""
        return "; ".join(filter(None, [caption, self._naming(), places, marked, lacks]))

    def _naming(self) -> str:
        """Say how names such as "2.0" are to be read, if there are no others."""
        every = [text for names in self.names for text in names.texts.values() if text]
        is_short = self.grid.has_places and every and "layer" not in "".join(every)
        is_known = self.grid.head.layer is not None
        return "heads are named layer.head" if is_short and is_known else ""

    def pooled(self, dots: float = COARSE) -> str:
        """Say what pixels show that several cells share, of so many per inch; "" if none do."""
        grid, (wide, tall) = self.grid, self.panel
        if grid.said_by_user or not grid.caption:
            return ""
        shape = grid.head.graph.num_queries, grid.head.graph.num_keys
        return pooling_said(shape, (tall, wide), grid.pool, dots)

    def token(self, head: AttentionGraph) -> tuple[float, float]:
        """Measure the width of a key and the height of a query."""
        wide, tall = self.panel
        columns = head.graph.num_keys + 2 * sink_columns(head)
        return wide / max(columns, 1), tall / max(head.graph.num_queries, 1)


def _clear(side: float = inf) -> float:
    """Return how many inches stay clear above a panel of a size that has no name."""
    return min(as_inches(3), _CLEAR * side)


def _usual_side(grid: Grid) -> float:
    """Return the longer side of a matrix that is neither too small nor too large."""
    if not grid.is_strip:
        return larger() * _THUMBNAIL
    tokens = max(grid.head.graph.num_keys, grid.head.graph.num_queries)
    return larger() * min(max(_TOKEN * tokens, _PANEL[0]), _PANEL[1])


def most_columns(head: AttentionGraph) -> int:
    """Return how many heads with labelled tokens have room side by side."""
    tokens = max(head.graph.num_keys, head.graph.num_queries)
    return 6 if _TOKEN * tokens < _PANEL[0] else 4
