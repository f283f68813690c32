"""Titles and captions in lines that fit around a picture."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.text import Text
from matplotlib.transforms import Bbox, ScaledTranslation

from gattn.drawing.canvas.fitting import Fitting
from gattn.drawing.canvas.labels import smallest, width_of
from gattn.drawing.canvas.rooms import POINTS_PER_INCH
from gattn.names.text import wrapped

_HIGHEST, _STEPS = 0.28, 4
"""The share of the height that a title, or a caption, may take before its letters get smaller, and
in how many steps they do."""


@dataclass
class TitleAndCaption:
    """A title and a caption, and what was last written; what the user writes instead stays."""

    fitting: Fitting
    ax: Axes
    heading: Text
    below: Text
    title: str
    caption: str
    is_whole: bool

    def __post_init__(self) -> None:
        self.usual = self.heading.get_transform()
        self.written = {id(self.heading): self.title, id(self.below): self.caption}
        self.sizes = {id(one): float(one.get_fontsize()) for one in (self.heading, self.below)}

    def place(self) -> None:
        """Break both into lines, and place them around the rest."""
        around, own = self.fitting.around(), self.ax.bbox
        scale = POINTS_PER_INCH / self.ax.figure.dpi
        notes = [] if self.is_whole else self.fitting.notes.values()
        caption = "; ".join(filter(None, [self.caption, *notes]))
        for text, plain in ((self.heading, self.title), (self.below, caption)):
            if text.get_text() != self.written[id(text)]:
                continue
            self._write(text, plain, around.x1 - around.x0)
            half = self._extent(text).width / 2
            middle = (own.x0 + own.x1) / 2
            moved = max(min(middle, around.x1 - half), around.x0 + half) - middle
            if text is self.heading:
                text.set_x(0.5 + moved / own.width)
                self._lift()
            else:
                text.set_position((moved * scale, (around.y0 - own.y0) * scale - 4))

    def _write(self, text: Text, plain: str, wide: float) -> None:
        """Break a text into lines; smaller ones if they would take too much of the height."""
        most = _HIGHEST * self.fitting.slot.height * self.ax.figure.bbox.height
        largest = self.sizes[id(text)]
        least = largest if self.fitting.grows else min(largest, smallest())
        sizes = np.linspace(largest, least, _STEPS)
        for size in sizes if text.get_fontsize() in sizes else [text.get_fontsize()]:
            text.set_fontsize(size)
            if self._break(text, plain, wide) <= most:
                break

    def _break(self, text: Text, plain: str, wide: float) -> float:
        """Break a text into lines, and return their height in pixels."""
        room = wide * POINTS_PER_INCH / self.ax.figure.dpi / float(text.get_fontsize())
        lines = wrapped(plain, room, width_of)
        text.set_text(lines)
        text.set_visible(bool(lines))
        if lines and (drawn := self._extent(text).width) > wide:  # fitted to pixels
            lines = wrapped(plain, room * wide / drawn, width_of)
            text.set_text(lines)
        self.written[id(text)] = lines
        return self._extent(text).height if lines else 0.0

    def _lift(self) -> None:
        """Move the title above the texts of the picture that it would meet."""
        ax, heading = self.ax, self.heading
        heading.set(transform=self.usual, y=1.0)
        others = [text for text in ax.texts if text is not self.below and text.get_visible()]
        own, *boxes = self._extents(heading, *(text for text in others if text.get_text()))
        rise = max((box.y1 - own.y0 for box in boxes if box.overlaps(own)), default=0.0)
        inches = ax.figure.dpi_scale_trans
        heading.set_transform(self.usual + ScaledTranslation(0, rise / ax.figure.dpi, inches))

    def _extent(self, text: Text) -> Bbox:
        """Measure a text for the file that is written now: texts remember the one before."""
        return self._extents(text)[0]

    def _extents(self, *texts: Text) -> list[Bbox]:
        """Measure texts; each new renderer would take as long as the text itself."""
        figure: Any = self.ax.figure
        renderer = figure.figure._get_renderer()
        return [text.get_window_extent(renderer) for text in texts]
