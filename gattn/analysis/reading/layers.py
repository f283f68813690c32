"""Attention as dense matrices, one layer at a time, of whatever holds it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray
from torch import Tensor

from gattn.analysis.reading.reductions import (
    Reduction,
    reduced,
    rows_of,
    ways_of,
)
from gattn.analysis.reading.sources import Source
from gattn.errors import SelectionError
from gattn.heads.geometry import Geometry
from gattn.heads.head import AttentionGraph
from gattn.names.choices import HeadChoice
from gattn.names.tokens import find_token

if TYPE_CHECKING:
    from gattn.analysis.reading.results import Array, SomeTable

_ROUNDING = 1e-2
"""How far above 1 rounding leaves the sum of a row of half precision, at most."""


@dataclass(frozen=True, eq=False)
class Layers:
    """The attention of some layers as dense matrices, made one layer at a time.

    Parameters
    ----------
    read : callable
        Gives the attention of the n-th layer that is there, (heads, queries, keys). Traces and
        NumPy arrays are read in double precision; tensors keep their device, and are read in single
        precision at least.
    layers, heads : tuple of int
        Their numbers in the model; a layer is the order of calls, as in a trace, so that layers
        without attention do not count.
    mass : Tensor (layers, heads, queries)
        Each query's attention to all keys, kept or not, a sink outside of the text left out.
    kept_mass : Tensor (layers, heads, queries)
        The part of it on kept edges: all of it if no edge was dropped, and otherwise a lower
        bound, rounding considered.
    positions, query_positions : tuple of int
        The positions of keys and queries.
    read_from : Source
        What it was read from.
    key_texts, query_texts : tuple of str
        The tokens' texts; empty if they are not known.
    geometry, query_geometry : Geometry or None
        Where keys and queries lie, if that is known.
    graphs : tuple of tuple of AttentionGraph
        The heads of each layer, if they are graphs.
    present : tuple of tuple of int
        The heads of each layer, where layers have different ones: `heads` are then all of them, and
        attention and masses of those that a layer lacks are 0.
    is_square : bool
        Whether queries and keys are the same tokens.
    holds_residual, is_length, is_rolled_out : bool
        What an array says of itself: that the residual stream is in the numbers already, as in
        contributions; that they are lengths of vectors; that they went through the layers already.
    is_signed : bool
        Whether some attention is negative.
    """

    read: Callable[[int], Tensor]
    layers: tuple[int, ...]
    heads: tuple[int, ...]
    mass: Tensor
    kept_mass: Tensor
    positions: tuple[int, ...]
    query_positions: tuple[int, ...]
    read_from: Source
    key_texts: tuple[str, ...] = ()
    query_texts: tuple[str, ...] = ()
    graphs: tuple[tuple[AttentionGraph, ...], ...] = ()
    present: tuple[tuple[int, ...], ...] = ()
    is_square: bool = True
    holds_residual: bool = False
    is_length: bool = False
    is_rolled_out: bool = False
    is_signed: bool = False
    geometry: Geometry | None = None
    query_geometry: Geometry | None = None

    def __len__(self) -> int:
        return len(self.layers)

    @property
    def tokens(self) -> tuple[str, ...]:
        """The texts of keys, or their positions if there are no texts."""
        return self.key_texts or tuple(map(str, self.positions))

    @property
    def query_tokens(self) -> tuple[str, ...]:
        """The texts of queries, or their positions if there are no texts."""
        return self.query_texts or tuple(map(str, self.query_positions))

    @property
    def dropped(self) -> Tensor:
        """The attention that went to edges which were not kept, (layers, heads, queries)."""
        return (self.mass - self.kept_mass).clamp_min(0)

    def square(self) -> Layers:
        """Return the layers, or refuse them unless queries and keys are the same tokens."""
        if not self.is_square:
            raise SelectionError(
                "This analysis needs self-attention, queries and keys being the same tokens, but "
                f"there are {len(self.query_positions)} queries and {len(self.positions)} keys."
            )
        return self

    def consecutive(self) -> Layers:
        """Return the layers, or refuse them if one is missing between the first and the last."""
        if list(self.layers) != list(range(self.layers[0], self.layers[0] + len(self))):
            raise SelectionError(
                f"Only consecutive layers compose; these are {list(self.layers)}: capture those in "
                "between, too."
            )
        return self

    def reduced(self, heads: HeadChoice = None, reduce: Reduction = "mean") -> list[Tensor]:
        """Make the heads of each layer one matrix (queries, keys)."""
        return [matrix for matrix, _ in self.reduced_with_mass(heads, reduce)]

    def reduced_with_mass(
        self, heads: HeadChoice = None, reduce: Reduction = "mean"
    ) -> list[tuple[Tensor, Tensor]]:
        """Make the heads of each layer one matrix, and say what its whole rows sum to.

        If edges were dropped, the matrix is a lower bound; with "max" and "min" the sum of a whole
        row is not known, and an upper bound is given, as if all dropped attention counted. A layer
        of which no head is read gives zeros.
        """
        rows = rows_of(heads, self.layers, self.heads)
        if self.present:
            rows = self._rows_there(rows)
        counts = [len(self.heads)] * len(self) if rows is None else list(map(len, rows))
        found = []
        for n, way in enumerate(ways_of(reduce, counts)):
            some = slice(None) if rows is None else rows[n]
            parts = self.read(n)[some], self.mass[n][some], self.kept_mass[n][some]
            found.append(reduced(*parts, way))
        return found

    def _rows_there(self, rows: list[list[int]] | None) -> list[list[int]]:
        """Check that layers have the heads that are read of them; by default all that they have."""
        there = [[self.heads.index(head) for head in some] for some in self.present]
        for layer, some, known in zip(self.layers, rows or (), there, strict=False):
            if missing := set(some) - set(known):
                has = list(self.present[self.layers.index(layer)])
                raise SelectionError(
                    f"Layer {layer} has no head {self.heads[min(missing)]}; it has {has}. Name "
                    "heads that all layers have, or places (layer, head)."
                )
        return there if rows is None else rows

    def row(self, token: int | str, name: str) -> int:
        """Find the row of a token by its position, from the end, or by its text."""
        return find_token(token, self.positions, self.tokens, name)

    def axes(self, *names: str) -> dict[str, Sequence[Any]]:
        """Return the labels of some of the axes layer, head, query, key and token."""
        known: dict[str, Sequence[Any]] = {
            "layer": self.layers,
            "head": self.heads,
            "query": self.query_positions,
            "key": self.positions,
            "token": self.positions,
        }
        return {name: known[name] for name in names}

    def array(
        self,
        values: Tensor | NDArray[Any],
        axes: Mapping[str, Sequence[Any]],
        name: str,
        notes: Iterable[str] = (),
        **facts: Any,
    ) -> Array:
        """Make a result: name its axes, and say what it was computed from and what to mind.

        Parameters
        ----------
        values : array or Tensor
            The numbers.
        axes : mapping of str to sequence
            The axes in order, such as ``layers.axes("layer", "head", "token")``.
        name : str
            What the numbers are.
        notes : iterable of str
            What to mind, apart from attention that is missing, which is said anyway.
        **facts
            Further entries of ``attrs``.
        """
        from gattn.analysis.reading.results import array  # loads pandas, xarray and networkx

        texts = {"query": self.query_tokens, "key": self.tokens, "token": self.tokens}
        tokens = {axis: texts[axis] for axis in axes if axis in texts}
        told = {"tokens": tokens, "geometry": self.places(axes), **self._told(notes), **facts}
        return array(values, axes, name=name, **told)

    def places(self, axes: Iterable[str]) -> dict[str, Geometry | None]:
        """Return where tokens lie along some axes of query, key and token."""
        known = {"query": self.query_geometry, "key": self.geometry, "token": self.geometry}
        return {axis: known[axis] for axis in axes if axis in known}

    def table(
        self,
        kind: type[SomeTable],
        rows: Any,
        index: Sequence[str],
        name: str,
        notes: Iterable[str] = (),
        **facts: Any,
    ) -> SomeTable:
        """Make a result of a class of tables, with some columns as its index; see `array`."""
        return kind.of(rows, index=index, name=name, **self._told(notes), **facts)

    def _told(self, notes: Iterable[str]) -> dict[str, Any]:
        return {
            "computed_from": str(self.read_from),
            "edits": self.read_from.edits,
            "notes": [*self.mass_notes(), *notes],
        }

    def mass_notes(self) -> list[str]:
        """Return which attention is missing."""
        return notes_of_mass(self.mass, self.kept_mass, has_sink=self.has_sink)

    @property
    def has_sink(self) -> bool:
        """Whether some attention went to a sink outside of the text."""
        return any(head.sink is not None for heads in self.graphs for head in heads)


def notes_of_mass(mass: Tensor, kept: Tensor, *, has_sink: bool) -> list[str]:
    """Return which attention is missing, of a whole mass of which a part is kept."""
    notes = []
    whole = float(mass.sum())
    if whole and (share := float((mass - kept).clamp_min(0).sum()) / whole) > 1e-6:
        notes.append(f"{share * 100:.2f} % of the attention was not kept")
    if mass.numel() and (most := float(mass.max())) > 1 + _ROUNDING:
        notes.append(f"no distributions: rows sum to up to {most:.3g}")
    if has_sink:
        notes.append("some attention went to a sink outside of the text")
    return notes
