"""Which texts of a figure meet, or leave it, as it is drawn."""

from dataclasses import dataclass
from unittest.mock import patch

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text

_APART = 0.3
"""How many points two texts may share: their boxes are a little larger than their ink."""


@dataclass(frozen=True, eq=False)
class Box:
    """A text as it was drawn, in points: the corners of its box, and of the axes it belongs to."""

    text: str
    corners: np.ndarray
    axes: object


def drawn_texts(figure, dpi=100):
    """Draw a figure, and return all texts that became visible."""
    found = []
    plain = Text.draw

    def draw(text, renderer):
        if text.get_visible() and text.get_text().strip():
            found.append(Box(text.get_text(), _corners(text, renderer) * 72 / dpi, text.axes))
        return plain(text, renderer)

    figure.set_dpi(dpi)
    canvas = FigureCanvasAgg(figure)
    with patch.object(Text, "draw", draw):
        canvas.draw()
    return found


def problems(figure, dpi=100):
    """Say which texts meet each other or another picture, and which are cut."""
    texts = drawn_texts(figure, dpi)
    wide, high = figure.get_size_inches() * 72
    said = []
    for text in texts:
        (x0, y0), (x1, y1) = text.corners.min(0), text.corners.max(0)
        if min(x0, y0) < -0.5 or x1 > wide + 0.5 or y1 > high + 0.5:
            said.append(f"{text.text!r} is cut: {x0:.0f} {y0:.0f} {x1 - wide:.0f} {y1 - high:.0f}")
    for i, one in enumerate(texts):
        said += [
            f"{one.text!r} meets {other.text!r}" for other in texts[i + 1 :] if _meet(one, other)
        ]
    for text in texts:
        for ax in figure.axes:
            if text.axes is not None and not _belong(text.axes, ax) and ax.axison:
                box = ax.bbox.get_points() * 72 / figure.dpi
                corners = np.array([box[0], [box[1][0], box[0][1]], box[1], [box[0][0], box[1][1]]])
                if _meet(text, Box("", corners, ax)):
                    said.append(f"{text.text!r} is in another picture")
    return said


def _belong(one, other):
    return one is other or one in other.child_axes or other in one.child_axes


def _corners(text, renderer):
    """Return the corners of a text, turned as it is, in pixels."""
    turn = text.get_rotation()
    box = text.get_window_extent(renderer)
    if turn % 90 == 0:
        return np.array([[box.x0, box.y0], [box.x1, box.y0], [box.x1, box.y1], [box.x0, box.y1]])
    middle = np.array([(box.x0 + box.x1) / 2, (box.y0 + box.y1) / 2])
    angle = np.deg2rad(turn)
    c, s = abs(np.cos(angle)), abs(np.sin(angle))
    # The upright box is (w c + h s, w s + h c); h is that of a line.
    high = 1.0 * text.get_fontsize() * text.figure.dpi / 72
    wide = (box.width - high * s) / c if c > s else (box.height - high * c) / s
    along, beside = (
        np.array([np.cos(angle), np.sin(angle)]),
        np.array([-np.sin(angle), np.cos(angle)]),
    )
    return np.array(
        [
            middle + a * wide / 2 * along + b * high / 2 * beside
            for a, b in ((-1, -1), (1, -1), (1, 1), (-1, 1))
        ]
    )


def _meet(one, other):
    """Return whether two rectangles share more than a little: no line keeps them apart."""
    for corners in (one.corners, other.corners):
        sides = np.roll(corners, -1, axis=0)[:2] - corners[:2]
        for side in sides:
            length = np.hypot(*side)
            if length < 1e-9:
                continue
            axis = side / length
            a, b = one.corners @ axis, other.corners @ axis
            if a.max() <= b.min() + _APART or b.max() <= a.min() + _APART:
                return False
    return True
