"""What analyses return: arrays with named axes, tables and graphs that say where they come from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

import networkx as nx
import numpy as np
import pandas as pd
import xarray as xr
from torch import Tensor

from gattn.door import DrawnByKind, Pictured, drawn_by
from gattn.edit_records import Described, Edits, from_text, identities, to_text
from gattn.heads.drawn.heads import IMAGE
from gattn.heads.geometry import Geometry
from gattn.heads.geometry.written import to_text as geometry_text
from gattn.heads.nouns import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap

    from gattn.heads.geometry import Grid


class _Told(Pictured):
    """A result that says what it was computed from, and what to mind."""

    __slots__ = ()

    def _facts(self) -> Mapping[Any, Any]:
        """Return the attributes that say so."""
        raise NotImplementedError

    @property
    def computed_from(self) -> str:
        """What it was computed from."""
        return str(self._facts().get("computed_from", ""))

    @property
    def notes(self) -> list[str]:
        """What to mind when reading it, such as the error that dropped edges imply."""
        notes = self._facts().get("notes", ())
        return notes.splitlines() if isinstance(notes, str) else list(notes)

    draw = DrawnByKind()


class Array(_Told, xr.DataArray):  # type: ignore[no-untyped-call]
    """An array with named axes, such as ``layer``, ``query`` and ``key``.

    It is an `xarray.DataArray`: ``result.sel(query=3, key=0)``, ``result.mean("layer")`` and
    ``result.to_dataframe()`` work. Axes of tokens count positions, and have the tokens' texts as a
    further coordinate, ``query_token``.
    """

    __slots__ = ()

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
        """Draw one number per patch over the picture; see `gattn.drawing.draw_image`.

        Parameters
        ----------
        image, query, key, grid, fit, smooth, vmax, figsize, ax, cmap, legend
            As in `AttentionGraph.draw_image`.
        """
        raise NotImplementedError

    def _facts(self) -> Mapping[Any, Any]:
        return self.attrs


class Table(_Told, pd.DataFrame):
    """A `pandas.DataFrame` that says what it was computed from, and draws itself."""

    @property
    def _constructor(self) -> type[Self]:
        return type(self)

    @classmethod
    def of(
        cls,
        rows: Any,
        *,
        name: str,
        computed_from: str,
        notes: Iterable[str] = (),
        index: Sequence[str] = (),
        edits: Iterable[Described | str] = (),
        **facts: Any,
    ) -> Self:
        """Make a table of rows, or of columns by name, as `pandas.DataFrame` takes them.

        `index` has the columns that name the rows; the rest is as in `array`.
        """
        made = cls(rows)
        if index:
            made = made.set_index(list(index))
        source = {"name": name, "computed_from": computed_from, "notes": list(notes)}
        made.attrs = source | facts | told(edits)
        return made

    def _facts(self) -> Mapping[Any, Any]:
        return self.attrs


SomeTable = TypeVar("SomeTable", bound=Table)


class Graph(_Told, nx.DiGraph):  # type: ignore[type-arg]
    """A `networkx.DiGraph` that says what it was computed from, and draws itself.

    Its notes are lines of one text, which every NetworkX writer takes.
    """

    def __repr__(self) -> str:
        """Say what it was computed from, what it leads to, and how large it is."""
        size = f"{counted(len(self), 'node')}, {counted(self.number_of_edges(), 'edge')}"
        said = filter(None, [self.computed_from, self._leads_to(), size])
        return f"{type(self).__name__}({'; '.join(said)})"

    def _leads_to(self) -> str:
        """Say in a few words what it leads to, if that is not all."""
        return ""

    def _facts(self) -> Mapping[Any, Any]:
        return self.graph


def array(
    values: Tensor | np.ndarray[Any, Any],
    axes: Mapping[str, Sequence[Any]],
    *,
    name: str,
    computed_from: str,
    notes: Iterable[str] = (),
    tokens: Mapping[str, Sequence[str]] | None = None,
    geometry: Mapping[str, Geometry | None] | None = None,
    edits: Iterable[Described | str] = (),
    **facts: Any,
) -> Array:
    """Name the axes of an array; of attention, `Layers.array` does.

    Parameters
    ----------
    values : array or Tensor
        The numbers.
    axes : mapping of str to sequence
        The axes in order, each with its labels.
    name, computed_from, notes
        What the numbers are, what they were computed from, and what to mind.
    tokens : mapping of str to sequence of str
        The tokens' texts along the axes of tokens.
    geometry : mapping of str to Geometry or None
        Where the tokens lie along these axes; coordinates such as ``key_row`` and ``key_column``.
    edits : iterable of Edit or str
        The edits that the model ran with, or their texts.
    **facts
        Further entries of ``attrs``.
    """
    if isinstance(values, Tensor):
        values = values.detach().cpu().numpy()
    coords: dict[str, Any] = {axis: list(labels) for axis, labels in axes.items()}
    coords |= {
        f"{axis}_token": xr.Variable(axis, np.array(texts, dtype=object), fastpath=True)
        for axis, texts in (tokens or {}).items()  # without fastpath they go through Arrow
    }
    attrs = {"computed_from": computed_from, "notes": list(notes), **facts, **told(edits)}
    for axis, places in (geometry or {}).items():
        if places is not None:
            attrs[f"{axis}_geometry"] = geometry_text(places)
            coords |= {f"{axis}_{n}": (axis, one) for n, one in places.coordinates().items()}
    return Array(values, coords=coords, dims=list(axes), name=name, attrs=attrs)


def column(texts: Iterable[str | None]) -> pd.Series[Any]:
    """Make a column of texts as objects: Arrow, in which pandas stores text, refuses surrogates."""
    return pd.Series(list(texts), dtype=object)


def told(edits: Iterable[Described | str]) -> dict[Any, Any]:
    """Return a result's entry of edits, if there were any."""
    texts = [edit if isinstance(edit, str) else edit.record.identity for edit in edits]
    return {"edits": texts} if texts else {}


def edits_of(result: xr.DataArray | pd.DataFrame | pd.Series[Any] | nx.Graph[Any]) -> list[str]:
    """Return the edits that a result was computed under, if it says so."""
    facts = result.graph if isinstance(result, nx.Graph) else result.attrs
    edits = facts.get("edits", ())
    return identities(from_text(edits)) if isinstance(edits, str) else list(edits)


def told_in_graph(edits: Edits) -> dict[str, Any]:
    """Return a graph's entry of edits, as a text, which every NetworkX writer takes."""
    return {"edits": to_text(edits)} if edits else {}
