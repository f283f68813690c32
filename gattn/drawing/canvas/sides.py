"""Names along the sides of axes: tokens, heads, layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes

from gattn.drawing.canvas.frame import pitch, shown_text
from gattn.drawing.canvas.labels import fit, text_style


def label_tokens(
    ax: Axes, positions: Sequence[Any] | None, tokens: Sequence[str], side: str
) -> None:
    """Write tokens' texts along a side of axes, at 0, 1, 2 ..., as many as stay readable.

    Where not all do, they are numbered by their positions, unless they have none.
    """
    named = dict(zip(range(len(tokens)) if positions is None else positions, tokens, strict=True))
    apart = pitch(ax, len(tokens), side)
    labels = fit(named, apart, rotations=[0, 45, 90] if side == "x" else [90])
    shown = [i for i, text in enumerate(labels.texts) if text]
    texts = [labels.texts[i] if positions is not None else shown_text(tokens[i]) for i in shown]
    style: dict[str, Any] = {"size": labels.size, **text_style(texts)}
    if side == "x":
        turned: dict[str, Any] = {"rotation": labels.rotation}
        if labels.rotation == 45:
            turned |= {"ha": "right", "rotation_mode": "anchor"}
        ax.set_xticks(shown, texts, **style, **turned)
    else:
        ax.set_yticks(shown, texts, **style)
    ax.tick_params(axis="x" if side == "x" else "y", length=0)


def label_rows(ax: Axes, names: Sequence[str]) -> None:
    """Name the rows of a matrix, as many as stay readable."""
    labels = fit(dict(enumerate(names)), pitch(ax, len(names), "y"), rotations=[90])
    shown = [i for i, text in enumerate(labels.texts) if text]
    named = [shown_text(names[i]) for i in shown]
    ax.set_yticks(shown, named, size=labels.size, **text_style(named))
    ax.tick_params(axis="y", length=0)
