"""The study's picture: each ranking's correlation and areas, in each trained model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

_TITLES = {
    "correlation": "rank correlation with\nexact effects of single cuts",
    "deletion": "deletion: change of the answer\nas the top is cut (more is better)",
    "insertion": "insertion: change that is left\nas the top is restored (less is better)",
}
_COLOURS = {"embedded": "C0", "minilm": "C1"}


def draw(table: pd.DataFrame, path: Path) -> None:
    """Draw edges and tokens, one row of axes each, with intervals over texts."""
    import matplotlib.pyplot as plt

    trained = table[table["model"].isin(_COLOURS)]
    units = ["edge", "token"]
    figure, grid = plt.subplots(
        len(units), len(_TITLES), figsize=(10, 5.2), sharey="row", layout="constrained"
    )
    for row, unit in zip(grid, units, strict=True):
        some = trained[trained["unit"] == unit]
        names = list(dict.fromkeys(some["ranking"]))
        for ax, (column, title) in zip(row, _TITLES.items(), strict=True):
            _draw_one(ax, some, names, column)
            if unit == units[0]:
                ax.set_title(title, size="small")
        row[0].set_yticks(range(len(names)), names)
        row[0].set_ylim(len(names) - 0.5, -0.5)
        row[0].set_ylabel(f"{unit}s")
    handles, labels = grid[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)
    figure.savefig(path)
    plt.close(figure)


def _draw_one(ax: Any, table: pd.DataFrame, names: list[str], column: str) -> None:
    ax.axvline(0, color="0.8", lw=0.8)
    for n, (model, colour) in enumerate(_COLOURS.items()):
        some = table[table["model"] == model].set_index("ranking").reindex(names)
        place = [y + 0.16 * (2 * n - 1) for y in range(len(names))]
        ax.hlines(place, some[f"{column}_low"], some[f"{column}_high"], colour, lw=1)
        ax.plot(some[column], place, "o", color=colour, ms=4, label=model)
    ax.spines[["top", "right"]].set_visible(False)
