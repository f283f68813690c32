"""Lays out what depends on the size of axes, whenever that size is known better."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from contextlib import contextmanager, nullcontext
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.text import Text
from matplotlib.transforms import Bbox, ScaledTranslation, Transform

from gattn.drawing.canvas.rooms import (
    POINTS_PER_INCH,
    dots_of,
    figure_room,
    fitting_box,
    in_figure,
    is_laid_out,
    own_room,
)

_TRIES = 6
"""How often axes shrink until all that stands around them is inside: texts wrap anew each time."""
_SAME = 1e-4
"""The share of a figure by which axes do not move again."""
_USUAL, _THINNEST = 230.0, 0.3
"""The size of axes in points in which lines have their usual width, and the least share of it."""
_NARROWEST = 160.0
"""To how many points lines of text may grow beside axes that are narrower."""
_LOOKS = ("axes.", "font.", "hatch.", "legend.", "lines.", "patch.", "text.", "xtick.", "ytick.")
"""The settings of matplotlib by which steps draw."""


class Fitting:
    """The steps that lay out a picture, run before its axes are measured or drawn.

    matplotlib asks the locator of axes where they lie each time, after a layout engine has moved
    them and before it lists what is in them; this is such a locator. Without a layout engine it
    makes axes smaller until their texts stay within the figure, away from other axes.

    Steps run with the settings with which the picture was begun: a style may hold in a block that
    ends before the figure is saved.

    Parameters
    ----------
    ax : Axes
        The axes.
    """

    def __init__(self, ax: Axes) -> None:
        self._ax, self._before = ax, ax.get_axes_locator()
        self._steps: list[Callable[[], None]] = []
        self._last: list[Callable[[], None]] = []
        self._texts: Callable[[], None] | None = None
        self.notes: dict[str, str] = {}
        self.is_key_aside = False
        """Whether the caption stands left of the key, not below it, too."""
        self.grows = False
        """Whether the figure becomes higher by what the caption takes."""
        self.dots = dots_of(ax.figure)
        self._known: tuple[float, ...] = ()
        self._is_running = False
        self._looks = {name: mpl.rcParams[name] for name in mpl.rcParams if name.startswith(_LOOKS)}
        self.slot = self.box = self._place(None)
        ax.set_axes_locator(self)
        _Finish.add_to(ax)

    @classmethod
    def of(cls, ax: Axes) -> Fitting:
        """Return the fitting of axes, a new one if they have none."""
        found = ax.get_axes_locator()
        return found if isinstance(found, cls) else cls(ax)

    def add(self, step: Callable[[], None], *, last: bool = False) -> None:
        """Run a step now, and again whenever the axes get another size, perhaps after all others.

        A step that looks at what others drew is one of the `last`.
        """
        (self._last if last else self._steps).append(step)
        step()

    def note(self, name: str, said: str) -> None:
        """Say in the caption what the size of the axes leaves out; "" if nothing."""
        self.notes[name] = said

    def write(self, texts: Callable[[], None]) -> None:
        """Place title and caption after all steps, in place of those before; run all now."""
        self._texts = texts
        self.renew()

    def get_subplotspec(self) -> Any:
        """Return the place in the grid, which `tight_layout` asks for."""
        return self._ax.get_subplotspec()

    def __call__(self, ax: Any, renderer: Any) -> Bbox:
        """Return where the axes lie, after all steps if that is news."""
        if self._is_running or (self._known and _is_rasterizing(ax.figure)):
            return self.box
        slot = self._place(renderer)
        size = ax.figure.bbox.size
        if renderer is not None:
            self.dots = dots_of(ax.figure, renderer)
        known = (*slot.bounds, *size, ax.figure.dpi, self.dots, len(self._steps) + len(self._last))
        if any(abs(one - other) > 1e-6 for one, other in zip(known, self._known, strict=False)) or (
            not self._known
        ):
            self._known = known
            self._run(slot, renderer)
        return self.box

    def renew(self) -> None:
        """Run all steps again, with what was added after them."""
        self._known = ()
        self(self._ax, None)

    def _place(self, renderer: Any) -> Bbox:
        """Return where the figure puts the axes."""
        if self._before is not None:
            return self._before(self._ax, renderer)
        return self._ax.get_position(original=True).frozen()

    def _run(self, slot: Bbox, renderer: Any) -> None:
        self.slot = self.box = slot
        with self._running():
            self._steps_once()
            if not is_laid_out(self._ax):
                self._shrink(own_room(self._ax, slot), renderer)

    def finish(self, renderer: Any) -> None:
        """Shrink axes that a layout engine gave too little room, as texts may turn at the last."""
        if self._texts is None or not is_laid_out(self._ax):
            return
        self(self._ax, renderer)
        with self._running():
            self._shrink(figure_room(self._ax), renderer)

    def _shrink(self, room: Bbox, renderer: Any) -> None:
        """Make the axes smaller until all that stands around them has room."""
        slot, whole = self.slot, self._ax.figure.bbox
        for left in reversed(range(_TRIES)):
            box = fitting_box(self.box, slot, self.extent(renderer), room, whole)
            if left < _TRIES // 2:  # what grew again may not fit: only smaller from here on
                box = Bbox.intersection(box, self.box) or box
            if np.abs(box.get_points() - self.box.get_points()).max() < _SAME:
                return
            self.box = box
            self._steps_once()

    @contextmanager
    def _running(self) -> Iterator[None]:
        others = {name: x for name, x in self._looks.items() if mpl.rcParams[name] != x}
        self._is_running = True
        try:
            with mpl.rc_context(others) if others else nullcontext():
                yield
        finally:
            self._is_running = False

    def _steps_once(self) -> None:
        self._ax.apply_aspect(self.box)
        for step in (*self._steps, *self._last):
            step()
        self._ax.apply_aspect(self.box)
        if self._texts is not None:
            self._texts()

    def around(self) -> Bbox:
        """Measure from where to where lines of text may reach, and what they stand below."""
        below = {"key"} if self.is_key_aside else set()
        whole = self.extent(without={"gattn-caption", "title"} | below)
        own = self.slot.transformed(in_figure(self._ax))
        left, right = min(own.x0, whole.x0), max(own.x1, whole.x1)
        if not is_laid_out(self._ax):
            room = own_room(self._ax, self.slot)
            lacks = max(_NARROWEST * self._ax.figure.dpi / POINTS_PER_INCH - (right - left), 0.0)
            left, right = max(left - lacks / 2, room.x0), min(right + lacks / 2, room.x1)
        return Bbox.from_extents(left, whole.y0, right, whole.y1)

    def extent(self, renderer: Any = None, *, without: Set[str] = frozenset()) -> Bbox:
        """Measure the axes with the texts, keys and bars around them, in pixels."""
        is_own, self._is_running = self._is_running, True
        ax = self._ax
        around: list[Artist] = [text for text in ax.texts if text.get_gid() not in without]
        key = None if "key" in without else ax.get_legend()
        around += [*ax.child_axes, *filter(None, [key])]
        shown = [artist for artist in around if artist.get_visible()]
        shown = [one for one in shown if not isinstance(one, Text) or one.get_text()]
        titles = [ax.title] if "title" in without and ax.title.get_visible() else []
        for title in titles:
            title.set_visible(False)
        try:
            box = ax.get_tightbbox(renderer, bbox_extra_artists=shown)
        finally:
            self._is_running = is_own
            for title in titles:
                title.set_visible(True)
        assert box is not None
        return box


def _is_rasterizing(figure: Any) -> bool:
    """Whether a vector file turns a part into pixels: it asks again, though all has its size."""
    return figure.canvas.fixed_dpi not in (None, figure.dpi)


class _Finish(Artist):
    """Is drawn before all axes of a figure, when its layout is final; leaves no mark."""

    def __init__(self) -> None:
        super().__init__()
        self.set(zorder=-1e9, in_layout=False, gid="gattn-finish")

    @classmethod
    def add_to(cls, ax: Axes) -> None:
        """Add one to the figure of axes, if it has none."""
        assert ax.figure is not None
        figure = ax.figure.figure
        if not any(isinstance(one, cls) for one in figure.artists):
            figure.add_artist(cls())

    def draw(self, renderer: Any) -> None:
        """Let all pictures of the figure have their last size."""
        figure: Any = self.figure
        for ax in figure.axes:
            found = ax.get_axes_locator()
            if isinstance(found, Fitting):
                found.finish(renderer)


def fitted(ax: Axes, step: Callable[[], None]) -> None:
    """Run a step that lays something out now, and again whenever axes get another size."""
    Fitting.of(ax).add(step)


def rewritten(ax: Axes, write: Callable[[], Iterable[Artist]], *, last: bool = False) -> None:
    """Draw something now, and again, in place of what was there, whenever axes get another size.

    It is drawn after what other steps draw if it is one of the `last`.
    """
    drawn: list[Artist] = []

    def step() -> None:
        for artist in drawn:
            artist.remove()
        drawn[:] = write()

    Fitting.of(ax).add(step, last=last)


class Texts:
    """Texts that are made as they are needed, and used again.

    Parameters
    ----------
    make : callable
        Makes one.
    """

    def __init__(self, make: Callable[[], Text]) -> None:
        self._make = make
        self._made: list[Text] = []

    def show(self, wanted: Iterable[Mapping[str, Any]]) -> None:
        """Show texts with some properties each, and no others."""
        count = 0
        for count, style in enumerate(wanted, start=1):
            if count > len(self._made):
                self._made.append(self._make())
            self._made[count - 1].set(**style)
        for text in self._made[count:]:
            text.remove()
        del self._made[count:]


def points(ax: Axes) -> tuple[float, float]:
    """Measure the width and height of Axes in points."""
    found = ax.get_axes_locator()
    ax.apply_aspect(found.box if isinstance(found, Fitting) else None)
    return _in_points(ax, ax.bbox)


def slot(ax: Axes) -> tuple[float, float]:
    """Measure the width and height in points of the place of Axes, which they may not fill."""
    found = ax.get_axes_locator()
    box = found.box if isinstance(found, Fitting) else ax.get_position(original=True)
    return _in_points(ax, box.transformed(in_figure(ax)))


def room(ax: Axes) -> tuple[float, float]:
    """Measure in points what axes and all that stands around them can fill."""
    figure = ax.figure
    assert figure is not None
    spec = ax.get_subplotspec()
    across, down = _in_points(ax, figure.bbox)
    if spec is None:
        return across, down
    grid = spec.get_gridspec()
    return across * len(spec.colspan) / grid.ncols, down * len(spec.rowspan) / grid.nrows


def pitch(ax: Axes, count: float, side: str) -> float:
    """Find how far apart `count` places along a side of axes lie, in points."""
    return points(ax)[side == "y"] / max(count, 1)


def thickness(ax: Axes) -> float:
    """Return how much thicker than usual lines are: thinner in small axes, as rcParams say."""
    across, down = points(ax)
    size = float(across * down) ** 0.5
    return float(usual_thickness() * min(max(size / _USUAL, _THINNEST), 1.0))


def usual_thickness() -> float:
    """Return how much thicker than usual lines are in large axes, as rcParams say."""
    return float(mpl.rcParams["lines.linewidth"]) / float(mpl.rcParamsDefault["lines.linewidth"])


def lifted(ax: Axes, rise: float, right: float = 0.0) -> Transform:
    """Move data coordinates up, and to the right, by some points."""
    assert ax.figure is not None
    moved = right / POINTS_PER_INCH, rise / POINTS_PER_INCH
    return ax.transData + ScaledTranslation(*moved, ax.figure.dpi_scale_trans)


def _in_points(ax: Axes, box: Any) -> tuple[float, float]:
    assert ax.figure is not None
    scale = POINTS_PER_INCH / ax.figure.dpi
    return float(box.width * scale), float(box.height * scale)
