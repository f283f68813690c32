"""Rollout as ribbons: bands whose widths add up, from the input up to one token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.colors import Colormap, to_hex, to_rgb
from matplotlib.path import Path
from matplotlib.text import Text
from numpy.typing import NDArray

from gattn.analysis.propagation.unrolled import Unrolled
from gattn.drawing.canvas import fonts
from gattn.drawing.canvas.colours import KINDS_OF_AREAS, REST_OF_KINDS, given_map, is_dark
from gattn.drawing.canvas.fitting import fitted, points, rewritten, room
from gattn.drawing.canvas.frame import new_axes
from gattn.drawing.canvas.labels import (
    font_size,
    in_percent,
    shortened,
    text_style,
    width_of,
)
from gattn.drawing.canvas.sides import say_patches
from gattn.drawing.layers.layered import write_over
from gattn.drawing.layers.numbered import layers_apart, number_layers
from gattn.errors import SelectionError
from gattn.names.text import numbered, visible

Floats = NDArray[np.float64]

_LEAST = 0.02
"""The least share at some depth that gives a token ribbons of its own."""
_GAP = 0.015
_BAR = 0.08
"""The height of a token's bar, in layers."""
_OPACITY = 0.7
"""How much of what is behind it a ribbon hides."""
_LIGHTER = 0.3
"""How much lighter colours are on a dark background."""
_REACH = 0.4
"""The share of a picture's height that tokens with their shares take at most."""
_CODES = [Path.MOVETO, *[Path.CURVE4] * 3, Path.LINETO, *[Path.CURVE4] * 3, Path.CLOSEPOLY]


@dataclass(frozen=True, eq=False)
class _Ribbons:
    """Tokens, the remaining ones merged into the last, and what passes between them.

    `bands` is (layers, to, from), `held` (depths, names).
    """

    names: list[str]
    colours: list[str]
    bands: Floats
    held: Floats
    rest: str

    @classmethod
    def of(cls, unrolled: Unrolled, depth: int, cmap: str | Colormap | None) -> _Ribbons:
        passes = unrolled.matrices("passes")[:depth]
        held = np.concatenate([passes.sum(1), passes[-1:].sum(2)])
        most = held.max(0)
        order = np.argsort(-most, kind="stable")
        shown = np.sort(order[: len(KINDS_OF_AREAS)][most[order[: len(KINDS_OF_AREAS)]] >= _LEAST])
        others = np.setdiff1d(np.flatnonzero(most > 0), shown)
        member = np.zeros((len(shown) + bool(len(others)), len(most)))
        member[np.arange(len(shown)), shown] = 1
        member[len(shown) :, others] = 1
        names = [_ribbon_name(unrolled, int(row)) for row in shown]
        rest = ""
        if len(others):
            names.append(f"{len(others)} others" if len(others) > 1 else "1 other")
            most_of_rest = f"at most {in_percent(float(most[others].max()))}"
            rest = f"others have {most_of_rest} each" * (len(others) > 1)
            rest = rest or f"1 other has {most_of_rest}"
        colours = _token_colours(len(shown), bool(len(others)), cmap)
        return cls(names, colours, member @ passes @ member.T, held @ member.T, rest)

    def left(self) -> Floats:
        """Place the bars of each depth side by side, around the middle."""
        gaps = np.where(self.held > 0, _GAP, 0)
        wide = (self.held + gaps).sum(1, keepdims=True)
        start = np.cumsum(self.held + gaps, axis=1) - self.held - gaps
        found: Floats = start - wide / 2
        return found


def draw_ribbons(
    unrolled: Unrolled, ax: Axes | None, cmap: str | Colormap | None, *, labels: bool
) -> tuple[Axes, list[str]]:
    """Draw a rollout to one token as ribbons; return what to mind, too.

    A ribbon has the colour of the token it comes from; tokens with small shares are merged.

    Raises
    ------
    SelectionError
        If the graph is not a rollout from all tokens to one.
    """
    end = unrolled.end("query")
    is_rollout = unrolled.graph.get("passes") == "rollout"
    if not is_rollout or not end or not end[0] or unrolled.end("key"):
        raise SelectionError(
            "Ribbons show what reaches a token from all others through some layers: "
            "unrolled.rollout(query=5).draw('ribbons')."
        )
    depth = end[0]
    ribbons = _Ribbons.of(unrolled, depth, cmap)
    ax = ax if ax is not None else new_axes(7.2, min(14.0, 2.2 + 1.0 * depth))
    left = ribbons.left()
    _draw_bands(ax, ribbons, left)
    for at, row in enumerate(ribbons.held):
        for n in np.flatnonzero(row):
            place = (left[at, n], _BAR, row[n], at - _BAR / 2)
            ax.bar(*place, align="edge", color=ribbons.colours[n], zorder=3)
    first = int(unrolled.graph.get("first_layer", 0))
    edge = -float(left.min()) + 0.01
    ax.set(xlim=(-edge, edge), ylim=(-0.1, depth + 0.1), xticks=[])
    number_layers(ax, range(first, first + depth))
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    if labels:
        say_patches(ax, unrolled.tokens)
        rewritten(ax, partial(_name_bars, ax, ribbons, left))
        fitted(ax, partial(_name_inputs, ax, ribbons, left))
    notes = ["widths are shares of the query, 1 in each layer"]
    if (lost := 1 - float(ribbons.held[0].sum())) > 1e-6:
        notes[0] = (
            f"widths are shares of the query; {in_percent(lost)} came over edges that are not here"
        )
    return ax, [*notes, ribbons.rest] if ribbons.rest else notes


def _ribbon_name(unrolled: Unrolled, row: int) -> str:
    token = visible(unrolled.tokens[row], has_glyph=fonts.has_glyph)
    return numbered(unrolled.positions[row], token)


def _token_colours(count: int, has_rest: bool, cmap: str | Colormap | None) -> list[str]:
    """Colour so many tokens, and the rest; each has its own lightness, unless a map is given."""
    lighter = _LIGHTER if is_dark() else 0.0
    found = np.array([to_rgb(kind) for kind in (*KINDS_OF_AREAS[:count], REST_OF_KINDS)])
    found = found * (1 - lighter) + lighter
    if cmap is not None:
        found[:count] = given_map(cmap)(np.linspace(0, 1, max(count, 1)))[:count, :3]
    return [to_hex(colour) for colour in found[: count + has_rest]]


def _draw_bands(ax: Axes, ribbons: _Ribbons, left: Floats) -> None:
    """Draw the bands, those from one token side by side at both ends, wide ones first."""
    found: list[tuple[float, str, Path]] = []
    for at, bands in enumerate(ribbons.bands):
        low = left[at] + np.cumsum(bands, axis=0) - bands
        high = left[at + 1][:, None] + np.cumsum(bands, axis=1) - bands
        y, y_end = at + _BAR / 2, at + 1 - _BAR / 2
        for to, come in np.argwhere(bands > 0):
            ends = (low[to, come], y), (high[to, come], y_end)
            band = float(bands[to, come])
            found.append((band, ribbons.colours[come], _band(*ends, band)))
    found.sort(key=lambda band: -band[0])
    ax.add_collection(
        PathCollection(
            [path for *_, path in found],
            facecolors=[colour for _, colour, _ in found],
            linewidths=0,
            alpha=_OPACITY,
            zorder=1,
            gid="gattn-ribbons",
        ),
        autolim=False,
    )


def _band(start: tuple[float, float], end: tuple[float, float], wide: float) -> Path:
    (x, y), (x_end, y_end) = start, end
    middle = (y + y_end) / 2
    there = [(x, y), (x, middle), (x_end, middle), (x_end, y_end)]
    back = [(there_x + wide, there_y) for there_x, there_y in there[::-1]]
    return Path([*there, *back, (x, y)], _CODES)


def _name_bars(ax: Axes, ribbons: _Ribbons, left: Floats) -> list[Text]:
    """Name the bars above the input that are wide enough."""
    across = points(ax)[0] / (ax.get_xlim()[1] - ax.get_xlim()[0])
    top = len(ribbons.held) - 1
    every = layers_apart(ax, 1.6 * 0.7)
    written = []
    for at, n in np.argwhere(ribbons.held > 0):
        text = ribbons.names[n]
        wide = ribbons.held[at, n]
        if (
            at
            and (top - at) % every == 0
            and (at == top or (width_of(text) + 1.5) * 0.7 * font_size() < wide * across)
        ):
            x = left[at, n] + wide / 2
            style = {"gid": "gattn-names", "va": "center", **text_style([text])}
            written.append(write_over(ax, x, at, text, **style))
    return written


def _name_inputs(ax: Axes, ribbons: _Ribbons, left: Floats) -> None:
    """Write tokens and their shares below the input, upright if there is no room."""
    shares = ribbons.held[0]
    shown = np.flatnonzero(shares > 0)
    places = (left[0] + shares / 2)[shown]
    across = points(ax)[0] / (ax.get_xlim()[1] - ax.get_xlim()[0])
    size = 0.85 * font_size()
    wide = np.array([max(width_of(ribbons.names[n]), 3) for n in shown]) * size
    near = np.diff(places) * across < (wide[1:] + wide[:-1]) / 2 + size
    turned = bool(near.any())
    names, between = [ribbons.names[n] for n in shown], "\n"
    if turned:
        names = shortened(names, _REACH * room(ax)[1] / size - width_of("  99.9 %"))
        between = "  "
    found = zip(names, shares[shown], strict=True)
    texts = [f"{name}{between}{in_percent(float(share))}" for name, share in found]
    apart = _apart(places, 1.25 * size / across if turned else 0.0)
    ax.set_xticks(apart, texts, size=size, rotation=90 * turned, **text_style(texts))


def _apart(places: Floats, least: float) -> Sequence[float]:
    """Move places apart to the right, as little as needed."""
    found: list[float] = []
    for place in places:
        found.append(max(float(place), found[-1] + least) if found else float(place))
    return found
