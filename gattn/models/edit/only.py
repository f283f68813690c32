"""Edits that keep some edges, and cut all others: a model that runs on its circuit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor

from gattn.engines.tiles import RowBlock
from gattn.errors import EditError
from gattn.graph.rules.edges import Edges
from gattn.graph.rules.keys import list_keys
from gattn.models.edit.base import Edit
from gattn.models.read.on_graphs.seen_edges import places_in
from gattn.models.read.places import Place, Side

if TYPE_CHECKING:
    from gattn.models.read.reading import Reading

Rows: TypeAlias = "Sequence[Sequence[int]] | Tensor"
"""Edges as rows (layer, head, query, key)."""
_NO_ROWS = torch.zeros(0, 4, dtype=torch.long)


@dataclass(frozen=True, eq=False, repr=False)
class Only(Edit):
    r"""Keep only these edges: the attention of all others, in all layers and heads, is zero.

    It is set to zero after normalizing, so that each edge that is kept adds the same message
    :math:`A_{ij} v_j` as in the whole model: nothing is shared out. A query without edges gets
    zero, and goes on with its residual stream.

    Parameters
    ----------
    edges : sequence of (layer, head, query, key), or mapping of str to such sequences
        Which edges; the mapping names a stack for each.
    stack : str, optional
        The stack of these edges, where the model has several and `edges` does not name them; the
        other stacks stay as they are.

    Examples
    --------
    >>> with gattn.edited(model, gattn.Only([(1, 1, 5, 4), (2, 0, 12, 5)])):
    ...     logits = model(**inputs).logits
    """

    edges: Rows | Mapping[str, Rows]
    stack: str | None = None

    layer = None
    head = None
    is_after = True

    def __post_init__(self) -> None:
        if isinstance(self.edges, Mapping):
            if self.stack is not None:
                raise EditError(f"edges names its stacks, so leave out stack={self.stack!r}.")
            rows: Any = {name: _rows(some) for name, some in self.edges.items()}
        else:
            rows = _rows(self.edges)
        object.__setattr__(self, "edges", rows)

    def __repr__(self) -> str:
        """Say how many edges there are."""
        stack = "" if self.stack is None else f", stack={self.stack!r}"
        count = sum(map(len, self._of_stacks.values()))
        return f"Only({count} edge{'s' * (count != 1)}{stack})"

    @property
    def _of_stacks(self) -> dict[str | None, Tensor]:
        """The edges of each stack; None is whichever is edited."""
        edges: Any = self.edges
        return dict(edges) if isinstance(edges, Mapping) else {self.stack: edges}

    @property
    def spans_stacks(self) -> bool:  # type: ignore[override]
        """Whether it edits all stacks."""
        return isinstance(self.edges, Mapping)

    def layers(self) -> list[int] | None:
        """Say that it edits all layers."""
        return None

    def named(self) -> dict[str, set[Any]]:
        """Return the layers of its edges, and their tokens."""
        rows = torch.cat(list(self._of_stacks.values()) or [_NO_ROWS])
        columns = zip(("layer", "head", "query", "key"), rows.T, strict=True)
        return {name: set(some.tolist()) for name, some in columns if name != "head"}

    def in_layer(self, layer: int) -> Edit:
        """Return itself: its part is taken for each call."""
        return self

    def in_call(self, place: Place) -> Edit | None:
        """Return its part in a call."""
        rows = self._of_stacks.get(place.stack if self.spans_stacks else self.stack)
        rows = _NO_ROWS if rows is None else rows
        _, head, query, key = rows[rows[:, 0] == place.layer].T
        return kept_in_call(place, head, query, key, torch.ones(1, len(head)))


def kept_in_call(
    place: Place, head: Tensor, query: Tensor, key: Tensor, weights: Tensor
) -> Kept | None:
    """Make the edit of a call of a layer: `weights` (sequences, edges) of these edges, 0 of others.

    A call of one head takes the edges of that.
    """
    if place.heads:
        own = (head == place.head).nonzero()[:, 0]
        head, query, key = torch.zeros_like(own), query[own], key[own]
        weights = weights[:, own]
    return Kept(head, query, key, weights)


@dataclass(frozen=True, eq=False, repr=False)
class Kept(Edit):
    """Multiply the attention of some edges of a call by weights, and that of all others by zero.

    `of_head`, `query` and `key` are (edges,), positions; `weights` are (sequences, edges), or (1,
    edges) for all sequences.
    """

    of_head: Tensor
    query: Tensor
    key: Tensor
    weights: Tensor

    layer = None
    head = None
    stack = None
    is_after = True

    def __post_init__(self) -> None:
        """Take all as it is."""

    def __repr__(self) -> str:
        return f"Only({len(self.query)} edges of this layer)"

    def heads(self, count: int) -> list[int]:
        """List all heads, of which its edges must be some."""
        if len(self.of_head) and int(self.of_head.max()) >= count:
            raise EditError(
                f"Only names head {int(self.of_head.max())}, but the heads are 0 .. {count - 1}."
            )
        return list(range(count))

    def meets(self, reading: Reading) -> bool:
        """Return whether a call has any of its edges; refuse those that its graph lacks."""
        row, column = _numbers(self.query, reading.queries), _numbers(self.key, reading.keys)
        here = ((row >= 0) & (column >= 0)).nonzero()[:, 0]
        if not len(here):
            return not len(row) and super().meets(reading)
        if reading.lists_edges or isinstance(reading.graph.rule, Edges):
            is_edge = places_in(reading.graph, row[here], column[here]) >= 0
        else:
            (rows, at), (columns, of) = (x[here].unique(return_inverse=True) for x in (row, column))
            is_edge = reading.graph.allowed(rows, columns).cpu()[at, of]
        if not bool(is_edge.all()):
            one = here[(~is_edge).nonzero()[0, 0]]
            raise EditError(
                f"Only names the edge from key {int(self.key[one])} to query "
                f"{int(self.query[one])} of head {int(self.of_head[one])}, which the model's graph "
                "does not have."
            )
        return True

    def among(self, heads: Sequence[int]) -> Kept:
        """Return its part in some heads of the call, which count from 0."""
        own = torch.full_like(self.of_head, -1)
        for number, head in enumerate(heads):
            own[self.of_head == head] = number
        some = own >= 0
        return replace(
            self,
            of_head=own[some],
            query=self.query[some],
            key=self.key[some],
            weights=self.weights[:, some],
        )

    def shared(self, attention: Tensor, block: RowBlock, reading: Reading) -> Tensor:
        """Multiply the attention of some rows."""
        queries, keys = reading.queries, reading.keys
        row = _numbers(self.query, queries) - block.rows.start
        columns = list_keys(block.columns).cpu()
        column = _find(columns, _numbers(self.key, keys))
        inside = (row >= 0) & (row < attention.shape[-2]) & (column >= 0)
        where = self.of_head[inside], row[inside], column[inside]
        factor = self._factors(attention, inside, where, attention.shape[1:])
        return attention * self._of_elements(factor, reading)

    def shared_on_edges(
        self, attention: Tensor, edges: slice, query: Tensor, key: Tensor, reading: Reading
    ) -> Tensor:
        """Multiply the attention of listed edges."""
        own = (_numbers(self.query, reading.queries), _numbers(self.key, reading.keys))
        place = places_in(reading.graph, *own) - edges.start
        inside = (place >= 0) & (place < attention.shape[-1])
        where = self.of_head[inside], place[inside]
        factor = self._factors(attention, inside, where, attention.shape[1:])
        return attention * self._of_elements(factor, reading)

    def _factors(
        self, attention: Tensor, inside: Tensor, where: tuple[Tensor, ...], shape: Sequence[int]
    ) -> Tensor:
        weights = self.weights.to(attention)[:, inside.to(self.weights.device)]
        flat = torch.zeros_like(where[0])
        for size, place in zip(shape, where, strict=True):
            flat = flat * size + place
        empty = attention.new_zeros(len(weights), *shape)
        return empty.flatten(1).index_copy(1, flat.to(empty.device), weights).view(empty.shape)

    def _of_elements(self, factor: Tensor, reading: Reading) -> Tensor:
        if len(factor) == 1 or reading.sequences == list(range(len(factor))):
            return factor
        return factor[torch.tensor(reading.sequences, device=factor.device)]


def _rows(given: Any) -> Tensor:
    """Read edges as (edges, 4)."""
    try:
        rows: Tensor = torch.as_tensor(
            given if isinstance(given, Tensor) else [list(row) for row in given]
        )
        rows = rows.reshape(-1, 4) if rows.numel() == 0 else rows
        is_right = rows.dim() == 2 and rows.shape[1] == 4 and not rows.is_complex()
        is_right = is_right and (not rows.numel() or not rows.is_floating_point())
        is_right = is_right and rows.dtype != torch.bool and bool((rows >= 0).all())
    except (TypeError, ValueError, RuntimeError):
        is_right = False
    if not is_right:
        raise EditError(
            "Only takes edges as rows (layer, head, query, key) of whole numbers that count from "
            f"0, not {given!r:.80}."
        )
    found: Tensor = rows.long().cpu().unique(dim=0)
    return found


def _numbers(positions: Tensor, side: Side) -> Tensor:
    """Count positions from a side's first token; -1 where it lacks one."""
    if side.positions is None:
        own = positions - side.first
        return torch.where((own >= 0) & (own < len(side)), own, -1)
    order = side.at.argsort()
    found = _find(side.at[order], positions)
    return torch.where(found >= 0, order[found], -1)


def _find(known: Tensor, wanted: Tensor) -> Tensor:
    """Find numbers among ascending ones; -1 where they are not there."""
    if not len(known):
        return torch.full_like(wanted, -1)
    at = torch.searchsorted(known, wanted).clamp_max(len(known) - 1)
    return torch.where(known[at] == wanted, at, -1)
