"""The tokens beside the matrices of a picture of many heads."""

from __future__ import annotations

from gattn.drawing.canvas import layouts
from gattn.drawing.canvas.labels import Labels, fit
from gattn.drawing.many_heads.grid import Grid
from gattn.drawing.many_heads.sheet import as_inches

_FEWEST = 3
"""How many tokens of a side are worth the room that they take from matrices."""


def fit_tokens(
    grid: Grid, wide: float, token: tuple[float, float], step: float, reach: tuple[float, float]
) -> tuple[Labels, Labels]:
    """Fit the tokens of keys, with a sink, and of queries.

    Parameters
    ----------
    grid : Grid
        The grid.
    wide, token, step : float, (float, float), float
        Inches: the width of a matrix, that of a key and the height of a query, and from one matrix
        to the next.
    reach : (float, float)
        How far labels may reach beside and below a matrix, in points.
    """
    head, (across, down) = grid.head, token
    keys, queries = layouts.ends(head)
    named = dict(zip(keys, head.labels(), strict=False))
    if head.sink is not None:
        named["sink"] = "<sink>"
    apart = across / as_inches(1)
    below = fit(named, apart, rotations=(0, 90), reach=reach[1])
    if grid.size[1] > 1:
        between = (step - wide) / as_inches(1)
        if below.rotation == 0 and not below.is_clear_of_next(apart, between):
            below = fit(named, apart, rotations=(90,), reach=reach[1])
        below = below.clear_of_next(apart, between)
    if head.sink is not None:
        below.texts[-1] = "<sink>"
    named = dict(zip(queries, head.query_labels(), strict=True))
    beside = fit(named, down / as_inches(1), rotations=(90,), reach=reach[0])
    return below, beside


def are_few(*sides: Labels) -> bool:
    """Return whether hardly any token of a side has room."""
    shown = [[bool(text) for text in labels.texts] for labels in sides]
    return any(sum(some) < min(len(some), _FEWEST) for some in shown)
