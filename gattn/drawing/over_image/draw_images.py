"""Several heads, or several queries of each, over the image that a model read."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.colors import Colormap
from matplotlib.figure import Figure, SubFigure

from gattn.analysis.reading.attention import Heads
from gattn.analysis.reading.heads import Place, by_place
from gattn.drawing.canvas.frame import heads_title
from gattn.drawing.canvas.labels import in_percent, with_powers
from gattn.drawing.chosen.given import checks_given
from gattn.drawing.chosen.heads import Chosen
from gattn.drawing.chosen.queries import sides
from gattn.drawing.many_heads.sheet import inches_of
from gattn.drawing.over_image.draw_image import ImagePen
from gattn.drawing.over_image.images import Fit, read_image
from gattn.drawing.over_image.panels import IN_A_ROW, Panel, Panels
from gattn.drawing.over_image.patches import Patches
from gattn.drawing.over_image.shown import patches_of
from gattn.drawing.styles.figures import check_one_size
from gattn.errors import SelectionError
from gattn.heads.geometry import Grid
from gattn.heads.head import AttentionGraph
from gattn.names.choices import HeadChoice

_MOST, _MOST_IN_A_ROW = 600, 24
"""The most panels of one figure, and of those that follow one another in a row of it."""
_PALE = 0.25
"""Below which share of the scale the strongest patch of half of the panels is said to be pale."""


@checks_given
def draw_images(
    attention: Heads,
    image: Any,
    query: Any = None,
    *,
    key: Any = None,
    heads: HeadChoice = None,
    stack: str | None = None,
    grid: Grid | tuple[int, int] | None = None,
    values: str = "attention",
    fit: Fit | None = None,
    vmax: float | None = None,
    cmap: str | Colormap | None = None,
    figsize: tuple[float, float] | None = None,
    figure: Figure | SubFigure | None = None,
) -> Figure:
    """Draw what patches read in several heads, each over the image, in colours that all share.

    By default layers are rows and heads columns. Chosen heads stand side by side after the image
    itself. With a list of queries, each query is a column and each head a row, or the other way
    round where images are larger so on a given figure. Those of one head follow one another. The
    rest is as in `gattn.drawing.draw_image`.

    Parameters
    ----------
    attention : Heads
        A trace, a stack, or anything else that holds attention.
    image : PIL image, array (height, width, 3), Tensor (3, height, width), or path
        The image as the model read it.
    query, key : (row, column), int, str, or list of these, optional
        Which patch or token reads, or is read; each of a list has panels of its own. By default the
        first token that is no patch reads, such as the class token, or the mean of all is shown.
    heads : int, sequence of int, or sequence of (layer, head), optional
        Which heads, as in `gattn.drawing.draw_heads`.
    stack : str, optional
        Which stack; by default the only one whose tokens lie on a grid.
    grid, values, fit, vmax, cmap
        As in `gattn.drawing.draw_image`.
    figsize : (float, float), optional
        The width and height in inches of the new figure.
    figure : Figure or SubFigure, optional
        Where to draw; by default a new pyplot figure.

    Raises
    ------
    SelectionError
        If there is no such stack, head, query or key, or there are too many to draw.
    ShapeError
        If the image does not fit, or the figure is too small.
    """
    check_one_size(figure, figsize)
    graphs = by_place(attention)
    stack = _with_grid(graphs) if stack is None and grid is None and heads is None else stack
    chosen = Chosen.of(attention, graphs, heads, stack)
    stacks = chosen.stacks()
    if len(stacks) > 1:
        names = sorted({place[0] for place in chosen.graphs})
        raise SelectionError(f"An image is of one stack: pass stack=, one of {names}.")
    asked = query if key is None else key
    several = list(asked) if isinstance(asked, list) else [asked]
    if not several:
        raise SelectionError("No query is given: the list is empty.")
    if len(several) * len(stacks[0]) > _MOST:
        raise SelectionError(
            f"{len(several) * len(stacks[0])} panels are too many for one figure: choose heads, as "
            "in heads=[(0, 1), (11, 2)]."
        )
    options: dict[str, Any] = {"grid": grid, "values": values}
    side = "query" if key is None else "key"
    found = {
        (place, n): patches_of(head, **{side: one}, **options)
        for place, head in stacks[0].items()
        for n, one in enumerate(several)
    }
    first = next(iter(found.values()))
    read = read_image(image).fitted(first.grid, fit)
    pen = ImagePen.of(found.values(), vmax=vmax, cmap=cmap)
    ways = _arranged(found, stacks[0], several, side, is_strip=chosen.is_strip)
    said = [
        _said(list(found.values()), several, side),
        pen.said,
        pen.beyond(found.values()),
        _paled(found.values()) if vmax is None else "",
        read.said,
    ]
    title = chosen.title(stacks[0])
    if len(stacks[0]) == 1:
        title = f"{title} · {heads_title(list(stacks[0].values()))}".strip(" ·")
    caption = with_powers("; ".join(filter(None, said)))
    every = [Panels(panels, read, pen, title, caption) for panels in ways]
    given = figsize if figure is None else inches_of(figure)
    best = every[0] if given is None else max(every, key=lambda one: one.side_on(given))
    return best.drawn(figure, figsize)


def _with_grid(graphs: Mapping[Place, AttentionGraph]) -> str | None:
    """Name the stack whose tokens lie on a grid, if there is one such stack."""
    names = {
        place[0]
        for place, head in graphs.items()
        if isinstance(head.geometry, Grid) or isinstance(head.query_geometry, Grid)
    }
    return names.pop() if len(names) == 1 else None


def _arranged(
    found: Mapping[tuple[Place, int], Patches],
    graphs: Mapping[Place, AttentionGraph],
    several: Sequence[Any],
    side: str,
    *,
    is_strip: bool,
) -> list[list[Panel]]:
    """Lay the panels out, the usual way first, and in other ways that may fill a figure."""
    places = list(graphs)
    names = _names(next(iter(graphs.values())), several, side) if len(several) > 1 else []
    if names and len(places) == 1:
        return _in_rows([(names[n], one, one.outlined) for (_, n), one in found.items()])
    if names:
        rows = {place: row for row, place in enumerate(places)}
        short = {place: f"{place[1]}.{place[2]}" for place in places}
        return [
            [
                Panel(
                    rows[place], n, names[n] * (rows[place] == 0), one, one.outlined, short[place]
                )
                for (place, n), one in found.items()
            ],
            [
                Panel(n, rows[place], short[place] * (n == 0), one, one.outlined, names[n])
                for (place, n), one in found.items()
            ],
        ]
    if is_strip:
        outlined = next(iter(found.values())).outlined
        shown = [(f"layer {p[1]} · head {p[2]}", one, outlined) for (p, _), one in found.items()]
        return _in_rows([("image", None, outlined), *shown])
    layers = sorted({place[1] for place in places})
    heads = sorted({place[2] for place in places})
    in_rows = [(f"head {place[2]}", one, one.outlined) for (place, _), one in found.items()]
    return [
        [
            Panel(
                layers.index(place[1]), heads.index(place[2]),
                f"head {place[2]}" * (place[1] == layers[0]), one, one.outlined,
                f"layer {place[1]}", str(place[2]) * (place[1] == layers[0]),
            )
            for (place, _), one in found.items()
        ],
        *(_in_rows(in_rows) if len(layers) == 1 < len(heads) else []),
    ]  # fmt: skip


def _in_rows(
    shown: Sequence[tuple[str, Patches | None, tuple[tuple[int, int], ...]]],
) -> list[list[Panel]]:
    """Lay panels out one after another, in rows of any number of them."""
    usual = min(len(shown), IN_A_ROW)
    return [
        [
            Panel(n // across, n % across, name, one, outlined)
            for n, (name, one, outlined) in enumerate(shown)
        ]
        for across in (usual, *range(1, min(len(shown), _MOST_IN_A_ROW) + 1))
    ]


def _paled(some: Iterable[Patches]) -> str:
    """Say if a few strong patches leave most panels pale, and which scale would show these."""
    tops = [one.top for one in some if np.nan_to_num(one.values).any()]
    usual = float(np.median(tops)) if tops else 1.0
    if not tops or usual >= _PALE * max(tops):
        return ""
    digit = 10.0 ** math.floor(math.log10(usual))
    end = f"{math.ceil(usual / digit) * digit:.1g}"
    return f"half of the panels are pale, with no patch above {end}: see them with vmax={end}"


def _names(head: AttentionGraph, several: Sequence[Any], side: str) -> list[str]:
    tokens = sides(head)[side == "key"]
    return [tokens.short(tokens.find(one)[0]) for one in several]


def _said(found: Sequence[Patches], several: Sequence[Any], side: str) -> str:
    """Say what all panels show: of which query, and how much of the attention is on the image."""
    shares = [one.on_image for one in found if one.on_image is not None]
    text = "what each query reads" if side == "query" else "who reads each key"
    if len(several) == 1:
        text = found[0].said[0].partition(":")[0]
    if shares:
        least, most = map(in_percent, (min(shares), max(shares)))
        span = least if least == most else f"{least} to {most}"
        text = "; ".join(filter(None, [text, f"{span} of the attention lies on the image"]))
    dropped = [part for part in found[0].said[1:] if part]
    return "; ".join(filter(None, [text, *dropped]))
