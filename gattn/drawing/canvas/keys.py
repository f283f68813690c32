"""What explains a picture's colours and widths: a colour bar, or a key beside the axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colorbar import Colorbar
from matplotlib.colors import Colormap, Normalize, to_hex
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import Bbox, ScaledTranslation

from gattn.drawing.canvas.fitting import fitted, usual_thickness
from gattn.drawing.canvas.labels import in_digits, small_size, text_style, width_of
from gattn.drawing.canvas.pen import DASHES, Pen, dashed
from gattn.drawing.canvas.rooms import POINTS_PER_INCH
from gattn.names.text import worded, wrapped

_EVEN, _ALIKE = 0.5, 0.01
_BAR, _TALL = 0.7, 120.0
"""The share of the axes' height that a colour bar takes, and from how many points of it on."""
_LONG = 50.0
"""How many points long a line of its name is at most beside a shorter bar."""
_HANDLE = 1.6
"""The length of a line of a key, in font sizes."""
_HIGH, _HIGHEST = 0.7, 8.0
"""How high an entry of a key is at least, and at most, in font sizes."""
Entry: TypeAlias = tuple[Any, str]
"""What a key shows, an artist or matplotlib's container of several, and how it names it."""


def begin_of(least: float, most: float) -> float:
    """Return where colours of numbers of one sign begin: at 0, or at the least of an even map.

    A map is even if all numbers are above half of the largest, though not equal within 1 %.
    """
    return least if most * _EVEN < least and not are_alike(least, most) else 0.0


def are_alike(least: float, most: float) -> bool:
    """Return whether sizes from `least` to `most` are equal within 1 %."""
    return least >= most * (1 - _ALIKE)


def range_said(begin: float, end: float) -> str:
    """Say what colours run from, if that is not 0."""
    ends = f"{in_digits(begin)} to {in_digits(end)}"
    return f"colours run from {ends}, not from 0" if begin else ""


def add_colour_bar(
    mappable: ScalarMappable,
    name: str,
    ax: Axes,
    *,
    how: str = "",
    ticks: Any = None,
    inside: bool = False,
) -> None:
    """Explain colours by a bar beside `ax`, or all over it where `ax` is `inside` the picture.

    The bar is named, and `how` its scale runs is said.
    """
    assert ax.figure is not None
    own = ax
    if not inside:
        own = ax.inset_axes((1.03, 0.15, 0.03, 0.7), gid="gattn-bar")
        own.set_axes_locator(_Beside(ax))
    bar = ax.figure.colorbar(mappable, cax=own)
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=small_size(), length=2)
    bar.ax.yaxis.set_major_formatter(lambda value, _: in_digits(value))
    text = ", ".join(filter(None, [worded(name), how]))
    bar.set_label(text, size=small_size(), **text_style([text]))
    fitted(ax, partial(_fit_bar, bar, text, ticks))


@dataclass(frozen=True)
class _Beside:
    """Places a colour bar right of axes, in points, whatever their size."""

    ax: Axes

    def __call__(self, bar: Any, renderer: Any) -> Bbox:
        box, figure = self.ax.bbox, self.ax.figure
        assert figure is not None
        point = figure.dpi / POINTS_PER_INCH
        tall = box.height * (_BAR if box.height > _TALL * point else 1.0)
        wide = min(max(tall / 22, 4 * point), 9 * point)
        left = box.x1 + min(max(0.02 * box.width, 5 * point), 12 * point)
        low = (box.y0 + box.y1 - tall) / 2
        found = Bbox.from_bounds(left, low, wide, tall)
        return found.transformed(figure.transSubfigure.inverted())


def _fit_bar(bar: Colorbar, name: str, ticks: Any) -> None:
    """Choose as many ticks as have room, and break the name into lines."""
    own = bar.ax
    locator: Any = own.get_axes_locator()
    own.apply_aspect(locator(own, None))
    long = own.bbox.height * POINTS_PER_INCH / own.figure.dpi
    own.yaxis.label.set_text(bar_name(name, long))
    if ticks is None or isinstance(ticks, MaxNLocator):
        most = int(np.clip(long / (2.2 * small_size()), 2, 9))
        is_whole = ticks is not None and bool(getattr(ticks, "_integer", False))
        bar.set_ticks(MaxNLocator(nbins=most, integer=is_whole))
    else:
        bar.set_ticks(_with_room(bar.norm, ticks, long))
    for label in own.get_yticklabels():
        label.set_usetex(False)


def bar_name(name: str, long: float) -> str:
    """Break the name of a bar that is so many points long into lines."""
    return wrapped(name, max(long, _LONG) / small_size(), width_of)


def _with_room(norm: Normalize, ticks: Sequence[float], long: float) -> list[float]:
    """Leave out ticks whose labels would meet: the ends last, and a number with its negative."""
    places = dict(zip(ticks, np.asarray(norm(np.asarray(ticks, dtype=float))) * long, strict=True))
    first = [ticks[-1], ticks[0], *(tick for tick in ticks if not tick)]
    kept: list[float] = []
    for tick in dict.fromkeys([*first, *ticks[::-1]]):
        both = [tick, -tick] if -tick in places and tick else [tick]
        if all(_are_apart(places[one], places[other]) for one in both for other in kept):
            kept += both
    return sorted(set(kept))


def _are_apart(place: float, other: float) -> bool:
    return abs(place - other) >= 1.25 * small_size()


def label_layers(ax: Axes, norm: Normalize, colours: Colormap) -> None:
    """Explain which colours are which layers."""
    ticks = MaxNLocator(integer=True)
    add_colour_bar(ScalarMappable(norm, colours), "layer", ax, ticks=ticks)


def add_key(
    ax: Axes,
    entries: Sequence[Entry],
    title: str = "",
    *,
    beyond: float = 0.0,
    handleheight: float = _HIGH,
    **place: Any,
) -> Legend:
    """Explain lines or areas, right of the axes and `beyond` by that many points, or at `place`.

    A row is as high as `handleheight`, in font sizes, at least.
    """
    assert ax.figure is not None
    moved = ScaledTranslation(beyond / POINTS_PER_INCH, 0, ax.figure.dpi_scale_trans)
    size = small_size()
    plain: dict[str, Any] = {"fontsize": size, "title_fontsize": size}
    plain |= {"frameon": False, "alignment": "left", "handleheight": handleheight}
    right: dict[str, Any] = {
        "loc": "upper left",
        "bbox_to_anchor": (1.0, 1.0),
        "bbox_transform": ax.transAxes + moved,
        "borderaxespad": 0.2,
        "handlelength": _HANDLE,
    }
    key = ax.legend(
        [artist for artist, _ in entries],
        list(map(str, range(len(entries)))),  # names that begin with "_" would be left out
        title=title,
        **plain | (place or right),
    )
    names = [title, *(name for _, name in entries)]
    for text, name in zip([key.get_title(), *key.get_texts()], names, strict=True):
        text.set(text=name, **text_style([name]))
    return key


def add_line_key(ax: Axes, pen: Pen, *more: Entry, beyond: float = 0.0) -> None:
    """Explain which line stands for which number, and what `more` lines mean."""
    ticks = [tick for tick in pen.scale.ticks if tick][::-1]
    caps: dict[str, Any] = {"solid_capstyle": "butt", "dash_capstyle": "butt"}
    lines: list[Entry] = []
    for tick, colour in zip(ticks, pen.colours(ticks), strict=True):
        width = float(pen.scale.widths(np.array(tick)))
        style: Any = DASHES if tick < 0 else "solid"
        line = Line2D([], [], color=colour, linewidth=width, linestyle=style, **caps)
        lines.append((line, in_digits(tick)))
    wide = 0.6 * pen.scale.widest
    for (name, colour), dash in zip(pen.kinds.items(), pen.dashes, strict=True):
        lines.append((Line2D([], [], color=colour, linewidth=wide, linestyle=dash, **caps), name))
    thickest = max((line.get_linewidth() for line, _ in lines), default=0.0)
    if not pen.scale.is_fixed:
        thickest *= usual_thickness()
    high = min(max(_HIGH, thickest / small_size()), _HIGHEST)
    key = add_key(ax, [*lines, *more], pen.name, beyond=beyond, handleheight=high)
    drawn = [line for line in key.legend_handles if isinstance(line, Line2D)]
    widths = [line.get_linewidth() for line in drawn]
    dashes = [*(DASHES if tick < 0 else "solid" for tick in ticks), *pen.dashes]

    def step() -> None:
        for n, (line, width) in enumerate(zip(drawn, widths, strict=True)):
            wide = width * pen.thickness(ax)
            line.set_linewidth(wide)
            if n < len(dashes):
                line.set_linestyle(_whole(dashed(dashes[n], wide), wide))

    fitted(ax, step)


def _whole(dash: Any, width: float) -> Any:
    """Shrink or stretch dashes so that a line of a key begins and ends with a whole one."""
    if isinstance(dash, str) or not width:
        return dash
    start, lengths = dash
    sizes, long = np.array(lengths) * width, _HANDLE * small_size()
    times = max(1 + (len(lengths) == 2), round((long + sizes[-1]) / sizes.sum()))
    share = long / (times * sizes.sum() - sizes[-1])
    return start, tuple((share * np.array(lengths)).tolist())


def add_area_key(
    ax: Axes, cmap: Colormap, norm: Normalize, ticks: Sequence[float], name: str
) -> None:
    """Explain which colour stands for which number."""
    colours = np.asarray(cmap(norm(ticks)))
    patches = [Patch(facecolor=to_hex(colour)) for colour in colours]
    names = [in_digits(tick) for tick in ticks]
    add_key(ax, list(zip(patches, names, strict=True)), worded(name))
