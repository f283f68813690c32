"""Collects the kept edges of all heads of a layer while its rows are computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from gattn.errors import CaptureError
from gattn.graph import TokenGraph
from gattn.head import AttentionGraph, Ints
from gattn.keep import All, Keep, sizes_of
from gattn.neighbourhoods import padded_rows
from gattn.rules import Edges

_MOST_SLACK = 1.25


class KeptEdges:
    """The kept edges of several heads over one token graph.

    Blocks come in the order of their queries, on any device; what is kept lies in main memory.

    Parameters
    ----------
    graph : TokenGraph
        Who may attend to whom.
    heads : sequence of int
        The heads' numbers.
    keep : Keep
        Which edges to keep. `All` stores values alone: the graph says which edges they are.
    scores : bool
        Whether to store scores.
    dtype : torch.dtype
        The kind of the stored values; half precision is stored as float32.
    """

    def __init__(
        self, graph: TokenGraph, heads: Sequence[int], keep: Keep, scores: bool, dtype: torch.dtype
    ) -> None:
        self._graph, self._keep, self._scores = graph.to("cpu"), keep, scores
        self._heads = heads
        self._dtype = torch.float64 if dtype == torch.float64 else torch.float32
        capacity = keep.capacity(self._graph.in_degree) or 0
        kinds = {"attention": self._dtype}
        if scores:
            kinds["score"] = self._dtype
        if not isinstance(keep, All):
            kinds["key"] = torch.int32
        self._kept = {
            name: [_Buffer(kind, capacity) for _ in heads] for name, kind in kinds.items()
        }
        self._degree = torch.zeros(len(heads), graph.num_queries, dtype=torch.long)
        self._mass = torch.zeros(len(heads), graph.num_queries, dtype=self._dtype)
        self._sum = torch.zeros_like(self._mass)

    def add_rows(
        self,
        rows: slice,
        columns: slice | Tensor,
        allowed: Tensor | None,
        attention: Tensor,
        scores: Tensor | None,
    ) -> None:
        """Keep edges of a block of whole rows.

        Parameters
        ----------
        rows : slice
            The queries.
        columns : slice or Tensor
            The keys that hold all their edges: a range, or rising numbers.
        allowed : Tensor or None
            Booleans (rows, columns); None where every pair is an edge.
        attention, scores : Tensor
            Shape (heads, rows, columns). Attention is 0 where no edge is.
        """
        values = self._values(attention, scores)
        attention = values["attention"]
        self._weigh(torch.arange(rows.start, rows.stop), attention)
        if isinstance(self._keep, All):
            self._append({name: _picked(block, allowed) for name, block in values.items()})
            return
        if isinstance(columns, slice):
            columns = torch.arange(columns.start, columns.stop)
        present = torch.tensor(True) if allowed is None else allowed
        places = self._keep.places(attention, present.to(attention.device))
        _, height, width = attention.shape
        row, key = places // width % height, columns.to(places.device)[places % width]
        self._add(rows, places, row, key, values)

    def add_edges(self, edges: slice, attention: Tensor, scores: Tensor | None) -> None:
        """Keep edges of whole neighbourhoods: (heads, edges) in the graph's edge order."""
        values = self._values(attention, scores)
        attention = values["attention"]
        key, query = self._graph.edge_index[:, edges].to(attention.device)
        if not len(query):
            return
        rows = slice(int(query[0]), int(query[-1]) + 1)
        row = query - rows.start
        chosen = []
        for group, present in padded_rows(row, rows.stop - rows.start):
            block = attention.index_select(1, group.flatten()).view(-1, *group.shape)
            block.masked_fill_(~present, 0)
            self._weigh(query[group[:, 0]].cpu(), block)
            if not isinstance(self._keep, All):
                place = self._keep.places(block, present)
                edge = group.flatten()[place % group.numel()]
                chosen.append(place // group.numel() * len(query) + edge)
        if isinstance(self._keep, All):
            self._append(values)
            return
        places = torch.cat(chosen).sort().values
        edge = places % len(query)
        self._add(rows, places, row[edge], key[edge], values)

    def _values(self, attention: Tensor, scores: Tensor | None) -> dict[str, Tensor]:
        values = {"attention": attention.detach().to(self._dtype)}
        if self._scores and scores is not None:
            values["score"] = scores.detach()
        return values

    def _weigh(self, queries: Tensor, attention: Tensor) -> None:
        """Sum up whole rows (heads, queries, slots), and refuse NaN, which spoils their sums."""
        sizes = sizes_of(attention)
        mass = sizes.sum(-1).cpu()
        self._mass[:, queries] = mass
        self._sum[:, queries] = mass if sizes is attention else attention.sum(-1).cpu()
        broken = mass.isnan().nonzero().tolist()
        if broken:
            head, row = broken[0]
            raise CaptureError(
                f"The attention of head {self._heads[head]} is NaN at query {queries[row]}; "
                "expected numbers. Look for NaN or infinity in the weights and inputs."
            )

    def _add(
        self, rows: slice, places: Tensor, row: Tensor, key: Tensor, values: dict[str, Tensor]
    ) -> None:
        """Store the edges at flat places of all heads, given row (in `rows`) and key of each."""
        heads, height = len(self._heads), rows.stop - rows.start
        head = places // values["attention"].shape[1:].numel()
        degree = torch.bincount(head * height + row, minlength=heads * height)
        degree = degree.view(heads, height).cpu()
        self._degree[:, rows] = degree
        taken = {name: block.take(places) for name, block in values.items()}
        self._append(taken | {"key": key}, degree.sum(1).tolist())

    def _append(self, values: dict[str, Tensor], sizes: list[int] | None = None) -> None:
        """Append to each head's buffers: a row a head, or `sizes` of one row."""
        for name, buffers in self._kept.items():
            block = values[name].cpu()
            parts = block if sizes is None else block.split(sizes)
            for buffer, part in zip(buffers, parts, strict=True):
                buffer.append(part)

    def graphs(self, *, has_sink: bool, **attributes: Any) -> list[AttentionGraph]:
        """Build one attention graph a head; `attributes` are further fields of each."""
        total_edges: Ints = self._graph.in_degree.numpy()
        graphs = []
        for index, head in enumerate(self._heads):
            kept = {name: buffers[index].values() for name, buffers in self._kept.items()}
            graphs.append(
                AttentionGraph(
                    self._kept_graph(index, kept),
                    kept["attention"].numpy(),
                    self._mass[index].clone().numpy(),
                    total_edges,
                    score=kept["score"].numpy() if self._scores else None,
                    sink=(1 - self._sum[index]).clamp_min(0).numpy() if has_sink else None,
                    head=head,
                    kept_by=str(self._keep),
                    **attributes,
                )
            )
        return graphs

    def _kept_graph(self, index: int, kept: dict[str, Tensor]) -> TokenGraph:
        if "key" not in kept:
            return self._graph
        degree = self._degree[index]
        pointer = torch.cat([degree.new_zeros(1), degree.cumsum(0)])
        rule = Edges(pointer, kept["key"].long(), self._graph.query_offset)
        return replace(self._graph, rule=rule)


def _picked(values: Tensor, allowed: Tensor | None) -> Tensor:
    """Give the edges of a block (heads, rows, columns) as (heads, edges)."""
    if allowed is None:
        return values.flatten(1)
    # Many times faster than masked_select with a mask that broadcasts.
    edge = allowed.flatten().nonzero()[:, 0].to(values.device)
    return values.flatten(1).index_select(1, edge)


class _Buffer:
    """Values one after another, in memory that is reserved ahead: what is not written is free."""

    def __init__(self, dtype: torch.dtype, capacity: int) -> None:
        self._memory, self._size = torch.empty(capacity, dtype=dtype), 0

    def append(self, values: Tensor) -> None:
        """Write values behind the last ones."""
        start, self._size = self._size, self._size + len(values)
        if self._size > len(self._memory):
            wider = self._memory.new_empty(max(self._size, 2 * len(self._memory)))
            wider[:start] = self._memory[:start]
            self._memory = wider
        self._memory[start : self._size] = values

    def values(self) -> Tensor:
        """Give what was written, without much unused memory behind it."""
        values = self._memory[: self._size]
        return values if len(self._memory) <= _MOST_SLACK * self._size else values.clone()
