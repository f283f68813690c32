"""Axes on which layers are stacked: tokens from left to right, layers numbered upwards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
from matplotlib.axes import Axes

from gattn.drawing.canvas.fitting import fitted, pitch, points
from gattn.drawing.canvas.fonts import weight_of
from gattn.drawing.canvas.frame import new_axes
from gattn.drawing.canvas.labels import font_size, text_style, width_of
from gattn.drawing.canvas.sides import label_tokens

LIMITS = 0.12, 0.42
"""How much room there is below the lowest layer and above the highest, in layers."""
_BOLD = 1.15
"""How much wider bold letters are."""
_LAYERS = "layer: key → query"


def layered_axes(tokens: int, layers: int) -> Axes:
    """Make axes in a new figure with room for tokens and layers."""
    return new_axes(min(16.0, 3.2 + 0.45 * tokens), min(14.0, 1.9 + 0.85 * layers))


def set_up(ax: Axes, tokens: Mapping[int, str], layers: Sequence[int], *, labels: bool) -> None:
    """Set the limits, and write tokens, by position, and layers along the sides."""
    ax.set(xlim=(-0.7, len(tokens) - 0.3), ylim=(-LIMITS[0], len(layers) + LIMITS[1]))
    if labels:
        label_tokens(ax, list(tokens), list(tokens.values()), "x")
    else:
        ax.set_xticks([])
    ax.tick_params(axis="y", length=0)
    ax.spines[:].set_visible(False)
    number_layers(ax, layers)


def number_layers(ax: Axes, layers: Sequence[int]) -> None:
    """Write the numbers of layers, as many as have room, and name the side."""
    fitted(ax, partial(_number_layers, ax, layers))
    name_layers(ax)


def name_end(ax: Axes, place: tuple[float, float], text: str, rise: float) -> None:
    """Name the node on top, some points above it, and no further right than the axes reach."""
    size = 0.9 * font_size()
    name = ax.annotate(
        text,
        place,
        (0, rise),
        textcoords="offset points",
        ha="center",
        va="bottom",
        size=size,
        weight=weight_of(text),
        annotation_clip=False,
        zorder=6,
        **text_style([text]),
    )

    def step() -> None:
        left, right = ax.get_xlim()
        beside = (right - place[0]) / (right - left) * points(ax)[0]
        name.xyann = (min(0.0, beside - _BOLD * width_of(text) * size / 2), rise)

    fitted(ax, step)


def _number_layers(ax: Axes, layers: Sequence[int]) -> None:
    shown = range(0, len(layers), layers_apart(ax))
    ax.set_yticks([n + 0.5 for n in shown], [str(layers[n]) for n in shown])


def layers_apart(ax: Axes, line: float = 1.2) -> int:
    """Return how many layers share a text, so that lines of some font sizes do not meet."""
    low, high = ax.get_ylim()
    return max(1, int(np.ceil(line * font_size() / max(pitch(ax, high - low, "y"), 1e-9))))


def name_layers(ax: Axes) -> None:
    """Say which way layers go, and information with them, in short where the axes are low."""
    label = ax.yaxis.label
    label.set(text=_LAYERS, parse_math=False)

    def step() -> None:
        room = points(ax)[1] / float(label.get_fontsize())
        texts = _LAYERS, "layer"
        if label.get_text() in texts:
            label.set_text(texts[width_of(_LAYERS) > room])

    fitted(ax, step)
