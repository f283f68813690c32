"""The part, in one call, of an edit that keeps some edges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gattn.engines.tiles import RowBlock
from gattn.errors import EditError
from gattn.graph.rules.edges import Edges
from gattn.graph.rules.keys import list_keys
from gattn.models.edit.base import Edit
from gattn.models.edit.tensors.activations import Activations
from gattn.models.read.on_graphs.seen_edges import places_in
from gattn.models.read.places import Place, Side

if TYPE_CHECKING:
    from gattn.models.edit.part import Part
    from gattn.models.read.reading import Reading


@dataclass(frozen=True, eq=False)
class Messages:
    """What takes the place of edges' messages; `said` is that as it was given.

    Messages are attention times values: those of another text, or the edge's own attention times
    the mean value, over a corpus, or without `values` over the positions of the same run.
    """

    said: Any
    attention: Activations | None = None
    values: Activations | None = None

    @property
    def is_of_run(self) -> bool:
        """Whether they are the mean over the positions of the same run."""
        return self.values is None

    def of(self, place: Place) -> Given:
        """Return what is given in a call."""
        own = slice(place.head, place.head + 1) if place.heads else slice(None)
        where = place.stack, place.layer
        attention, values = self.attention, self.values
        return Given(
            None if attention is None else attention.of("attention", *where)[own],
            None if values is None else values.of("values", *where)[own],
        )


@dataclass(frozen=True, eq=False)
class Given:
    """The messages of a call that take the place of others.

    `attention` is (heads, queries, keys), None if it is the run's own; `values` are (heads, keys,
    dim), the mean (heads, 1, dim), or None if they are the mean over the run's own.
    """

    attention: Tensor | None
    values: Tensor | None

    def among(self, heads: Sequence[int]) -> Given:
        """Return those of some heads."""
        some = (None if x is None else x[heads] for x in (self.attention, self.values))
        return Given(*some)

    def on(self, part: Part, after: Sequence[Edit]) -> tuple[Tensor, Tensor]:
        """Return attention and values in a part of a call, with the edits that come first."""
        self.check(part.reading, len(part.own))
        queries, keys = part.reading.queries, part.reading.keys
        if self.attention is not None:
            assert self.values is not None
            return self.attention[:, queries.at][:, :, keys.at], self.values[:, keys.at]
        before = replace(part, after=tuple(after))
        values = self.values
        if values is None:
            assert part.attention.value is not None
            values = part.attention.value[:, part.own].mean(2, keepdim=True)
        return before.dense(), values.expand(*values.shape[:-2], len(keys), -1)

    def check(self, reading: Reading, heads: int) -> None:
        """Refuse what does not fit so many heads of a call."""
        if not reading.has_values or not reading.splits_heads or reading.lists_edges:
            raise EditError(
                "This layer shows its attention, but not its values, so no other messages can take "
                "the place of its own: use ablation='zero'."
            )
        expected = heads, reading.queries.end, reading.keys.end
        if self.attention is not None and self.attention.shape != expected:
            found = tuple(self.attention.shape)
            raise EditError(
                f"ablation= is another text, whose attention (heads, queries, keys) is {found}, "
                f"and here it is {expected}: expected a text of as many tokens, run as a whole, or "
                "'zero' or 'mean'."
            )
        keys = reading.keys
        if self.values is None and len(keys) != keys.end:
            raise EditError(
                "ablation='mean' takes the mean over all positions, and one call has only the "
                f"{len(keys)} from {int(keys.at.min())} to {int(keys.at.max())}: give a list of "
                "texts over which the mean is taken, or use ablation='zero'."
            )


def is_zero(ablation: object) -> bool:
    """Return whether nothing takes the place of messages."""
    return isinstance(ablation, str) and ablation == "zero"


def are_texts(ablation: object) -> bool:
    """Return whether an ablation is several texts, rather than the tokens of one."""
    return isinstance(ablation, (list, tuple)) and not all(isinstance(x, int) for x in ablation)


def kept_in_call(
    place: Place,
    head: Tensor,
    query: Tensor,
    key: Tensor,
    weights: Tensor,
    messages: Messages | None,
) -> Kept:
    """Make the edit of a call of a layer: `weights` (sequences, edges) of these edges, 0 of others.

    A call of one head takes the edges of that.
    """
    if place.heads:
        _check_heads(head, place.heads)
        own = (head == place.head).nonzero()[:, 0]
        head, query, key = torch.zeros_like(own), query[own], key[own]
        weights = weights[:, own]
    return Kept(head, query, key, weights, None if messages is None else messages.of(place))


@dataclass(frozen=True, eq=False, repr=False)
class Kept(Edit):
    """Multiply the attention of some edges of a call by weights, and that of all others by zero.

    `of_head`, `query` and `key` are (edges,), positions; `weights` are (sequences, edges), or (1,
    edges) for all sequences. What is lost, 1 - weight of a message, is added of the message that
    is `given` for each edge, if there are some.
    """

    of_head: Tensor
    query: Tensor
    key: Tensor
    weights: Tensor
    given: Given | None = None

    layer = None
    head = None
    stack = None
    is_after = True

    def __post_init__(self) -> None:
        """Take all as it is."""

    def __repr__(self) -> str:
        return f"an edit that keeps {len(self.query)} edges of this layer"

    @property
    def gives_values(self) -> bool:  # type: ignore[override]
        """Whether it adds messages to outputs."""
        return self.given is not None

    def heads(self, count: int) -> list[int]:
        """List all heads, of which its edges must be some."""
        _check_heads(self.of_head, count)
        return list(range(count))

    def meets(self, reading: Reading) -> bool:
        """Return whether a call has any of its edges; refuse those that its graph lacks."""
        if self.given is not None:
            self.given.check(reading, reading.heads)
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
                f"The edges to keep hold the edge from key {int(self.key[one])} to query "
                f"{int(self.query[one])}, which the model's graph does not have."
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
            given=None if self.given is None else self.given.among(heads),
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

    def outputs(self, output: Tensor, part: Part) -> Tensor:
        """Add the messages that are given for edges that are not kept, to whole outputs."""
        if self.given is None:
            return output
        reading = part.reading
        if any(isinstance(edit, Kept) and edit is not self for edit in part.after):
            raise EditError(
                "Two edits keep some edges of a head, and other messages take the place of the "
                "rest, which are not those of either alone: give one gattn.Only, with the edges "
                "that both keep."
            )
        earlier = part.after[: part.after.index(self)]
        attention, values = (x.to(output) for x in self.given.on(part, earlier))
        row, column = _numbers(self.query, reading.queries), _numbers(self.key, reading.keys)
        inside = (row >= 0) & (column >= 0)
        where = self.of_head[inside], row[inside], column[inside]
        kept = self._factors(attention, inside, where, attention.shape[-3:])
        return output + ((1 - self._of_elements(kept, reading)) * attention) @ values

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


def _check_heads(head: Tensor, count: int) -> None:
    """Refuse edges of heads that a layer lacks."""
    if len(head) and int(head.max()) >= count:
        raise EditError(
            f"The edges to keep are of head {int(head.max())}, but the heads are 0 .. {count - 1}."
        )


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
