"""Pictures of shared subspaces: singular values beside those of held-out texts and of chance."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from gattn.drawing.canvas.colours import is_dark
from gattn.drawing.canvas.frame import describe, new_axes
from gattn.drawing.canvas.keys import Entry, add_key
from gattn.drawing.canvas.labels import font_size

if TYPE_CHECKING:
    from gattn.analysis.subspaces.subspace import SharedSubspace

_MOST = 16


def draw_shared_subspace(found: SharedSubspace, *, ax: Axes | None = None, **options: Any) -> Axes:
    """Draw the largest singular values, those on held-out texts, and the range of chance.

    Components right of the line are not kept.

    Parameters
    ----------
    found : SharedSubspace
        What `gattn.analysis.shared_subspace` returns.
    **options
        As `Axes.plot` takes them, for all markers.
    """
    ax = ax if ax is not None else new_axes(5.6, 3.6)
    values = found.singular_values.numpy()
    count = min(len(values), max(_MOST, found.rank + 2))
    at, chance = np.arange(count), found.shuffled.numpy()[:, :count]
    own, other = ("#56b4e9", "#e69f00") if is_dark() else ("#0072b2", "#d55e00")
    band = ax.fill_between(at, chance.min(0), chance.max(0), color="grey", alpha=0.4, lw=0)
    style: dict[str, Any] = {"ls": "", "ms": 6}
    (dots,) = ax.plot(at, values[:count], marker="o", color=own, **(style | options))
    held = found.held_out.numpy()[:count]
    (marks,) = ax.plot(at, held, marker="x", color=other, mew=1.5, **(style | options))
    if 0 < found.rank < count:
        ax.axvline(found.rank - 0.5, color="grey", lw=0.8, ls=":")
    ax.set(xlabel="component", ylabel="covariance", xlim=(-0.6, count - 0.4))
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.axhline(0, color="grey", lw=0.5, zorder=0)
    ax.spines[["top", "right"]].set_visible(False)
    entries: list[Entry] = [
        (dots, "singular value"),
        (marks, "on held-out texts"),
        (band, "shuffled labels: range"),
    ]
    add_key(ax, entries, loc="best", fontsize=0.85 * font_size())
    area = float(found.separation["auc"].iloc[0])
    title = f"shared subspace of head {found.layer}.{found.head} · rank {found.rank}"
    describe(ax, found.components.attrs, title, [f"AUC of held-out edges: {area:.2f}"])
    return ax
