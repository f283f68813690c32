"""The order and the names of heads in a picture of many."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from gattn.analysis.reading.heads import Place
from gattn.drawing.canvas.head_labels import shorter
from gattn.drawing.chosen.given import refuse_unused
from gattn.drawing.many_heads.grid import shape_of
from gattn.drawing.many_heads.grid_plan import most_columns
from gattn.drawing.many_heads.scores import HeadScore, Score
from gattn.heads.head import AttentionGraph

if TYPE_CHECKING:
    import pandas as pd

Graphs: TypeAlias = "Mapping[Place, AttentionGraph]"
_SPREADS = (1.0, math.floor), (1.0, math.ceil), (0.7, math.floor), (1.4, math.ceil)
"""How many more columns than squares would have, where these are free, and how rounded."""

_NARROW = 2.0
"""From how much wider than high, or higher than wide, matrices may stand in any columns."""


@dataclass(frozen=True)
class Arranged:
    """Where the heads of a stack stand, and what is written beside and above them.

    Parameters
    ----------
    spots : dict of (int, int) to (str, int, int)
        The head in each row and column.
    names : dict of (str, int, int) to (str, str)
        The names of heads, long and short; "" if the row and the column tell.
    rows, columns : tuple of str
        The names of rows and columns, if they are layers and heads.
    firsts : tuple of str
        Otherwise the name of the first head of each row, if the others follow in order.
    """

    spots: dict[tuple[int, int], Place]
    names: dict[Place, tuple[str, str]]
    rows: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    firsts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Order:
    """By which score heads are sorted, and which one is written above them.

    Parameters
    ----------
    sort, label : Score or None
        The scores.
    within_layers : bool
        Whether layers stay rows.
    is_strip : bool
        Whether matrices are large, and named in full.
    """

    sort: Score | None
    label: Score | None
    within_layers: bool
    is_strip: bool = False

    @classmethod
    def of(
        cls,
        graphs: Graphs,
        sort: HeadScore | None,
        label: HeadScore | None,
        *,
        within_layers: bool,
        is_strip: bool = False,
        known: pd.DataFrame | None = None,
    ) -> Order:
        """Read the scores, by name from `known` or else from the head table."""
        sorting = "it keeps layers as rows where sort= sorts all heads of a trace"
        is_lone = within_layers and (sort is None or is_strip)
        refuse_unused("within_layers", sorting, is_given=is_lone)
        by = None if sort is None else Score.of(sort, graphs, known)
        written = by if label is None else Score.of(label, graphs, known)
        return cls(by, written, within_layers, is_strip)

    def said(self, *, has_room: bool) -> list[str]:
        """Return what heads are sorted by, and what is written above them if it has room."""
        said = []
        if self.sort:
            each = " in each layer" if self.within_layers else ""
            above = ", written above," if has_room and self.label is self.sort else ""
            first = "" if self.sort.is_text else " from the largest on"
            said.append(f"sorted by {self.sort.name}{above}{each}{first}")
        if self.label and not has_room:
            said.append(f"no room to write each head's {self.label.name} above it")
        elif self.label and self.label is not self.sort:
            said.append(f"above each head its {self.label.name}")
        return said

    @property
    def is_free(self) -> bool:
        """Whether heads stand in any number of columns, also on a new figure."""
        return self.is_strip or (self.sort is not None and not self.within_layers)

    def filling_columns(self, stacks: Sequence[Graphs], shape: float) -> list[tuple[int, ...]]:
        """List in how many columns the heads of each stack may fill a width over a height.

        Layers that must stay rows are in no number of columns.
        """
        counts = [len(graphs) for graphs in stacks]
        spots = [len(graphs) * shape / _ratio(graphs) for graphs in stacks]
        found: list[tuple[int, ...]] = []
        for wider, rounded in () if self.within_layers else _SPREADS:
            ideal = [rounded(wider * math.sqrt(some)) for some in spots]
            rows = [
                -(-count // min(max(a, 1), count)) for a, count in zip(ideal, counts, strict=True)
            ]
            found.append(tuple(-(-n // row) for n, row in zip(counts, rows, strict=True)))
        return list(dict.fromkeys(found))

    def arrange(self, graphs: Graphs, columns: int = 0) -> Arranged:
        """Arrange the heads of one stack: in so many columns, or 0 for the usual."""
        layers = sorted({layer for _, layer, _ in graphs})
        numbers = sorted({head for *_, head in graphs})
        ranked = self.sort.ranked(list(graphs)) if self.sort else list(graphs)
        if self.is_free or columns:
            wide = columns or len(numbers)
            spots = {divmod(count, wide): place for count, place in enumerate(ranked)}
            names = {place: _full_and_short_name(place, graphs[place]) for place in graphs}
            if self.is_strip:
                return Arranged(spots, names)
            names = {place: (short, short) for place, (_, short) in names.items()}
            firsts = () if self.sort else tuple(names[place][0] for place in ranked[::wide])
            return Arranged(spots, names, firsts=firsts)
        rows = tuple(_layer_name(layer, graphs) for layer in layers)
        if self.sort:
            in_layer = {layer: [one for one in ranked if one[1] == layer] for layer in layers}
            spots = {
                (row, column): place
                for row, layer in enumerate(layers)
                for column, place in enumerate(in_layer[layer])
            }
            return Arranged(spots, {one: (f"head {one[2]}", str(one[2])) for one in graphs}, rows)
        spots = {(layers.index(place[1]), numbers.index(place[2])): place for place in graphs}
        return Arranged(spots, dict.fromkeys(graphs, ("", "")), rows, tuple(map(str, numbers)))

    def labelled(self, place: Place, names: tuple[str, str]) -> tuple[str, ...]:
        """Write a head's name with its label, from the fullest form to the shortest."""
        full, short = names
        text = self.label.text(place) if self.label else ""
        if self.label is None or not text:
            return names
        if self.label.is_text:
            return titled(full, text), *(titled(short, one) for one in shorter(text))
        said = f"{self.label.name} {text}"
        forms = titled(full, said), titled(short, said), titled(short, text)
        return (*forms, f"{short}:\n{text}") if short else forms


def titled(name: str, text: str) -> str:
    """Write a text after a head's name, if it has one."""
    return f"{name}: {text}" if name else text


def _full_and_short_name(place: Place, head: AttentionGraph) -> tuple[str, str]:
    """Name a head in full and in short."""
    numbers = {"layer": place[1], "head": place[2]}
    if head.layer is None:
        del numbers["layer"]
    short = ".".join(map(str, numbers.values()))
    if head.key_value_head is not None:
        numbers["key-value head"] = head.key_value_head
    return " · ".join(f"{name} {number}" for name, number in numbers.items()), short


def strip_columns(graphs: Graphs) -> int:
    """Return how many heads of a strip stand side by side."""
    most = most_columns(next(iter(graphs.values())))
    rows = -(-len(graphs) // most)
    return -(-len(graphs) // rows)


def is_narrow(graphs: Graphs) -> bool:
    """Return whether matrices are far from square, so that layers as rows fill few figures."""
    return max(_ratio(graphs), 1 / _ratio(graphs)) > _NARROW


def _ratio(graphs: Graphs) -> float:
    """Return how much wider than high matrices are."""
    across, down = shape_of(next(iter(graphs.values())))
    return across / down


def _layer_name(layer: int, graphs: Graphs) -> str:
    is_known = any(head.layer is not None for head in graphs.values())
    return f"layer {layer}" if is_known else ""
