"""The attention graphs of one stack of layers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from gattn import door
from gattn.edit_records import Edits, in_words, union
from gattn.errors import SelectionError
from gattn.heads.drawn.traces import DrawnHeads
from gattn.heads.geometry.located import Located, Make, Side, located_head
from gattn.heads.head import AttentionGraph
from gattn.names.choices import FROM_THE_START, HeadChoice, heads_among, is_number, named_stack
from gattn.names.places import read_heads
from gattn.on_page import OnPage

if TYPE_CHECKING:
    import pandas as pd

    from gattn.analysis.propagation.unrolled import Unrolled

Reduction: TypeAlias = Literal["mean", "max", "min"]


@dataclass(frozen=True, eq=False, repr=False)
class Stack(Located, DrawnHeads, OnPage, door.Pictured, Mapping[tuple[int, int], AttentionGraph]):
    """The heads of one stack of layers, by (layer, head).

    Parameters
    ----------
    name : str
        Such as "encoder", "decoder" or "cross".
    heads : mapping of (layer, head) to AttentionGraph
        Layers are numbered in the order in which they run; layers and heads count from 0.
    """

    name: str
    heads: Mapping[tuple[int, int], AttentionGraph]

    def __getitem__(self, place: tuple[int, int]) -> AttentionGraph:
        """Take the head (layer, head)."""
        try:
            return self.heads[place]
        except (KeyError, TypeError):  # such as a list, which cannot be a place
            raise SelectionError(
                f"The {self.name} stack has no layer and head {place!r}; it has layers "
                f"{self.layers} with heads {self.head_numbers}.{self._hint(place)}"
            ) from None

    def _hint(self, place: Any) -> str:
        """Say how a head is taken, of what is no place of one."""
        if not self.heads:
            return ""
        if is_number(place):
            layer = place if place in self.layers else self.layers[0]
            one = min(head for at, head in self.heads if at == layer)
            return f" Take a head by both, as in trace[{layer}, {one}]."
        if isinstance(place, str | float):
            return how_to_take_a_head(str(place))
        if isinstance(place, tuple) and all(map(is_number, place)) and min(place, default=0) < 0:
            return f" They {FROM_THE_START}: the last is {list(max(self.heads))}."
        return ""

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(self.heads)

    def __len__(self) -> int:
        return len(self.heads)

    def __repr__(self) -> str:
        edits = f"; {in_words(self.edits)}" if self.edits else ""
        return f"Stack({self.name}: layers {self.layers}, heads {self.head_numbers}{edits})"

    @property
    def edits(self) -> Edits:
        """The edits that the model ran with."""
        return union(head.edits for head in self.heads.values())

    @property
    def layers(self) -> list[int]:
        """The layers of its heads, sorted."""
        return sorted({layer for layer, _ in self.heads})

    @property
    def head_numbers(self) -> list[int]:
        """The numbers of its heads in any layer, sorted."""
        return sorted({head for _, head in self.heads})

    @property
    def tokens(self) -> list[str]:
        """The tokens' texts (of the keys, in cross-attention)."""
        return next(iter(self.heads.values())).labels() if self.heads else []

    def _located(self, make: Make, side: Side | None, stack: str | None) -> Stack:
        self._check_name(stack)
        heads = {place: located_head(head, make, side) for place, head in self.heads.items()}
        return Stack(self.name, heads)

    def unroll(
        self, *, heads: HeadChoice = None, reduce: Reduction = "mean", residual: float = 0.5
    ) -> Unrolled:
        r"""Unroll the stack into one directed acyclic graph on (layer, position).

        Layer 0 is the input; the edge ((l, j), (l + 1, i)) is what flows in layer l. With A
        reduced over heads and r the residual share, its weight is
        :math:`(1 - r) A_{ij} + r \delta_{ij}`, divided by the sum of its whole row, including
        dropped edges, so that weights are lower bounds if edges were dropped.

        Parameters
        ----------
        heads : int, str, sequence of int, or sequence of (layer, head), optional
            Which heads to read: one or several of every layer, or single ones, such as ``"2.1"``;
            all by default. Through a layer without chosen heads, only the residual stream passes.
        reduce : "mean", "max" or "min"
            How the heads of a layer become one A.
        residual : float
            The share r of the residual stream, from 0 to 1.

        Returns
        -------
        Unrolled
            A `networkx.DiGraph` that draws itself. Edges have ``attention``, ``residual`` (the
            residual's share of the weight) and ``weight`` = ``capacity``; and, if several heads
            were chosen, the attention of each, ``head_0`` ...

        Raises
        ------
        SelectionError
            If the stack is not self-attention over whole, consecutive layers.
        ShapeError
            If attention is negative, or `residual` is not from 0 to 1.
        """
        return door.unroll(self, heads=heads, reduce=reduce, residual=residual)

    def summary(self) -> pd.DataFrame:
        """Describe each head in a row; see `gattn.analysis.head_table`."""
        return door.head_table(self)

    def _chosen(self, heads: HeadChoice, stack: str | None = None) -> list[AttentionGraph]:
        self._check_name(named_stack(heads, stack))
        if heads is None:
            return [self[place] for place in sorted(self)]
        _, places = heads_among(heads, self.layers)
        return [self[place] for place in places]

    def _check_name(self, stack: str | None) -> None:
        if stack not in (None, self.name):
            raise SelectionError(f"This is the stack {self.name!r}: leave out stack={stack!r:.80}.")


def how_to_take_a_head(written: str) -> str:
    """Say how a head is taken that was named as text, such as "2.1"; "" if it names none."""
    try:
        named = read_heads(written)
    except ValueError:
        return ""
    layer, head = next(iter(named.heads), (named.layer, named.head))
    of = f"trace[{named.stack!r}]" if named.stack else "trace"
    place = [one if isinstance(one, int) else 0 for one in (layer, head)]
    return f" A head is taken by its numbers, as in {of}{place}."
