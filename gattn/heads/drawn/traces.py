"""The pictures of many heads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from gattn import door
from gattn.door import drawn_by
from gattn.heads.drawn.heads import ALL_KEYS, IMAGE, PLACES
from gattn.names.choices import HeadChoice

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure, SubFigure

    from gattn.drawing.many_heads.scores import HeadScore
    from gattn.drawing.matrices.cells import Pool
    from gattn.drawing.one_head.draw_head import Layout
    from gattn.heads.geometry import Grid


_ONE_HEAD = "take one head, as in trace[0, 0].draw({}=)"
_OF_ONE = {
    "ax": "it makes a figure, or takes figure=; to draw on axes " + _ONE_HEAD.format("ax"),
    "query": _ONE_HEAD.format("query"),
    "key": _ONE_HEAD.format("key"),
    "layers": "heads= chooses heads, as in heads=[(0, 1)]",
    "layer": "heads= chooses heads, as in heads=[(0, 1)]",
}


class DrawnHeads:
    """A stack or a trace: all its heads as matrices, or over text, picture, seconds or layout."""

    @door.checked(**_OF_ONE)
    def draw(
        self,
        *,
        other: Any = None,
        edits: str = "",
        heads: HeadChoice = None,
        stack: str | None = None,
        sort: HeadScore | None = None,
        label: HeadScore | None = None,
        within_layers: bool = False,
        vmax: float | None = None,
        pool: Pool = "mean",
        title: str | None = None,
        caption: str | None = None,
        cmap: str | Colormap | None = None,
        figsize: tuple[float, float] | None = None,
        figure: Figure | SubFigure | None = None,
    ) -> Figure:
        """Draw every head as a small heatmap: layers are rows, heads are columns.

        In each matrix rows are queries and columns keys, a sink on the right, and every kept edge
        is shown. All share one scale. With `other`, a run on the same tokens, both are drawn, and
        the change. `gattn.drawing.draw_heads` and `gattn.drawing.draw_compare` say more.

        Parameters
        ----------
        other : AttentionTrace or Stack, optional
            A second run on the same tokens, drawn beside the first, with the difference.
        edits : str
            With `other`: what was edited between the two, in your words, for the caption; by
            default it names the edits recorded in the runs.
        heads : int, str, sequence of int, or sequence of (layer, head), optional
            Which heads, such as ``"1.1,2.0"``, drawn as a strip of larger matrices with their
            tokens.
        stack : str, optional
            The stack to draw; by default all of them, one below the other.
        sort : str, mapping or Series, optional
            A score to sort heads by, the largest first: the name of a column of
            `gattn.analysis.head_table`, or numbers by (layer, head).
        label : str, mapping or Series, optional
            A score to write above each head; by default the one that sorts them.
        within_layers : bool
            Whether layers stay rows, and `sort` sorts the heads of each.
        vmax : float, optional
            The end of the scale, where attention is small everywhere; by default 1.
        pool : {"mean", "max"}
            What a pixel shows that holds several cells: their mean, or the one of the largest
            size. Pixels are those of the file that is saved.
        title, caption : str, optional
            Instead of the model's name above, and of what is said below; "" for none.
        cmap : str or Colormap, optional
            The colours; of a comparison, those of the change.
        figsize : (float, float), optional
            The width and height in inches of the new figure, which matrices fill.
        figure : Figure or SubFigure, optional
            Where to draw. By default a new pyplot figure, which ``plt.show()`` shows.

        Returns
        -------
        Figure
            Yours to show, save and close.

        Raises
        ------
        SelectionError
            If there is no such stack, head or score, or the other run has other tokens or heads.
        ShapeError
            If the given figure is too small.
        """
        options: dict[str, Any] = {
            "heads": heads, "stack": stack, "sort": sort, "label": label,
            "within_layers": within_layers, "vmax": vmax, "pool": pool, "title": title,
            "caption": caption, "cmap": cmap, "figsize": figsize, "figure": figure,
        }  # fmt: skip
        return door.draw_heads(self, other, edits, options)

    @drawn_by("draw_overlay", of="_chosen")
    def draw_overlay(
        self,
        layout: Layout = "arcs",
        *,
        heads: HeadChoice = None,
        stack: str | None = None,
        query: Any = None,
        key: Any = None,
        hide: Any = None,
        self_loops: bool = True,
        threshold: float | None = None,
        vmax: float | None = None,
        linewidth: float | None = None,
        title: str | None = None,
        caption: str | None = None,
        figsize: tuple[float, float] | None = None,
        ax: Axes | None = None,
        labels: bool = True,
        legend: bool = True,
    ) -> Axes:
        """Draw several heads in one view, a colour each; see `gattn.drawing.draw_overlay`.

        Parameters
        ----------
        heads : int, str, sequence of int, or sequence of (layer, head)
            Which heads, such as ``"1.1,2.0"``: up to eight.
        stack : str, optional
            Which stack, where there are several.
        layout, query, key, hide, self_loops, threshold, vmax, linewidth
            As in `AttentionGraph.draw`; there is no overlay of matrices.
        title, caption, figsize, ax, labels, legend
            As in `AttentionGraph.draw`.

        Returns
        -------
        Axes
            Where they were drawn.
        """
        raise NotImplementedError

    @drawn_by("draw_text", of="_chosen")
    def draw_text(
        self,
        query: int | str | None = None,
        *,
        heads: HeadChoice = None,
        stack: str | None = None,
        key: int | str | None = None,
        figsize: tuple[float, float] | None = None,
        ax: Axes | None = None,
        values: str = "attention",
        cmap: str | Colormap | None = None,
        legend: bool = True,
    ) -> Axes:
        """Draw the text, shaded by the mean attention of all heads, or of those chosen.

        Parameters
        ----------
        heads : int, str, sequence of int, or sequence of (layer, head), optional
            Which heads, such as ``"1.1,2.0"``; all by default.
        stack : str, optional
            Which stack, where there are several.
        query, key, figsize, ax, values, cmap, legend
            As in `AttentionGraph.draw_text`.

        Returns
        -------
        Axes
            Where it was drawn.
        """
        raise NotImplementedError

    @drawn_by("draw_images", image=IMAGE)
    def draw_image(
        self,
        image: Any,
        query: Any = None,
        *,
        heads: HeadChoice = None,
        key: Any = None,
        stack: str | None = None,
        grid: Grid | tuple[int, int] | None = None,
        values: str = "attention",
        fit: Literal["stretch", "crop"] | None = None,
        vmax: float | None = None,
        cmap: str | Colormap | None = None,
        figsize: tuple[float, float] | None = None,
        figure: Figure | SubFigure | None = None,
    ) -> Figure:
        """Draw what patches or tokens read in each head, over the picture.

        Parameters
        ----------
        image : PIL image, array (height, width, 3), Tensor (3, height, width), or path
            The picture as the model read it.
        query, key : (row, column), int, str, or list of these, optional
            Which patch or token reads, or is read; each of a list has panels of its own.
        heads : int, str, sequence of int, or sequence of (layer, head), optional
            Which heads, such as ``"1.1,2.0"``; all by default.
        stack : str, optional
            Which stack; by default the only one whose tokens lie on a grid.
        grid, values, fit, vmax, cmap
            As in `AttentionGraph.draw_image`.
        figsize : (float, float), optional
            The width and height in inches of the new figure.
        figure : Figure or SubFigure, optional
            Where to draw; by default a new pyplot figure.

        Returns
        -------
        Figure
            Yours to show, save and close. `gattn.drawing.draw_images` says what is shown.
        """
        raise NotImplementedError

    @drawn_by("draw_time", of="_chosen")
    def draw_time(
        self,
        query: Any = None,
        *,
        heads: HeadChoice = None,
        stack: str | None = None,
        key: Any = None,
        waveform: Any = None,
        rate: float | None = None,
        vmax: float | None = None,
        pool: Pool = "mean",
        figsize: tuple[float, float] | None = None,
        ax: Axes | None = None,
        cmap: str | Colormap | None = None,
        labels: bool = True,
        legend: bool = True,
    ) -> Axes:
        """Draw the mean attention of heads over seconds.

        Parameters
        ----------
        heads : int, str, sequence of int, or sequence of (layer, head), optional
            Which heads, such as ``"1.1,2.0"``; all by default.
        stack : str, optional
            Which stack, where there are several.
        query, key, waveform, rate, vmax, pool, figsize, ax, cmap, labels, legend
            As in `AttentionGraph.draw_time`.

        Returns
        -------
        Axes
            Where it was drawn.
        """
        raise NotImplementedError

    @drawn_by("draw_graph", of="_chosen", query=PLACES, key=ALL_KEYS)
    def draw_graph(
        self,
        query: Any = None,
        *,
        heads: HeadChoice = None,
        stack: str | None = None,
        self_loops: bool = True,
        threshold: float | None = None,
        figsize: tuple[float, float] | None = None,
        ax: Axes | None = None,
        cmap: str | Colormap | None = None,
        labels: bool = True,
        legend: bool = True,
    ) -> Axes:
        """Draw the mean attention of heads on the tokens' own layout.

        Parameters
        ----------
        heads : int, str, sequence of int, or sequence of (layer, head), optional
            Which heads, such as ``"1.1,2.0"``; all by default.
        stack : str, optional
            Which stack, where there are several.
        query, self_loops, threshold, figsize, ax, cmap, labels, legend
            As in `AttentionGraph.draw_graph`.

        Returns
        -------
        Axes
            Where it was drawn.
        """
        raise NotImplementedError
