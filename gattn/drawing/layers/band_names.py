"""Writes the names of tokens, layers and stacks along the bands of a circuit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.text import Text

from gattn.drawing.canvas.colours import ground
from gattn.drawing.canvas.fitting import fitted, pitch, points, rewritten, room
from gattn.drawing.canvas.frame import shown_text
from gattn.drawing.canvas.labels import Labels, fit, font_size, small_size, text_style
from gattn.drawing.canvas.sides import REACH, say_patches
from gattn.drawing.layers.bands import STACK_NAME, Band, columns, top
from gattn.drawing.layers.numbered import LIMITS, layers_apart, name_layers, set_up
from gattn.names.shortening import short_names

_BELOW = 12.0
"""The room in points around the texts between two stacks."""
_CAPTION, _LEAST = 2.6, 0.2
"""How high a caption of two lines is, in its font sizes; the least share of axes for layers."""
_STACKS = 0.28
"""The share of a picture's width that names of stacks take at most."""


def with_room(
    ax: Axes, made: Callable[[float], dict[str, Band]], *, labels: bool
) -> dict[str, Band]:
    """Lay out bands as far apart as the texts between them need, if there is room at all."""
    bands = made(1.0)
    between = [band for band in bands.values() if band.base and band.has_names]
    if not between or not labels:
        return bands
    high = max(_labels(ax, band, columns(bands)).extent for band in between) + _BELOW
    gaps = len({band.base for band in between})
    layers, around = top(bands) - gaps + sum(LIMITS), high + _CAPTION * small_size()
    left = max(points(ax)[1] - around - gaps * high, _LEAST * points(ax)[1])
    return made(float(np.clip(high * layers / left, 1.0, 0.5 * top(bands))))


def texts_between(ax: Axes, bands: Mapping[str, Band]) -> list[tuple[float, float]]:
    """Return from where to where tokens are written between stacks."""
    low, high = ax.get_ylim()
    unit, wide = points(ax)[1] / (high - low), columns(bands)
    return [
        (band.base - (_labels(ax, band, wide).extent + _BELOW) / unit, band.base)
        for band in bands.values()
        if band.base and band.has_names
    ]


def set_up_bands(
    ax: Axes, bands: Mapping[str, Band], stacks: Sequence[str], *, labels: bool
) -> None:
    """Set the limits, and write tokens, layers, and their stacks if a model has several."""
    if set(bands) == {""}:
        (only,) = bands.values()
        set_up(ax, only.tokens, range(only.first, only.first + only.layers), labels=labels)
        return
    wide = columns(bands)
    ax.set(xlim=(-0.7, wide - 0.3), ylim=(-LIMITS[0], top(bands) + LIMITS[1]), xticks=[])
    ax.tick_params(axis="both", length=0)
    ax.spines[:].set_visible(False)
    fitted(ax, partial(_name_layers, ax, bands, stacks))
    name_layers(ax)
    if labels:
        name_lowest(ax, bands)
        for band in bands.values():
            if band.base and band.has_names:
                rewritten(ax, partial(_name_above, ax, band, wide))
    for tier in _tiers(bands):
        lefts = {band.left: band for band in reversed(tier)}
        for band in lefts.values() if len(lefts) > 1 else ():
            _name_side(ax, band, max(one.top for one in tier))


def name_lowest(ax: Axes, bands: Mapping[str, Band]) -> None:
    """Write the tokens of the lowest stack below the axes."""
    for band in bands.values():
        say_patches(ax, band.tokens.values())
    lowest = [band for band in bands.values() if not band.base and band.has_names]
    fitted(ax, partial(_name_lowest, ax, lowest, columns(bands)))


def _labels(ax: Axes, band: Band, wide: int) -> Labels:
    reach = REACH * room(ax)[1]
    return fit(band.tokens, pitch(ax, wide, "x"), rotations=[0, 45, 90], reach=reach)


def _tiers(bands: Mapping[str, Band]) -> list[list[Band]]:
    """List the bands that lie at one height, from below."""
    tiers: dict[float, list[Band]] = {}
    for band in bands.values():
        tiers.setdefault(band.base, []).append(band)
    return [tiers[base] for base in sorted(tiers)]


def _name_layers(ax: Axes, bands: Mapping[str, Band], stacks: Sequence[str]) -> None:
    """Write the numbers of layers, after the name of their stack where it is another than below."""
    step = layers_apart(ax)
    short = names_in(ax, stacks)
    ticks: dict[float, str] = {}
    for tier in _tiers(bands):
        rows = {
            band.height(n + 1) - 0.5: (band, n)
            for band in tier
            if not band.is_key_side
            for n in range(band.layers)
        }
        before = ""
        for height in sorted(rows)[::step]:
            band, n = rows[height]
            name = "" if band.stack == before else f"{short[band.stack]} · "
            ticks[height] = f"{name}{band.first + n}"
            before = band.stack
    ax.set_yticks(list(ticks), list(ticks.values()), **text_style(list(ticks.values())))


def names_in(ax: Axes, stacks: Sequence[str]) -> dict[str, str]:
    """Name stacks beside axes, in short so that their layers have room."""
    names = short_names(stacks, min(STACK_NAME, _STACKS * room(ax)[0] / font_size()))
    return dict(zip(stacks, map(shown_text, names), strict=True))


def _name_lowest(ax: Axes, bands: list[Band], wide: int) -> None:
    """Write tokens below the axes."""
    fitted = [_labels(ax, band, wide) for band in bands]
    turned = max(fitted, key=lambda one: one.rotation)
    named = [
        (band.left + n, text)
        for band, labels in zip(bands, fitted, strict=True)
        for n, text in enumerate(labels.texts)
        if text
    ]
    texts = [text for _, text in named]
    ax.set_xticks(
        [x for x, _ in named], texts, size=turned.size, **_turn(turned), **text_style(texts)
    )


def _name_above(ax: Axes, band: Band, wide: int) -> list[Text]:
    """Write tokens below a stack that lies on another."""
    labels = _labels(ax, band, wide)
    return [
        ax.annotate(
            text,
            (band.left + n, band.base),
            (0, -4),
            textcoords="offset points",
            va="top",
            size=labels.size,
            gid="gattn-label",
            bbox=ground(ax, 0.1),
            **_turn(labels) | text_style([text]),
        )
        for n, text in enumerate(labels.texts)
        if text
    ]


def _turn(labels: Labels) -> dict[str, Any]:
    if labels.rotation == 45:
        return {"rotation": 45, "ha": "right", "rotation_mode": "anchor"}
    return {"rotation": labels.rotation, "ha": "center", "rotation_mode": "default"}


def _name_side(ax: Axes, band: Band, top: float) -> None:
    """Say which tokens are keys, and which are queries, above them."""
    ax.annotate(
        "keys" if band.is_key_side else "queries",
        (band.left - 0.4, top),
        (0, 5),
        textcoords="offset points",
        size=small_size(),
        alpha=0.75,
    )
