"""Pictures as notebooks show them: in colours for light and dark themes, and for paper."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from gattn.drawing.canvas.colours import is_dark
from gattn.drawing.many_heads.draw_heads import HeadOptions, ways_of
from gattn.drawing.many_heads.grid_drawing import draw_grids
from gattn.drawing.one_head.draw_head import draw_head, fitting_axes, fitting_size
from gattn.drawing.styles.figures import TextFigure, load_backend
from gattn.heads.head import AttentionGraph
from gattn.heads.stack import Stack
from gattn.heads.trace import AttentionTrace

_MOST_NODES = 60
_SAYING = ("gattn-title", "gattn-caption")
_SETTINGS: dict[Any, Any] = {
    "figure.autolayout": False,
    "figure.constrained_layout.use": False,
}
_PAPERS = {"light": "white", "dark": "#12151d"}
"""The backgrounds; the dark one is the page's."""
_SIZE = re.compile(r'width="([\d.]+)pt" height="([\d.]+)pt" viewBox="([^"]+)"')


@dataclass(frozen=True)
class Picture:
    """A picture as a notebook shows it.

    Parameters
    ----------
    svg : str
        The picture twice, for a light and for a dark background: it shows the one that fits the
        color scheme of the place where it stands.
    png : bytes
        For a light background, such as paper.
    said : str
        What it shows, in words: its title and its caption.
    """

    svg: str
    png: bytes
    said: str


def notebook_svg(shown: object) -> str:
    """Draw what a notebook shows of a thing as SVG, without pyplot and the same each time.

    A head of up to 60 tokens is drawn as arcs, cross-attention as columns, a longer text as a
    matrix; a trace or a stack as the matrices of all its heads; anything else as its
    ``draw()`` does. An empty trace is an empty picture. The SVG holds the picture twice, in colours
    for a light and for a dark theme, and shows the one that fits the place where it stands.

    Parameters
    ----------
    shown : AttentionGraph, AttentionTrace, or anything that has a picture
        What to draw.
    """
    return notebook_picture(shown).svg


def notebook_picture(shown: object) -> Picture:
    """Draw what a notebook shows of a thing; see `notebook_svg`."""
    load_backend()
    svgs, png, said = {}, io.BytesIO(), ""
    for theme, paper in _PAPERS.items():
        salt = {"svg.hashsalt": f"gattn {theme}"}
        with mpl.rc_context(_SETTINGS | _colours(theme) | salt):
            figure = notebook_figure(shown)
            buffer = io.StringIO()
            how: dict[str, Any] = {"facecolor": paper, "bbox_inches": "tight"}
            figure.savefig(buffer, format="svg", metadata={"Date": None}, **how)
            svgs[theme] = buffer.getvalue()
            if theme == "light":
                figure.savefig(png, format="png", dpi=150, **how)
                said = said_in(figure)
    return Picture(_in_one(svgs), png.getvalue(), said)


def said_in(figure: Figure) -> str:
    """Return a figure's titles and captions, which say what it shows."""
    said = []
    for ax in figure.axes:
        captions = [text.get_text() for text in ax.texts if text.get_gid() in _SAYING]
        said += [ax.get_title(), *captions]
    return ". ".join(" ".join(text.split()) for text in said if text)


def notebook_figure(shown: Any) -> Figure:
    """Draw what a notebook shows of a thing, on a figure that pyplot does not know any more."""
    if isinstance(shown, AttentionTrace | Stack | AttentionGraph):
        return _fitting_figure(shown)
    return apart(shown.draw)


def apart(draw: Callable[[], Any]) -> Figure:
    """Draw on a figure that pyplot does not know any more, or notebooks would show it once more."""
    load_backend()
    with plt.ioff():
        figure: Figure = draw().figure.figure
    plt.close(figure)
    return figure


def _fitting_figure(graphs: AttentionGraph | AttentionTrace | Stack) -> Figure:
    """Draw a head, a trace or a stack on a figure of its own, which pyplot does not know."""
    if not isinstance(graphs, AttentionGraph):
        if not len(graphs):
            return TextFigure((1.0, 1.0))
        return draw_grids(ways_of(graphs, HeadOptions())[0], None, TextFigure)
    layout = "columns" if graphs.graph.is_bipartite else "arcs"
    if max(graphs.graph.num_tokens, graphs.graph.num_queries) > _MOST_NODES:
        layout = "matrix"
    figure = TextFigure(fitting_size(graphs, layout))
    draw_head(graphs, layout, ax=fitting_axes(figure, layout))
    return figure


def _colours(theme: str) -> dict[Any, Any]:
    """Return the settings that turn the current style into one for a background, if it is not."""
    if is_dark() == (theme == "dark"):
        return {}
    dark: dict[Any, Any] = dict(plt.style.library["dark_background"])
    if theme == "light":
        return {name: mpl.rcParamsDefault[name] for name in dark}
    return dark | {"axes.facecolor": _PAPERS["dark"], "figure.facecolor": _PAPERS["dark"]}


def _in_one(svgs: Mapping[str, str]) -> str:
    """Join pictures for themes to one, which shows that of the place where it stands."""
    found = _SIZE.search(svgs["light"])
    assert found is not None
    wide, high, box = found.groups()
    parts = "\n".join(
        _SIZE.sub(rf'class="{theme}" viewBox="\3"', svg[svg.index("<svg") :], count=1)
        for theme, svg in svgs.items()
    )
    return f"""<?xml version="1.0" encoding="utf-8"?>
<svg xmlns="http://www.w3.org/2000/svg" width="{wide}pt" height="{high}pt" viewBox="{box}">
<style>
.dark {{ display: none }}
@media (prefers-color-scheme: dark) {{ .light {{ display: none }} .dark {{ display: inline }} }}
</style>
{parts}
</svg>
"""
