"""Tables of what edits change in a model's answer, which draw themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import pandas as pd

from gattn.door import DrawnByKind, Pictured, drawn_by
from gattn.heads.drawn.heads import IMAGE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap

    from gattn.heads.geometry import Grid


class Effects(Pictured, pd.DataFrame):
    """Effects of edits, measured or estimated: a `pandas.DataFrame` that draws itself.

    ``attrs`` hold the ``metric`` and the texts of ``tokens``, as ``tokens=`` takes them: a list, or
    by stack if there are several, of cross-attention those of each side. To draw some of the rows,
    select them: ``found[found.layer == 2].draw()``.
    """

    @property
    def _constructor(self) -> type[Effects]:
        return type(self)

    def __repr__(self) -> str:
        """Print it without the JSON by which files and pictures know each edit: `edit` names it."""
        return pd.DataFrame.__repr__(self.drop(columns="record", errors="ignore"))

    if TYPE_CHECKING:

        def draw(
            self,
            layout: str | None = None,
            *,
            figsize: tuple[float, float] | None = None,
            ax: Axes | None = None,
            cmap: str | Colormap | None = None,
        ) -> Axes:
            """Draw it; `help` shows what each option is."""
    else:
        draw = DrawnByKind()

    @drawn_by("draw_image", image=IMAGE)
    def draw_image(
        self,
        image: Any,
        query: Any = None,
        *,
        key: Any = None,
        grid: Grid | tuple[int, int] | None = None,
        fit: Literal["stretch", "crop"] | None = None,
        smooth: bool = False,
        vmax: float | None = None,
        figsize: tuple[float, float] | None = None,
        ax: Axes | None = None,
        cmap: str | Colormap | None = None,
        legend: bool = True,
    ) -> Axes:
        """Draw what edits of patches change, over the picture; see `gattn.drawing.draw_image`.

        Of edits of tokens, such as ``Cut(layer=2, key=5)``, each patch has the effect of its own.
        Of edges, each has that of its edge to one query, or from one key. Each patch has one edit:
        choose the rows of one head, such as ``found[(found.layer == 2) & (found["head"] == 0)]``.

        Parameters
        ----------
        image, query, key, grid, fit, smooth, vmax, figsize, ax, cmap, legend
            As in `AttentionGraph.draw_image`.
        """
        raise NotImplementedError

    @drawn_by("draw_effects_graph")
    def draw_graph(
        self,
        places: Any = None,
        *,
        figsize: tuple[float, float] | None = None,
        ax: Axes | None = None,
        cmap: str | Colormap | None = None,
        labels: bool = True,
        legend: bool = True,
    ) -> Axes:
        """Draw what edits of edges change on a graph; see `gattn.drawing.draw_effects_graph`.

        Parameters
        ----------
        places : array (nodes, 2) or mapping of node to (x, y)
            Where the nodes lie, as ``data.pos`` or ``networkx.spring_layout(graph)``.
        figsize, ax, cmap, labels, legend
            See `gattn.drawing`.
        """
        raise NotImplementedError
