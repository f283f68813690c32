"""Edges as one artist each picture, and the labels of nodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure, SubFigure
from matplotlib.path import Path
from matplotlib.transforms import Affine2D, ScaledTranslation, Transform
from numpy.typing import NDArray

from gattn.drawing.canvas import layouts
from gattn.drawing.canvas.curves import Points
from gattn.drawing.canvas.frame import DASHES, POINTS_PER_INCH, Look
from gattn.drawing.canvas.layouts import Positions
from gattn.drawing.canvas.shown import Shown
from gattn.heads.head import AttentionGraph
from gattn.heads.networks import SINK


@dataclass(frozen=True)
class Lines:
    """The edges to draw, the weakest first so that strong ones lie on top.

    Parameters
    ----------
    start, end : array (edges, 2)
        Where the key and the query stand.
    attention : array (edges,)
        The attention of each.
    """

    start: Points
    end: Points
    attention: NDArray[np.float64]

    def __getitem__(self, chosen: NDArray[Any]) -> Lines:
        """Take some of the edges."""
        return Lines(self.start[chosen], self.end[chosen], self.attention[chosen])

    @property
    def is_loop(self) -> NDArray[np.bool_]:
        """Which edges run from a token to itself."""
        loop: NDArray[np.bool_] = (self.start == self.end).all(axis=1)
        return loop


def lines(
    head: AttentionGraph, shown: Shown, positions: Positions, *, split: bool = False
) -> Lines:
    """Place the edges that are shown, those from a sink among them."""
    keys, queries = layouts.ends(head, split=split)
    of_keys = np.array([positions[node] for node in keys]).reshape(-1, 2)
    of_queries = np.array([positions[node] for node in queries]).reshape(-1, 2)
    start, end = of_keys[head.key[shown.edges]], of_queries[head.query[shown.edges]]
    attention = head.attention[shown.edges].astype(np.float64)
    if head.sink is not None:
        start = np.concatenate([start, np.tile(positions[SINK], (len(shown.sinks), 1))])
        end = np.concatenate([end, of_queries[shown.sinks]])
        attention = np.concatenate([attention, head.sink[shown.sinks]])
    order = np.argsort(np.abs(attention), kind="stable")
    return Lines(start, end, attention)[order]


def add_edges(
    ax: Axes, paths: list[Path], found: Lines, look: Look, transform: Transform | None = None
) -> None:
    """Draw edges as one artist, those of negative attention dashed."""
    collection = PathCollection(
        paths,
        facecolors="none",
        edgecolors=look.cmap(look.scale.norm(found.attention)),
        linewidths=look.scale.widths(found.attention),
        linestyles=[DASHES if value < 0 else "solid" for value in found.attention],
        transform=transform or ax.transData,
        capstyle="butt",
        clip_on=False,
        gid="gattn-edges",
    )
    ax.add_collection(collection, autolim=False)


def add_arrowheads(ax: Axes, tips: Points, towards: Points, found: Lines, look: Look) -> None:
    """Draw small triangles at the ends of edges, as one artist.

    Parameters
    ----------
    ax : Axes
        The axes, whose two scales are equal.
    tips, towards : array (edges, 2)
        Where each tip lies, and the direction in which its edge arrives.
    found : Lines
        The edges.
    look : Look
        How the picture is drawn.
    """
    length = np.maximum(np.hypot(*towards.T), 1e-12)[:, None]
    widths = look.scale.widths(found.attention)[:, None]
    along = towards / length * (4.0 + 1.6 * widths)
    across = (towards / length)[:, ::-1] * np.array([[-1.0, 1.0]]) * (1.4 + 0.95 * widths)
    corners = np.stack([np.zeros_like(along), -along + across, -along - across], axis=1)
    heads = PathCollection(
        [Path(triangle, closed=False) for triangle in corners],
        offsets=tips,
        offset_transform=ax.transData,
        facecolors=look.cmap(look.scale.norm(found.attention)),
        linewidths=0.0,
        transform=Affine2D().scale(1 / POINTS_PER_INCH) + _figure(ax).dpi_scale_trans,
        clip_on=False,
        gid="gattn-arrowheads",
    )
    ax.add_collection(heads, autolim=False)


def _figure(ax: Axes) -> Figure | SubFigure:
    assert ax.figure is not None
    return ax.figure


def lifted(ax: Axes, rise: float, right: float = 0.0) -> Transform:
    """Move data coordinates up, and to the right, by some points."""
    moved = right / POINTS_PER_INCH, rise / POINTS_PER_INCH
    return ax.transData + ScaledTranslation(*moved, _figure(ax).dpi_scale_trans)
