"""How heads, stacks and traces are told where their tokens lie."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias

import numpy as np

from gattn.errors import SelectionError, ShapeError
from gattn.heads.geometry.base import Geometry
from gattn.heads.geometry.grid import Grid
from gattn.heads.geometry.layout import Layout
from gattn.heads.geometry.times import Times

if TYPE_CHECKING:
    from gattn.heads.head import AttentionGraph

Side: TypeAlias = Literal["query", "key"]
Make: TypeAlias = Callable[[Sequence[int], Sequence[str]], Geometry]
"""Makes the geometry of one side from its positions and labels; a ShapeError if it does not fit."""


class Located:
    """A head, or what holds heads, that can be told where its tokens lie.

    Each method returns a copy. Tokens without texts are named by where they lie. Cross-attention
    has two sides: ``side="key"`` or ``side="query"``; by default the one that fits, and both may be
    given one after the other.
    """

    def on_grid(
        self,
        rows: int,
        columns: int,
        *,
        prefix: int | None = None,
        image_size: tuple[int, int] | None = None,
        patch_size: tuple[float, float] | None = None,
        cells: Any = None,
        side: Side | None = None,
        stack: str | None = None,
    ) -> Self:
        """Say that tokens are patches of a picture, row by row.

        Parameters
        ----------
        rows, columns : int
            How many rows and columns of patches there are.
        prefix : int, optional
            How many class, register and other tokens come before the patches; by default none or
            one, whichever fits.
        image_size : (int, int), optional
            The height and width in pixels of the picture that the model reads.
        patch_size : (float, float), optional
            The height and width in pixels of a patch, where patches do not cover the whole picture.
        cells : array of int (tokens,), optional
            Where tokens are in another order, as in windows: the cell of each,
            ``row * columns + column``, or -1 for one that is no patch.
        side : {"key", "query"}, optional
            Which side of cross-attention.
        stack : str, optional
            Which stack of a trace; by default all whose tokens fit.

        Raises
        ------
        ShapeError
            If the tokens are not rows * columns + prefix; the error says what fits.
        SelectionError
            If there is no such stack, or either side of cross-attention would fit.

        Examples
        --------
        >>> trace = AttentionTrace.from_arrays(attention).on_grid(14, 14, image_size=(224, 224))
        """
        sizes = {"image_size": image_size, "patch_size": patch_size}
        if cells is not None:
            if prefix is not None:
                raise ShapeError("Give prefix= or cells=, which says where each token lies.")
            made = Grid(rows, columns, cells, **sizes)  # type: ignore[arg-type]
            return self._located(partial(_given, made), side, stack)

        def make(positions: Sequence[int], labels: Sequence[str]) -> Grid:
            return Grid.regular(rows, columns, len(positions), prefix=prefix, **sizes)  # type: ignore[arg-type]

        return self._located(make, side, stack)

    def at_times(
        self,
        seconds: Any,
        *,
        start: float = 0.0,
        prefix: int = 0,
        side: Side | None = None,
        stack: str | None = None,
    ) -> Self:
        """Say when tokens are, such as the frames of audio: 0.02 seconds each for Whisper.

        Parameters
        ----------
        seconds : float or array (tokens, 2)
            The seconds per token; or when each begins and ends.
        start : float
            When the first token begins.
        prefix : int
            How many tokens come before that are no stretch of time.
        side : {"key", "query"}, optional
            Which side of cross-attention; by default its keys.
        stack : str, optional
            Which stack of a trace; it may be left out if there is only one.

        Raises
        ------
        ShapeError
            If there are more or fewer stretches than tokens, or one ends before it begins.
        SelectionError
            If there is no such stack, or several to choose from.
        """
        if np.ndim(seconds) not in (0, 2):
            raise ShapeError(
                "seconds takes the seconds per token, one number, or when each token begins and "
                f"ends, (tokens, 2), not an array of shape {np.shape(seconds)}: of times at which "
                "tokens begin, np.column_stack([begins, ends])."
            )
        if np.ndim(seconds) == 2:
            return self._located(partial(_given, Times(seconds)), side or "key", stack)

        def make(positions: Sequence[int], labels: Sequence[str]) -> Times:
            return Times.regular(seconds, len(positions), start=start, prefix=prefix)

        return self._located(make, side or "key", self._the_stack(stack))

    def with_layout(
        self, places: Any, *, side: Side | None = None, stack: str | None = None
    ) -> Self:
        """Say where the nodes of a graph lie.

        Parameters
        ----------
        places : array (tokens, 2), or mapping of token to (x, y)
            The places in the order of the tokens, such as torch-geometric's ``data.pos``; or by the
            tokens' positions or texts, such as ``networkx.spring_layout(graph)``.
        side : {"key", "query"}, optional
            Which side of cross-attention.
        stack : str, optional
            Which stack of a trace; by default all whose tokens fit.

        Raises
        ------
        ShapeError
            If there are more or fewer places than tokens, or one is not finite.
        SelectionError
            If there is no such stack, or either side of cross-attention would fit.
        """
        return self._located(partial(Layout.named, places), side, stack)

    def _located(self, make: Make, side: Side | None, stack: str | None) -> Self:
        raise NotImplementedError

    def _the_stack(self, stack: str | None) -> str | None:
        """Name the only stack of a trace, where any number of tokens would fit."""
        return stack


def _given(made: Geometry, positions: Sequence[int], labels: Sequence[str]) -> Geometry:
    if len(made) != len(positions):
        raise ShapeError(
            f"There are {len(made)} places, but {len(positions)} tokens: each token needs one, by "
            "NaN where it has none."
        )
    return made


def located_head(head: AttentionGraph, make: Make, side: Side | None) -> AttentionGraph:
    """Say where the tokens of a head lie, on one side if it has two."""
    if side not in (None, "key", "query"):
        raise SelectionError(f"side is 'key' or 'query', not {side!r:.80}.")
    if not head.graph.is_bipartite:
        made = make(head.node_positions.tolist(), head.labels())
        return replace(head, geometry=made, tokens=head.tokens or tuple(made.names()))
    if side is None:
        side = _fitting_side(head, make)
    keys, queries = head.node_ids()
    if side == "key":
        made = make(keys, head.labels())
        return replace(head, geometry=made, tokens=head.tokens or tuple(made.names()))
    made = make(queries, head.query_labels())
    names = head.query_tokens or tuple(made.names())
    return replace(head, query_geometry=made, query_tokens=names)


def _fitting_side(head: AttentionGraph, make: Make) -> Side:
    keys, queries = head.node_ids()
    fitting: list[Side] = []
    errors: dict[str, ShapeError] = {}
    sides: tuple[tuple[Side, Any, Any], ...] = (
        ("key", keys, head.labels()),
        ("query", queries, head.query_labels()),
    )
    for side, positions, labels in sides:
        try:
            make(positions, labels)
            fitting.append(side)
        except ShapeError as error:
            errors[side] = error
    if len(fitting) > 1:
        raise SelectionError(
            f"Both the {len(keys)} keys and the {len(queries)} queries of this cross-attention fit:"
            ' pass side="key" or side="query".'
        )
    if not fitting:
        raise ShapeError(f"Neither keys nor queries fit. Keys: {errors['key']}")
    return fitting[0]
