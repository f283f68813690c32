"""The pictures on a page, for readers that run no script, as in e-mail and previews."""

from __future__ import annotations

import io
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from gattn.analysis.circuits.found import Circuit
from gattn.drawing.many_heads.compare import draw_compare
from gattn.drawing.many_heads.notebook import apart, notebook_figure
from gattn.drawing.page.payload import titled
from gattn.drawing.styles.figures import load_backend
from gattn.errors import ShapeError
from gattn.heads.trace import AttentionTrace

_LARGEST = 1200, 1800
"""The most pixels across and down."""
_SHARPEST = 130
_COLOURS = 96
_MOST = 8
"""How many texts are drawn; the others are named."""

Shown: TypeAlias = tuple[str, Sequence[AttentionTrace]]
"""What a page shows of a text: its name, and one run or two."""


@dataclass(frozen=True)
class Still:
    """A picture by its address, "" without one; and its name, "" if it is the only one."""

    name: str
    address: str


def stills(texts: Sequence[Shown], circuit: Circuit | None) -> list[Still]:
    """Draw the first texts of a page, and name them all."""
    found = []
    for n, (name, traces) in enumerate(texts):
        parts = [f"text {n + 1} of {len(texts)}", name, titled(traces[0])]
        said = " · ".join(filter(None, parts)) if len(texts) > 1 else ""
        found.append(Still(said, still(traces, circuit) if n < _MOST else ""))
    return found


def still(traces: Sequence[AttentionTrace], circuit: Circuit | None) -> str:
    """Draw what a page is of, as the address of a PNG picture.

    A circuit is drawn by layers, two runs with their change, one run as all its heads; a single
    head as in a notebook.
    """
    load_backend()
    with mpl.rc_context({"figure.autolayout": False, "figure.constrained_layout.use": False}):
        figure = _figure(traces, circuit)
        size = figure.get_size_inches()
        sharp = min(_SHARPEST, *(most / side for most, side in zip(_LARGEST, size, strict=True)))
        figure.set_dpi(sharp)
        canvas: Any = FigureCanvasAgg(figure)  # matplotlib gives its methods no types
        canvas.draw()
    pixels = Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")
    buffer = io.BytesIO()
    pixels.quantize(_COLOURS, Image.Quantize.FASTOCTREE).save(buffer, format="png")
    return f"data:image/png;base64,{b64encode(buffer.getvalue()).decode('ascii')}"


def _figure(traces: Sequence[AttentionTrace], circuit: Circuit | None) -> Figure:
    if circuit is not None:
        return notebook_figure(circuit)
    if len(traces) > 1:
        try:
            return apart(lambda: draw_compare(*traces))
        except ShapeError:  # attention that has a sign
            pass
    heads = list(traces[0].heads())
    return notebook_figure(heads[0] if len(heads) == 1 else traces[0])
