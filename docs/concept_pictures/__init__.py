"""The pictures on the concept pages, drawn by gattn while the site is built."""

from pathlib import Path
from typing import Any

import matplotlib as mpl

FOLDER = Path(__file__).parents[1] / "concepts" / "pictures"
LIVE = FOLDER.parents[1] / "_static" / "live"
TEXT = "The river tall green lamp river tall green lamp river tall green"
STYLE = {
    "figure.facecolor": "white",
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.hashsalt": "gattn",
}


def pictures() -> dict[str, Any]:
    """Return, for each picture's name, a function that draws it."""
    from concept_pictures import graphs, normalizers, token_graphs, weights

    return token_graphs.PICTURES | weights.PICTURES | normalizers.PICTURES | graphs.PICTURES


def draw(folder: Path = FOLDER) -> None:
    """Draw every picture that is missing, or older than the code here."""
    written = max(path.stat().st_mtime for path in Path(__file__).parent.glob("*.py"))
    folder.mkdir(parents=True, exist_ok=True)
    for name, figure in pictures().items():
        path = folder / f"{name}.svg"
        if path.exists() and path.stat().st_mtime > written:
            continue
        with mpl.rc_context(mpl.rcParamsDefault | STYLE | {"backend": "agg"}):
            figure().savefig(path, bbox_inches="tight", pad_inches=0.04, metadata={"Date": None})
            mpl.pyplot.close("all")


def write_page(folder: Path = LIVE) -> None:
    """Write the interactive page that the landing page embeds."""
    import gattn

    folder.mkdir(parents=True, exist_ok=True)
    gattn.capture(TEXT).to_html(folder / "lamp.html")


def setup(app: Any) -> dict[str, bool]:
    """Draw before the pages are read."""
    app.connect("builder-inited", lambda _: (draw(), write_page()))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
