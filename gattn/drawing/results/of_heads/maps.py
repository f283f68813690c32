"""Pictures of how far heads are from each other: a map, and a tree."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, Normalize, to_hex
from matplotlib.text import Text
from numpy.typing import NDArray

from gattn.analysis.heads.divergences import FARTHEST
from gattn.drawing.canvas.colours import layer_colours
from gattn.drawing.canvas.fitting import Fitting, fitted, pitch, rewritten
from gattn.drawing.canvas.frame import describe, new_axes
from gattn.drawing.canvas.keys import label_layers
from gattn.drawing.canvas.labels import font_size, smallest, width_of
from gattn.drawing.canvas.pen import DASHES
from gattn.drawing.canvas.rooms import POINTS_PER_INCH

if TYPE_CHECKING:
    from gattn.analysis.heads.head_groups import HeadClusters, HeadMap

_BETWEEN = "#999999"
"""The colour of branches between clusters."""
_SIDES = ((0, 1), (1, 0), (0, -1), (-1, 0), (1, 1), (-1, 1), (1, -1), (-1, -1))
"""Where a name may stand beside its point, the best place first."""


def draw_head_map(
    heads: HeadMap,
    *,
    ax: Axes | None = None,
    cmap: str | Colormap | None = None,
    **options: Any,
) -> Axes:
    """Draw a map of heads: those close together attend alike; colours are layers.

    A head is named "layer.head" if its name overlaps no other.

    Parameters
    ----------
    heads : HeadMap
        What `gattn.analysis.head_map` returns.
    """
    colours = layer_colours(cmap)
    if ax is None:
        ax = new_axes(6.4, 5.6)
    places = heads[["x", "y"]].to_numpy(dtype=np.float64)
    layers = heads.index.get_level_values("layer").to_numpy()
    names = [f"{layer}.{head}" for layer, head in heads.index]
    norm = Normalize(layers.min(initial=0), max(layers.max(initial=1), 1))
    shown: dict[str, Any] = {"s": 30, "edgecolors": "0.5", "linewidths": 0.5} | options
    ax.scatter(places[:, 0], places[:, 1], c=layers, cmap=colours, norm=norm, **shown)
    ax.set_aspect("equal", adjustable="datalim")
    ax.margins(0.08)
    ax.set(xlabel="x", ylabel="y")
    describe(ax, heads.attrs)
    label_layers(ax, norm, colours)
    rewritten(ax, partial(_name_points, ax, places, names))
    return ax


def _name_points(ax: Axes, places: NDArray[np.float64], names: Sequence[str]) -> list[Text]:
    """Name the points whose names have room, each beside its point."""
    size = 0.7 * font_size()
    written: list[Text] = []
    ax.apply_aspect(Fitting.of(ax).box)
    points = ax.transData.transform(places) * POINTS_PER_INCH / ax.figure.dpi
    taken = np.column_stack([points - 2.5, points + 2.5])
    inside = ax.bbox.get_points() * POINTS_PER_INCH / ax.figure.dpi
    for place, point, name in zip(places, points, names, strict=True):
        half = np.array([width_of(name) * size / 2, 0.6 * size])
        for side in _SIDES:
            centre = point + np.array(side) * (half + (4 if 0 in side else 2))
            box = np.concatenate([centre - half, centre + half])
            meets = (taken[:, :2] < box[2:]).all(1) & (taken[:, 2:] > box[:2]).all(1)
            if not meets.any() and (box[:2] > inside[0]).all() and (box[2:] < inside[1]).all():
                taken = np.vstack([taken, box])
                style: dict[str, Any] = {
                    "textcoords": "offset points",
                    "ha": "center",
                    "va": "center",
                }
                written.append(ax.annotate(name, place, centre - point, size=size, **style))
                break
    said = f"{len(written)} of {len(names)} names have room"
    Fitting.of(ax).note("names", said * (len(written) < len(names)))
    return written


def draw_head_clusters(heads: HeadClusters, *, ax: Axes | None = None, **options: Any) -> Axes:
    """Draw the tree of heads: the lower two branches meet, the more alike they attend.

    Branches of a cluster share a colour; those between clusters are dashed.

    Parameters
    ----------
    heads : HeadClusters
        What `gattn.analysis.head_clusters` returns.
    **options
        Passed on to `scipy.cluster.hierarchy.dendrogram`.
    """
    from scipy.cluster.hierarchy import dendrogram

    names = [f"{layer}.{head}" for layer, head in heads.index]
    if ax is None:
        ax = new_axes(min(14.0, max(5.0, 1.2 + 0.22 * len(names))), 4.0)
    tree = np.array(heads.attrs["tree"])
    order = [0]
    if len(tree):
        colours = _branch_colours(tree, heads["cluster"].to_numpy())
        found = dendrogram(
            tree, ax=ax, no_labels=True, link_color_func=colours.__getitem__, **options
        )
        order = found["leaves"] or []
        for lines in ax.collections:
            (colour, *_) = np.atleast_2d(np.asarray(lines.get_edgecolor()))
            if to_hex(tuple(colour.tolist())) == _BETWEEN:
                lines.set(linestyle=DASHES, linewidth=0.8)
    else:
        ax.plot(5, 0, "o", color="0.6", clip_on=False)
        ax.set(xlim=(0, 10), ylim=(0, FARTHEST))
    fitted(ax, partial(_name_leaves, ax, [names[i] for i in order]))
    ax.set_ylabel("distance")
    ax.spines[["top", "right", "bottom"]].set_visible(False)
    ax.tick_params(axis="x", length=0)
    count = heads["cluster"].nunique()
    said = f"{count} clusters; dashed: between them" if count > 1 else "1 cluster"
    describe(ax, heads.attrs, notes=[said])
    return ax


def _name_leaves(ax: Axes, names: Sequence[str]) -> None:
    """Name the leaves of a tree, one in a few where there is no room for all."""
    apart = pitch(ax, len(names), "x")
    size = min(0.75 * font_size(), max(smallest(), 0.85 * apart))
    step = max(1, int(np.ceil(1.15 * size / max(apart, 1e-9))))
    shown = range(0, len(names), step)
    ax.set_xticks([10 * i + 5 for i in shown], [names[i] for i in shown], size=size, rotation=90)
    Fitting.of(ax).note("names", f"one head in {step} is named" * (step > 1))


def _branch_colours(tree: NDArray[np.float64], cluster: NDArray[Any]) -> dict[int, str]:
    """Colour joins within a cluster like the cluster, those between clusters grey."""
    clusters: dict[int, int | None] = dict(enumerate(cluster.tolist()))
    colours = {}
    cycle = mpl.colormaps["tab10"].colors  # type: ignore[attr-defined] # of listed colours
    for number, (left, right, *_) in enumerate(tree, start=len(cluster)):
        one, other = clusters[int(left)], clusters[int(right)]
        clusters[number] = one if one == other else None
        same = clusters[number]
        colours[number] = _BETWEEN if same is None else mpl.colors.to_hex(cycle[same % len(cycle)])
    return colours
