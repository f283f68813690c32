"""Small images in rows and columns, with what stands around them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from matplotlib.cm import ScalarMappable
from matplotlib.figure import Figure, SubFigure
from matplotlib.ticker import MaxNLocator

from gattn.drawing.canvas.labels import (
    COARSEST,
    font_size,
    larger,
    small_size,
    widest_of,
    width_of,
)
from gattn.drawing.many_heads.sheet import (
    Sheet,
    as_inches,
    inches_of,
    key_width,
    line_height,
)
from gattn.drawing.matrices.minus import MARKED, first_marked, marked_said
from gattn.drawing.over_image.borders import SEEN, border_style, borders_of
from gattn.drawing.over_image.draw_image import ImagePen, blocks, faded, over_grey
from gattn.drawing.over_image.images import Image
from gattn.drawing.over_image.patches import Patches
from gattn.drawing.styles.figures import new_figure, within_page
from gattn.errors import ShapeError
from gattn.names.text import wrapped

IN_A_ROW = 6
"""The most panels of the usual size side by side."""
_LARGE, _SMALL = 1.7, 1.05
"""The longer side of a panel in inches, of a few and of many."""
_GAP, _MARGIN = 0.06, 0.12
"""Inches between panels, and around all."""
_NARROW = 0.15
"""The most that lies between panels, as a share of the distance from one to the next."""
_OUTLINED = 4.0
"""The size of patches in points from which their outline has its usual width."""
_LEAST = 0.14
"""Inches of the width of a panel, at least."""


@dataclass(frozen=True, eq=False)
class Panel:
    """One small image: its place, its names, and its colours, or none for the image itself.

    `short` is the end of the name that stands above it where there is no room for more.
    """

    row: int
    column: int
    name: str
    found: Patches | None
    outlined: tuple[tuple[int, int], ...] = ()
    aside: str = ""
    short: str = ""


class Panels:
    """Small images in rows and columns on a sheet, measured in inches."""

    def __init__(
        self, panels: Sequence[Panel], image: Image, pen: ImagePen, title: str, caption: str
    ) -> None:
        self._panels, self._image, self._pen = panels, image, pen
        self._title, self._caption = title, caption
        self._rows = 1 + max(panel.row for panel in panels)
        self._columns = 1 + max(panel.column for panel in panels)
        grid = next(panel.found for panel in panels if panel.found).grid
        self._covered, self._cells = grid.covered, (grid.rows, grid.columns)
        self._ratio = image.size[0] / image.size[1]

    def drawn(
        self, figure: Figure | SubFigure | None, figsize: tuple[float, float] | None
    ) -> Figure:
        """Draw on a figure, or on a new one of a given or of fitting size."""
        size = self._planned(figsize if figure is None else inches_of(figure))
        if self._side < _LEAST:
            self._refuse(size)
        figure = new_figure(size) if figure is None else figure
        self._draw(Sheet(figure))
        return figure.figure

    def _refuse(self, size: tuple[float, float]) -> None:
        """Say how large a figure must be."""
        wide, tall = size
        while self.side_on((wide, tall)) < _LEAST:
            wide, tall = 1.05 * wide, 1.05 * tall
        raise ShapeError(
            f"{self._rows} × {self._columns} images have no room on a figure of {size[0]:.1f} × "
            f"{size[1]:.1f} inches: give one of about {wide:.1f} × {tall:.1f}, or fewer heads."
        )

    def side_on(self, given: tuple[float, float]) -> float:
        """Return how wide a panel is on a figure of a size."""
        self._planned(given)
        return self._side

    def _planned(self, given: tuple[float, float] | None) -> tuple[float, float]:
        """Find where all parts stand on a figure of a given or of fitting size; return the size."""
        large = _LARGE if self._columns <= IN_A_ROW else _SMALL
        side = larger() * large * min(max(self._ratio**-0.5, 0.4), 2.0)
        aside = widest_of(panel.aside for panel in self._panels)
        self._left = _MARGIN + as_inches(aside * small_size() + 5)
        around = self._left + key_width() + _MARGIN
        self._gap = _GAP
        if given is None:
            wide = max(around + self._columns * (side + _GAP), 3.0 * larger())
            wide, most = within_page(wide, inf)[0], within_page(inf, inf)[1]
            side = min(side, (wide - around) / self._columns - _GAP)
        else:
            wide, tall = given
            pitch = (wide - around) / self._columns
            self._gap = min(_GAP, max(_NARROW * pitch, 0.0))
            side = min(pitch - self._gap, large * 2)
        self._measure(wide, side)
        if given is None:
            tall = min(self._height, most)
        if self._height > tall:
            side -= (self._height - tall) / self._rows / self._ratio
            self._measure(wide, side)
        return wide, tall

    def _measure(self, wide: float, side: float) -> None:
        """Find where all parts stand, on a figure of a width."""
        self._side, self._tall = side, side * self._ratio
        room = (wide - self._left - _MARGIN) / as_inches(1) / COARSEST
        said = "; ".join(filter(None, [self._caption, self._marked]))
        self._texts = (
            wrapped(self._title, room / font_size(), width_of),
            wrapped(said, room / small_size(), width_of),
        )
        self._names = {panel: self._fitting(panel.name) for panel in self._panels}
        widest = widest_of(line for name in self._names.values() for line in name.split("\n"))
        self._kind, first = "", self._panels[0]
        if first.short and as_inches(widest * small_size()) > side + self._gap:
            self._names = {panel: panel.short for panel in self._panels}
            self._kind = first.name.removesuffix(first.short).strip()
        lines = [
            max((1 + n.count("\n")) * bool(n) for p, n in self._names.items() if p.row == row)
            for row in range(self._rows)
        ]
        y = _MARGIN + line_height(font_size()) * (1 + self._texts[0].count("\n")) + 0.03
        self._tops = []
        for count in lines:
            y += count * line_height(small_size()) + 0.03 * bool(count)
            self._tops.append(y)
            y += self._tall + self._gap
        self._under = y + 0.04
        below = 1 + self._texts[1].count("\n") if self._texts[1] else 0
        self._height = self._under + below * line_height(small_size()) + _MARGIN

    def _fitting(self, name: str) -> str:
        room = max(self._side / as_inches(1) / small_size(), 3)
        return wrapped(name, room, width_of) if name else ""

    def _draw(self, sheet: Sheet) -> None:
        style = {"va": "top", "linespacing": 1.25}
        sheet.write(self._left, _MARGIN, self._texts[0], size=font_size(), **style)
        sheet.write(self._left, self._under, self._texts[1], alpha=0.75, **style)
        small = self._image.no_larger(max(64, int(self._side * 200)))
        ground = faded(small)
        for panel in self._panels:
            x = self._left + panel.column * (self._side + self._gap)
            y = self._tops[panel.row]
            box = (x, y, self._side, self._tall)
            sheet.add_pixels(box, small.pixels if panel.found is None else ground)
            if panel.found is not None:
                own = self._patch_box(x, y)
                sheet.add_pixels(own, blocks(panel.found.values, self._pen))
                if self._are_marked:
                    pen = self._pen
                    sheet.add_signs(own, panel.found.values, pen.top, pen.painted)
                self._add_borders(sheet, panel.found, x, y)
            self._outline(sheet, panel, x, y)
            name = self._names[panel]
            middle = x + self._side / 2
            sheet.write(middle, y - 0.04, name, ha="center", va="bottom", linespacing=1.2)
            if panel.aside and panel.column == 0:
                aside = self._left - as_inches(4), y + self._tall / 2
                sheet.write(*aside, panel.aside, ha="right", va="center")
        if self._kind:
            aside = self._left - as_inches(4), self._tops[0] - 0.04
            sheet.write(*aside, self._kind, ha="right", va="bottom", linespacing=1.2)
        x = self._left + self._columns * (self._side + self._gap) + 0.06
        long = min(self._tops[-1] + self._tall - self._tops[0], 2.4 * larger())
        bar = ScalarMappable(self._pen.norm, over_grey(self._pen.cmap))
        name = next(panel.found for panel in self._panels if panel.found).name
        sheet.add_bar(x, self._tops[0], long, bar, name, MaxNLocator(5))

    @property
    def _are_marked(self) -> bool:
        """Whether negative patches are large enough to have signs."""
        return self._pen.is_signed and min(self._patch) >= as_inches(MARKED)

    @property
    def _marked(self) -> str:
        """Say what is marked, if anything is."""
        found = [panel.found.least for panel in self._panels if panel.found is not None]
        has_some = self._are_marked and min(found) < first_marked(self._pen.top)
        return marked_said(self._pen.top) if has_some else ""

    @property
    def _patch(self) -> tuple[float, float]:
        """The width and height of a patch in inches."""
        _, _, wide, tall = self._patch_box(0, 0)
        return wide / self._cells[1], tall / self._cells[0]

    def _patch_box(self, x: float, y: float) -> tuple[float, float, float, float]:
        down, across = self._covered
        return x, y, self._side * across, self._tall * down

    def _add_borders(self, sheet: Sheet, found: Patches, x: float, y: float) -> None:
        """Draw lines around the patches that have a number, if some have none."""
        wide, tall = self._patch
        if min(wide, tall) >= as_inches(SEEN):
            lines = [
                [(x + i * wide, y + j * tall) for i, j in one] for one in borders_of(found.values)
            ]
            sheet.add_lines(lines, "gattn-borders", **border_style())

    def _outline(self, sheet: Sheet, panel: Panel, x: float, y: float) -> None:
        across, down = self._patch
        for row, column in panel.outlined:
            left, upper = x + column * across, y + row * down
            corners = [(left, upper), (left + across, upper), (left + across, upper + down)]
            corners += [(left, upper + down), (left, upper)]
            sheet.add_outline(corners, min(across, down) / as_inches(_OUTLINED))
