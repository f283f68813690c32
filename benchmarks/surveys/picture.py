"""The picture: how fast, in how much memory, on how much disk."""

from pathlib import Path
from typing import Any

from benchmarks.surveys.page import TITLES, WAYS, of_shape

OURS, RAY, PEERS = "#0072B2", "#56B4E9", "#D55E00"
"""Okabe and Ito's blues and vermilion, which colour-blind readers tell apart."""
_PANELS = (
    ("texts per second", lambda row: row["texts_a_second"]),
    ("peak memory, GiB", lambda row: row.get("all_mib", row["mib"]) / 1024),
    ("MB on disk per text", lambda row: row["disk_bytes"] / row["texts"] / 1e6),
)


def draw(results: dict[str, Any], stem: Path) -> None:
    """Draw bars of each way for both models, as SVG and PNG."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    mpl.rcParams["svg.hashsalt"] = "gattn"
    rows = {row["name"]: row for row in results["rows"] if "texts_a_second" in row}
    shapes = [shape for shape in TITLES if of_shape(rows, shape)]
    if not shapes:
        return
    figure = Figure(figsize=(10.5, 0.6 + 2.5 * len(shapes)), layout="constrained")
    grid = figure.subplots(len(shapes), len(_PANELS), squeeze=False, sharey="row")
    for axes, shape in zip(grid, shapes, strict=True):
        found = of_shape(rows, shape)
        names = [WAYS[way] for way in found]
        for ax, (what, value) in zip(axes, _PANELS, strict=True):
            bars = ax.barh(names, [value(row) for row in found.values()], color=_colours(found))
            ax.bar_label(bars, fmt="{:.3g}", padding=3, fontsize=8)
            ax.set_xlabel(what, fontsize=9)
            ax.margins(x=0.2)
            ax.tick_params(labelsize=8)
            ax.spines[["top", "right"]].set_visible(False)
        axes[0].invert_yaxis()
        axes[0].set_title(TITLES[shape], loc="left", fontsize=10)
    figure.savefig(stem.with_suffix(".svg"), metadata={"Date": None})
    figure.savefig(stem.with_suffix(".png"), dpi=110)


def _colours(ways: dict[str, Any]) -> list[str]:
    kinds = {"ray": RAY, "packed": PEERS, "plain": PEERS}
    return [kinds.get(way, OURS) for way in ways]
