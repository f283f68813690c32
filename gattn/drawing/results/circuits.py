"""Pictures of the circuits of several texts: which heads read what, in how many of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, Normalize
from numpy.typing import NDArray

from gattn.analysis.circuits.found import Circuit
from gattn.analysis.circuits.several import ROLES, Circuits
from gattn.drawing.canvas.frame import describe, new_axes
from gattn.drawing.canvas.labels import in_digits
from gattn.drawing.canvas.sides import label_columns, label_rows
from gattn.drawing.matrices.heatmaps import draw_heatmap, write_cells
from gattn.heads.nouns import counted


def draw_circuits(
    circuits: Circuits,
    *,
    ax: Axes | None = None,
    cmap: str | Colormap | None = None,
    **options: Any,
) -> Axes:
    """Draw in how many circuits each head reads what: one row per head, one column per role.

    Parameters
    ----------
    circuits : Circuits
        The circuits of several texts.
    """
    heads, roles, counts = _counted(circuits)
    if ax is None:
        ax = new_axes(2.6 + 0.75 * counts.shape[1], min(1.9 + 0.3 * counts.shape[0], 12.0))
    draw_heatmap(ax, counts, "circuits", cmap, **{"norm": Normalize(0, len(circuits)), **options})
    write_cells(ax, np.where(counts > 0, counts, np.nan), ax.images[-1].to_rgba(counts))
    several = len({stack for stack, *_ in heads}) > 1
    names = [f"{stack} " * several + f"{layer}.{head}" for stack, layer, head in heads]
    label_rows(ax, names or [""])
    label_columns(ax, roles or [""])
    are_paths = not all(isinstance(one, Circuit) for one in circuits)
    ax.set(xlabel="what it hears" if are_paths else "what the key is to the query", ylabel="head")
    facts = circuits.table().attrs
    edges = circuits.table()["edges"]
    low, high = (int(edges.min()), int(edges.max())) if len(edges) else (0, 0)
    what = "path" if are_paths else "edge"
    said = counted(high, what) if low == high else f"{low} to {high} {what}s"
    stable = f"stability {in_digits(circuits.stability, '.2f')}" if len(circuits) > 1 else ""
    describe(ax, facts, f"circuits of {counted(len(circuits), 'text')}", [said, stable])
    return ax


def _counted(circuits: Circuits) -> tuple[list[tuple[Any, ...]], list[str], NDArray[np.float64]]:
    """Count the circuits in which a head has a role: heads, roles, and (heads, roles)."""
    rows = pd.DataFrame(circuits.roles()).to_dict("records")
    stacks = list(dict.fromkeys(stack for one in circuits for stack in one.stacks))
    named = {(row["stack"], row["layer"], row["head"]) for row in rows}
    heads = sorted(named, key=lambda head: (stacks.index(head[0]), *head[1:]))
    known = {row["role"] for row in rows}
    roles = sorted(known, key=lambda role: (_rank(role), role))
    counts = np.zeros((max(len(heads), 1), max(len(roles), 1)))
    for row in rows:
        spot = heads.index((row["stack"], row["layer"], row["head"])), roles.index(row["role"])
        counts[spot] = round(row["share"] * len(circuits))
    return heads, roles, counts


def _rank(role: str) -> int:
    """Return the place of a role among `ROLES`, which do not say of what it is; paths have none."""
    return next((n for n, one in enumerate(ROLES) if role.startswith(one)), len(ROLES))
