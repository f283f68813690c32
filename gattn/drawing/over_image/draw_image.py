"""Attention, or one number per token, over the image that a model read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Colormap, ListedColormap, Normalize
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray
from torch import Tensor

from gattn.drawing.canvas.colours import colour_map, end_of, is_dark
from gattn.drawing.canvas.fitting import Fitting
from gattn.drawing.canvas.frame import clear, given_axes, new_axes, write_texts
from gattn.drawing.canvas.keys import add_colour_bar, are_alike, begin_of, range_said
from gattn.drawing.canvas.labels import in_digits
from gattn.drawing.chosen.given import checks_given
from gattn.drawing.matrices.minus import first_marked, mark_where_seen, minus_signs
from gattn.drawing.over_image.borders import draw_borders
from gattn.drawing.over_image.images import Fit, Image, read_image
from gattn.drawing.over_image.patches import Patches
from gattn.drawing.over_image.shown import patches_of
from gattn.heads.geometry import Grid
from gattn.heads.head import AttentionGraph
from gattn.models.effects.effect_tables import Effects

_FADED = {"light": (0.45, 1.0), "dark": (0.0, 0.5)}
"""How dark and how light the image is under the colours."""
_ALPHA = (0.25, 0.9)
"""How opaque the weakest and the strongest colours are."""
_SHARP = 256
"""About how many pixels the patches of a side have."""
OUTLINES = (("white", 2.6), ("black", 1.2))
"""The lines of an outline, which together show on any image."""
_LONGEST = 1024
"""The most pixels along a side that are drawn."""


@checks_given
def draw_image(
    shown: AttentionGraph
    | Iterable[AttentionGraph]
    | Effects
    | xr.DataArray
    | NDArray[Any]
    | Tensor,
    image: Any,
    query: Any = None,
    *,
    key: Any = None,
    grid: Grid | tuple[int, int] | None = None,
    values: str = "attention",
    fit: Fit | None = None,
    smooth: bool = False,
    vmax: float | None = None,
    figsize: tuple[float, float] | None = None,
    ax: Axes | None = None,
    cmap: str | Colormap | None = None,
    legend: bool = True,
) -> Axes:
    """Draw what a patch reads, or one number per patch, over the image.

    The image is shown in grey, and lighter (on a dark background, darker) than it is, so that the
    colours over it can be read; they run from 0 to the largest number shown, since attention on
    hundreds of patches would be pale on the scale of other pictures. If all numbers are above half
    of the largest, and not equal within 1 %, colours begin at the least, so that differences show,
    and the caption says so; if all are equal within 1 %, they end at twice the largest, so that the
    image stays visible. Patches without a number, such as an edge that was not kept, have no
    colour; the others then have a thin grey border. The patches asked about are outlined. The
    caption says what is shown, and how much of the attention lies on the image, on class and
    register tokens, and on edges not kept. `figsize`, `ax`, `cmap`, `legend`: see `gattn.drawing`.

    Parameters
    ----------
    shown : AttentionGraph, heads, Effects, or array
        A head; several heads of one run, whose mean is shown; effects or estimates of edits, one
        for each patch or for each edge of a query or key; or a result with one number per
        token, such as `gattn.analysis.rollout`, at the last place of its first axes. Tensors and
        NumPy arrays are (tokens,), (queries, keys), or (rows, columns).
    image : PIL image, array (height, width, 3), Tensor (3, height, width), or path
        The image as the model read it. Numbers outside of 0 .. 1 that are not whole, as after
        normalizing, are shown from their least as black to their largest as white.
    query : (row, column), int, str, or list of these, optional
        Which patch; or a token by position or text, such as "class". Of several the mean is shown.
        By default the first token that is no patch, such as the class token, or the mean of all.
    key : as query, optional
        Instead of a query: shade each patch by what it gives to this key.
    grid : Grid or (rows, columns), optional
        Where the tokens lie, if they do not say so themselves; see `AttentionTrace.on_grid`.
    values : {"attention", "score", "contribution", "value_norm"}
        Which number of a head's edges.
    fit : {"stretch", "crop"}, optional
        How the image became what the model read, if their shapes differ: resized as a whole, or its
        middle cut out.
    smooth : bool
        Whether to interpolate between the middles of patches; the caption says so.
    vmax : float, optional
        The end of the colours, which then begin at 0, to compare pictures; by default the largest
        number.

    Raises
    ------
    SelectionError
        If there is no such query, key, number or colour map.
    ShapeError
        If it is not known where tokens lie, or the image does not fit, or is none.
    """
    found = patches_of(shown, query, key=key, grid=grid, values=values)
    read = read_image(image).fitted(found.grid, fit).no_larger(_LONGEST)
    pen = ImagePen.of([found], vmax=vmax, cmap=cmap)
    ax = given_axes(ax, figsize)
    if ax is None:
        height, width = read.size
        ratio = min(max((height / width) ** 0.5, 0.4), 2.5)
        ax = new_axes(max(4.6 / ratio, 2.4) + legend * 0.8, 4.6 * ratio + 1.0)
    draw_patches(ax, found, read, pen, smooth=smooth)
    if legend:
        pen.add_bar(ax, found.name)
    said = [*found.said, pen.said, pen.beyond([found]), "smoothed" * smooth, read.said]
    write_texts(ax, found.title, "; ".join(filter(None, said)))
    return ax


@dataclass(frozen=True)
class ImagePen:
    """The colours over an image: the more, the more opaque.

    Parameters
    ----------
    top : float
        The end of the scale.
    is_signed : bool
        Whether it begins at -top.
    plain : Colormap
        The colours.
    bottom : float
        Where it begins if it is not signed.
    """

    top: float
    is_signed: bool
    plain: Colormap
    bottom: float = 0.0

    @classmethod
    def of(
        cls, some: Iterable[Patches], *, vmax: float | None, cmap: str | Colormap | None
    ) -> ImagePen:
        """Choose the colours of some pictures, which they share."""
        some = list(some)
        is_signed = any(one.is_signed for one in some)
        given = end_of(vmax)
        plain = colour_map(cmap, is_signed=is_signed, is_area=True)
        if given is not None:
            return cls(given, is_signed, plain)
        end, least = max(one.top for one in some), min(one.least for one in some)
        numbers = np.concatenate([one.values.ravel() for one in some])
        if are_alike(float((np.sign(numbers[0]) * numbers).min()), end):
            end *= 2
        return cls(end, is_signed, plain, begin_of(least, end))

    @cached_property
    def norm(self) -> Normalize:
        """The scale, in even steps."""
        return Normalize(-self.top if self.is_signed else self.bottom, self.top, clip=True)

    @property
    def said(self) -> str:
        """Say where the scale begins, if that is not 0."""
        return range_said(self.bottom, self.top)

    @cached_property
    def cmap(self) -> Colormap:
        """The colours, see-through where they are weak."""
        places = np.linspace(0, 1, 256)
        strength = np.abs(2 * places - 1) if self.is_signed else places
        colours = self.plain(places)
        colours[:, 3] = _ALPHA[0] + (_ALPHA[1] - _ALPHA[0]) * strength
        return ListedColormap(colours).with_extremes(bad=(0, 0, 0, 0))

    def colours(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return red, green, blue and opacity of numbers."""
        painted: NDArray[np.float64] = np.asarray(
            self.cmap(self.norm(np.ma.masked_invalid(values)))
        )
        return painted

    def painted(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the colours of numbers as they look over an image of medium lightness."""
        colours: NDArray[np.float64] = np.asarray(over_grey(self.cmap)(self.norm(values)))
        return colours

    def beyond(self, some: Iterable[Patches]) -> str:
        """Say how many patches have numbers beyond the end of the colours; "" if none."""
        count = sum(int((np.abs(one.values) > self.top).sum()) for one in some)
        are = "patch is" if count == 1 else "patches are"
        return f"{count} {are} above {in_digits(self.top)}, where colours end" if count else ""

    def add_bar(self, ax: Axes, name: str) -> None:
        """Explain the colours, on the mean lightness of images."""
        mappable = ScalarMappable(self.norm, over_grey(self.cmap))
        add_colour_bar(mappable, name, ax, ticks=MaxNLocator(5))


def over_grey(cmap: Colormap) -> Colormap:
    """Return colours as they look over a grey image of medium lightness."""
    colours = cmap(np.linspace(0, 1, 256))
    ground = float(np.mean(_FADED["dark" if is_dark() else "light"]))
    opacity = colours[:, 3:]
    return ListedColormap(colours[:, :3] * opacity + ground * (1 - opacity))


def faded(image: Image) -> NDArray[np.float64]:
    """Return the image in grey, lighter or darker than it is, so that colours stand out."""
    low, high = _FADED["dark" if is_dark() else "light"]
    grey = low + (high - low) * image.grey
    return np.repeat(grey[..., None], 3, axis=-1)


def draw_patches(
    ax: Axes, found: Patches, image: Image, pen: ImagePen, *, smooth: bool = False
) -> None:
    """Draw an image with the colours of its patches; a unit of the axes is a patch."""
    down, across = found.grid.covered
    rows, columns = found.grid.rows, found.grid.columns
    tall, wide = rows / down, columns / across
    height, width = image.size
    extent = (0.0, wide, tall, 0.0)
    ax.imshow(faded(image), extent=extent, interpolation="antialiased", zorder=1)
    ax.imshow(
        pen.colours(_smoothed(found.values)) if smooth else blocks(found.values, pen),
        extent=(0.0, columns, rows, 0.0),
        interpolation="nearest",
        zorder=2,
        gid="gattn-patches",
    )
    if smooth and pen.is_signed:
        _surround_negative(ax, found.values, pen.top)
    ax.set(xlim=(0, wide), ylim=(tall, 0))
    ax.set_aspect((height / tall) / (width / wide))
    clear(ax)
    if pen.is_signed and not smooth:
        make = partial(minus_signs, found.values, pen.top, pen.painted, corner=(0.0, 0.0))
        mark_where_seen(ax, (tall, wide), pen.top, make)
    if not smooth:
        draw_borders(ax, found.values, (tall, wide))
    for row, column in found.outlined:
        outline(ax, (column, row, 1, 1))


def outline(ax: Axes, box: tuple[float, float, float, float], **style: Any) -> None:
    """Draw a box in two colours, so that it shows on any image."""
    x, y, *size = box
    for colour, line in OUTLINES:
        style |= {"edgecolor": colour, "linewidth": line, "gid": "gattn-outline"}
        ax.add_patch(Rectangle((x, y), *size, fill=False, zorder=3, clip_on=False, **style))


def blocks(values: NDArray[np.float64], pen: ImagePen) -> NDArray[np.float64]:
    """Paint each patch in pixels enough to stay sharp where a viewer blurs them."""
    times = max(1, _SHARP // max(values.shape))
    return pen.colours(values).repeat(times, 0).repeat(times, 1)


def _surround_negative(ax: Axes, values: NDArray[np.float64], top: float) -> None:
    """Draw dashed lines around where smoothed numbers are negative, as signs would be of blocks."""
    numbers, level = _smoothed(values), first_marked(top)
    if not numbers.min() < level < numbers.max():
        return
    rows, columns = (
        (np.arange(size) + 0.5) * count / size
        for size, count in zip(numbers.shape, values.shape, strict=True)
    )
    for colour, line, dash in (("white", 1.6, "solid"), ("black", 0.8, "dashed")):
        style: Any = {"colors": colour, "linewidths": line, "linestyles": dash, "zorder": 2.5}
        ax.contour(columns, rows, numbers, levels=[level], **style).set_gid("gattn-negative")
    said = f"within dashed lines: negative, below {in_digits(level)}"
    Fitting.of(ax).note("marked", said)


def _smoothed(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Interpolate linearly between the middles of patches; those without a number count as 0."""
    factor = max(1, 512 // max(values.shape))
    filled = np.nan_to_num(values)
    for axis, count in enumerate(values.shape):
        places = (np.arange(count * factor) + 0.5) / factor - 0.5
        low = np.clip(np.floor(places).astype(int), 0, count - 1)
        high = np.minimum(low + 1, count - 1)
        share = np.clip(places - low, 0, 1)
        share = share[:, None] if axis == 0 else share[None]
        filled = filled.take(low, axis) * (1 - share) + filled.take(high, axis) * share
    return filled
