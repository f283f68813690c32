"""All edges of a model's attention on one text, as arrays, and the units that are kept together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gattn.analysis.circuits.masking import Masking
from gattn.errors import SelectionError
from gattn.heads.trace import AttentionTrace
from gattn.models.edit.kept.kept import Messages
from gattn.models.watch.contexts import Context

Units: TypeAlias = Literal["edges", "pairs", "tokens", "heads", "paths", "all paths"]
"""What is kept or left out as a whole."""
Ints: TypeAlias = NDArray[np.int64]

_MEMORY, _PER_EDGE = 1 << 28, 64
"""In how many bytes candidates run at once, and those that an edge of a layer takes."""
_FIELDS = {
    "edges": ("stack", "layer", "head", "query", "key"),
    "pairs": ("stack", "query", "key"),
    "tokens": ("stack", "key"),
    "heads": ("stack", "layer", "head"),
}


@dataclass(frozen=True, eq=False)
class EdgeList:
    """All edges of a text: in every stack, layer and head, sorted by these.

    Parameters
    ----------
    trace : AttentionTrace
        The plain run.
    stacks : sequence of str
        The names of the stacks.
    rows : array of int (edges, 5)
        The number of the stack, layer, head, query and key of each edge.
    attention : array (edges,)
        Its attention.
    """

    trace: AttentionTrace
    stacks: Sequence[str]
    rows: Ints
    attention: NDArray[np.floating]

    @classmethod
    def of(cls, trace: AttentionTrace) -> EdgeList:
        """List the edges of a trace that kept all."""
        rows = [np.zeros((0, 5), dtype=np.int64)]
        attention: list[NDArray[np.floating]] = [np.zeros(0)]
        for number, stack in enumerate(trace.stacks.values()):
            for layer, head in sorted(stack):
                graph = stack[layer, head]
                offset = 0 if graph.graph.is_bipartite else graph.graph.query_offset
                ends = graph.query + offset, graph.key
                where = np.full((3, len(graph.key)), [[number], [layer], [head]])
                rows.append(np.stack([*where, *ends], axis=1))
                attention.append(graph.attention)
        return cls(trace, tuple(trace.stacks), np.concatenate(rows), np.concatenate(attention))

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def slices(self) -> dict[tuple[str, int], slice]:
        """The edges of each layer of a stack."""
        codes, first = np.unique(self.rows[:, :2], axis=0, return_index=True)
        stops = [*first[1:], len(self)]
        return {
            (self.stacks[stack], int(layer)): slice(int(start), int(stop))
            for (stack, layer), start, stop in zip(codes, first, stops, strict=True)
        }

    @cached_property
    def tensors(self) -> Tensor:
        """The rows as a tensor (edges, 5)."""
        return torch.from_numpy(self.rows)

    def with_path(self, kept: NDArray[np.bool_], positions: Sequence[int]) -> NDArray[np.bool_]:
        """Return which edges of a stack have a path of such edges and streams to last tokens."""
        on_path = np.zeros_like(kept)
        needed = np.zeros(1 + max(int(self.rows[:, 3:].max(initial=0)), *positions), dtype=bool)
        needed[list(positions)] = True
        for _, some in sorted(self.slices.items(), reverse=True):
            on_path[some] = kept[some] & needed[self.rows[some, 3]]
            needed[self.rows[some, 4][on_path[some]]] = True
        return on_path

    @property
    def is_causal(self) -> bool:
        """Whether no query reads a later token."""
        return bool((self.rows[:, 3] >= self.rows[:, 4]).all())

    def is_bipartite(self, stack: str) -> bool:
        """Return whether the keys of a stack are other tokens than its queries."""
        return next(iter(self.trace.stacks[stack].values())).graph.is_bipartite

    def tokens(self, stack: str) -> tuple[list[str], list[str]]:
        """Name the queries and the keys of a stack."""
        head = next(iter(self.trace.stacks[stack].values()))
        return head.query_labels(), head.labels()


@dataclass(frozen=True, eq=False)
class Grouping:
    """Which unit each edge belongs to.

    Parameters
    ----------
    kind : "edges", "pairs", "tokens" or "heads"
        What a unit of edges is: an edge; the edges from one token to another, in all layers and
        heads; those from one token; those of a head.
    edges : EdgeList
        The edges.
    of_edge : array of int (edges,)
        The unit of each.
    rows : array of int (units, fields)
        What names a unit, as `fields` says.
    """

    kind: Units
    edges: EdgeList
    of_edge: Ints
    rows: Ints

    @classmethod
    def of(cls, edges: EdgeList, kind: Units) -> Grouping:
        """Group edges by units."""
        if kind == "edges":
            return cls(kind, edges, np.arange(len(edges)), edges.rows)
        names = [_FIELDS["edges"].index(name) for name in _FIELDS[kind]]
        rows, of_edge = np.unique(edges.rows[:, names], axis=0, return_inverse=True)
        return cls(kind, edges, of_edge.reshape(-1), rows)

    said = "attention"
    lost = "messages"

    def __len__(self) -> int:
        return len(self.rows)

    def most_copies(self, size: int | None, most: int) -> int:
        """Return how many candidates run at once: `size` if memory of a text allows so many."""
        largest = max((some.stop - some.start for some in self.edges.slices.values()), default=1)
        free = max(_MEMORY // (_PER_EDGE * largest), 1)
        return min(free if size is None else size, most)

    def context(self, weights: Tensor, messages: Messages | None) -> Context:
        """Return the context that multiplies attention by weights (copies, edges)."""
        return Masking(self.edges, weights, messages)

    @property
    def fields(self) -> tuple[str, ...]:
        """What names a unit."""
        return _FIELDS[self.kind]

    @cached_property
    def sizes(self) -> Ints:
        """How many edges each unit has."""
        return np.bincount(self.of_edge, minlength=len(self))

    @cached_property
    def profile(self) -> Ints:
        """The group of each unit among which random ones are drawn: its stack and layer."""
        count = 1 + (self.fields[1] == "layer")
        return np.unique(self.rows[:, :count], axis=0, return_inverse=True)[1].reshape(-1)

    def spread(self, weights: Tensor) -> Tensor:
        """Give each edge the weight of its unit: (copies, units) to (copies, edges)."""
        return weights if self.kind == "edges" else weights[:, torch.from_numpy(self.of_edge)]


def check_units(kind: Units) -> None:
    """Refuse what is no unit."""
    if kind not in get_args(Units):
        raise SelectionError(f"units is one of {', '.join(get_args(Units))}, not {kind!r:.80}.")
