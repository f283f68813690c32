"""The pictures of one head."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from gattn.door import drawn_by

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap

    from gattn.drawing.matrices.cells import Pool
    from gattn.drawing.one_head.draw_head import Layout
    from gattn.heads.geometry import Grid

PLACES = "places are said before, as in head.with_layout(places).draw_graph(query=3)"
ALL_KEYS = "it shows all edges into query; head.draw(key=) draws those out of a key"
IMAGE = "the picture that the model read: a PIL image, a path, an array or a tensor"


class DrawnHead:
    """A head that draws itself."""

    @drawn_by("draw_head")
    def draw(
        self,
        layout: Layout = "arcs",
        *,
        query: Any = None,
        key: Any = None,
        hide: Any = None,
        self_loops: bool = True,
        threshold: float | None = None,
        values: str = "attention",
        vmax: float | None = None,
        pool: Pool = "mean",
        linewidth: float | None = None,
        title: str | None = None,
        caption: str | None = None,
        figsize: tuple[float, float] | None = None,
        ax: Axes | None = None,
        cmap: str | Colormap | None = None,
        labels: bool = True,
        legend: bool = True,
    ) -> Axes:
        """Draw the head: an attention pattern as arcs, columns, a circle or a heatmap.

        An edge runs the way the information runs, from key to query. Width is attention on a linear
        scale, colour on a square-root scale, from 0 to 1 in every picture (further if attention
        exceeds 1, and from -1 in two colours if it is signed). Lines are thinner in longer texts
        and smaller axes; the key explains them. The caption says which edges are shown, how many
        there are, and which share of the attention they hold.

        Parameters
        ----------
        layout : str, mapping or callable
            "arcs": tokens on a line, edges to the right above it and edges to the left below.
            "columns": keys on the left, queries on the right. "circle": tokens clockwise,
            with arrowheads at the queries. "matrix": a heatmap, queries as rows and keys as
            columns. Or positions, ``{node: (x, y)}``, or a function that computes them from
            ``head.to_networkx()``, such as ``networkx.circular_layout``.
        query, key : int, str, or list of these, optional
            Show what these queries read, or what reads these keys: by position, from the end if
            negative, or by text; patches by (row, column), moments by their second. With both, the
            edges between them.
        hide : "special", "first", int, str, or list of positions and texts, optional
            Tokens to leave out of the picture: the tokenizer's special tokens, position 0, or any.
            The other numbers stay as they are; `gattn.analysis.without_tokens` renormalizes them.
        self_loops : bool
            Whether to show the edges from a token to itself.
        threshold : float, optional
            Show the edges of at least this attention. By default a matrix shows all edges, and a
            query or key all of its own; other pictures show all but tiny ones up to about 150, and
            beyond that raise the threshold with the length of the text. They show at least one edge
            per query, and of nearly uniform attention a few of the strongest of each.
        values : {"attention", "score", "contribution", "value_norm"}
            What a matrix shows: the attention, the scores before normalizing, or the lengths of
            what the edges add to the output (`contribution`) or carry (`value_norm`).
        vmax : float, optional
            The end of the scale, where attention is small everywhere; the caption says so if some
            is larger.
        pool : {"mean", "max"}
            What a pixel of a matrix shows that holds several cells: their mean, which counts pairs
            without an edge as 0, or the one of the largest size. Pixels are those of the file:
            ``savefig("head.png", dpi=300)`` shows more than a screen. Lines refuse "max".
        linewidth : float, optional
            The width of the widest line in points. A matrix has no lines, and refuses it.
        title, caption : str, optional
            Instead of the head's name above, and of what is said below; "" for none.
        figsize : (float, float), optional
            The width and height in inches of the new figure.
        ax : Axes, optional
            Where to draw. By default a new pyplot figure with room for all names, yours to show and
            close.
        cmap : str or Colormap, optional
            The colours; by default some that stand out from the style's background, in grey too.
        labels : bool
            Whether to write the tokens.
        legend : bool
            Whether to explain widths and colours.

        Returns
        -------
        Axes
            Where the head was drawn; ``.figure`` is its figure.

        Raises
        ------
        SelectionError
            If there is no such layout, token, colour map or number, or the head lacks the values
            or the position of a node.

        Examples
        --------
        >>> head.draw("columns", query="dog", hide="special")
        >>> head.draw("matrix", figsize=(3.3, 3.0)).figure.savefig("head.pdf")
        """
        raise NotImplementedError

    @drawn_by("draw_text")
    def draw_text(
        self,
        query: int | str | None = None,
        *,
        key: int | str | None = None,
        figsize: tuple[float, float] | None = None,
        ax: Axes | None = None,
        values: str = "attention",
        cmap: str | Colormap | None = None,
        legend: bool = True,
    ) -> Axes:
        """Write the text, each token shaded by the attention that one query gives to it.

        Parameters
        ----------
        query : int or str, optional
            The query's position, from the end if negative, or its text; by default the last one.
        key : int or str, optional
            Instead of a query: shade each token by the attention that it gives to this key.
        values : {"attention", "score", "contribution", "value_norm"}
            Which number of the edges.
        figsize, ax, cmap, legend
            As in `draw`; on axes of yours the text shrinks until it fits.

        Returns
        -------
        Axes
            Where it was drawn. `gattn.drawing.draw_text` says what is shown.
        """
        raise NotImplementedError

    @drawn_by("draw_image", image=IMAGE)
    def draw_image(
        self,
        image: Any,
        query: Any = None,
        *,
        key: Any = None,
        grid: Grid | tuple[int, int] | None = None,
        values: str = "attention",
        fit: Literal["stretch", "crop"] | None = None,
        smooth: bool = False,
        vmax: float | None = None,
        figsize: tuple[float, float] | None = None,
        ax: Axes | None = None,
        cmap: str | Colormap | None = None,
        legend: bool = True,
    ) -> Axes:
        """Draw what a patch or token reads, over the picture.

        Parameters
        ----------
        image : PIL image, array (height, width, 3), Tensor (3, height, width), or path
            The picture as the model read it.
        query : (row, column), int, str, or list of these, optional
            Which patch; or a token by position or text, such as "class"; of several the mean.
        key : as query, optional
            Instead of a query: shade each patch by what it gives to this key.
        grid : Grid or (rows, columns), optional
            Where the tokens lie, if the head does not know; see `on_grid`.
        values : {"attention", "score", "contribution", "value_norm"}
            Which number of the edges.
        fit : {"stretch", "crop"}, optional
            How the picture became what the model read, if their shapes differ.
        smooth : bool
            Whether to interpolate between the middles of patches.
        vmax : float, optional
            The end of the colours; by default the largest number.
        figsize, ax, cmap, legend
            As in `draw`.

        Returns
        -------
        Axes
            Where it was drawn. `gattn.drawing.draw_image` says what is shown.
        """
        raise NotImplementedError

    @drawn_by("draw_time")
    def draw_time(
        self,
        query: Any = None,
        *,
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
        """Draw attention over seconds: of a query as a curve, or of all as a heatmap.

        Parameters
        ----------
        query : int, str, float, or list of these, optional
            A query by position or text, or by the second that it is in; by default all.
        key : as query, optional
            Instead of a query: what each query gives to this key, over the queries' seconds.
        waveform : array or Tensor (samples,), optional
            The sound, drawn above.
        rate : float, optional
            The waveform's samples per second.
        vmax : float, optional
            The end of the scale; by default the largest number.
        pool : {"mean", "max"}
            What a pixel of the heatmap shows that stands for several cells.
        figsize, ax, cmap, labels, legend
            As in `draw`.

        Returns
        -------
        Axes
            Where it was drawn. `gattn.drawing.draw_time` says what is shown.
        """
        raise NotImplementedError

    @drawn_by("draw_graph", query=PLACES, key=ALL_KEYS)
    def draw_graph(
        self,
        query: Any = None,
        *,
        self_loops: bool = True,
        threshold: float | None = None,
        figsize: tuple[float, float] | None = None,
        ax: Axes | None = None,
        cmap: str | Colormap | None = None,
        labels: bool = True,
        legend: bool = True,
    ) -> Axes:
        """Draw attention on the tokens' own layout, which `with_layout` says.

        Parameters
        ----------
        query : int, str, or list of these, optional
            Whose edges to show, by position or text; by default all.
        self_loops : bool
            Whether to draw the edges from a token to itself.
        threshold : float, optional
            Show the edges of at least this attention.
        figsize, ax, cmap, labels, legend
            As in `draw`.

        Returns
        -------
        Axes
            Where it was drawn. `gattn.drawing.draw_graph` says what is shown.
        """
        raise NotImplementedError
