"""Collects the kept edges of all heads of a layer while its rows are computed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from gattn.errors import CaptureError
from gattn.graph import TokenGraph
from gattn.head import AttentionGraph, Floats, Ints
from gattn.keep import All, Keep
from gattn.neighbourhoods import padded_rows
from gattn.rules import Edges


class KeptEdges:
    """The kept edges of several heads over one token graph.

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
        self._parts: list[list[_Part]] = [[] for _ in heads]
        self._mass = torch.zeros(len(heads), graph.num_queries, dtype=self._dtype)
        self._sum = torch.zeros_like(self._mass)

    def add_rows(
        self, rows: slice, columns: slice, allowed: Tensor, attention: Tensor, scores: Tensor
    ) -> None:
        """Keep edges of a block of whole rows.

        Parameters
        ----------
        rows, columns : slice
            The queries, and the keys that hold all their edges.
        allowed : Tensor
            Booleans (rows, columns).
        attention, scores : Tensor
            Shape (heads, rows, columns).
        """
        attention, allowed = self._stored(attention), allowed.cpu()
        self._check(attention, lambda place: rows.start + place[1])
        self._mass[:, rows] = (attention.abs() * allowed).sum(-1)
        self._sum[:, rows] = (attention * allowed).sum(-1)
        chosen = self._keep.select(attention, allowed)
        stored_scores = self._stored(scores) if self._scores else None
        keeps_all = isinstance(self._keep, All)
        for head, parts in enumerate(self._parts):
            mask = chosen[head]
            score = None if stored_scores is None else stored_scores[head][mask]
            row = key = None
            if not keeps_all:
                row, key = mask.nonzero(as_tuple=True)
                row, key = (row + rows.start).int(), (key + columns.start).int()
            parts.append(_Part(row, key, attention[head][mask], score))

    def add_edges(self, edges: slice, attention: Tensor, scores: Tensor) -> None:
        """Keep edges of whole neighbourhoods: (heads, edges) in the graph's edge order."""
        attention = self._stored(attention)
        key, query = self._graph.edge_index[:, edges]
        self._check(attention, lambda place: int(query[place[1]]))
        self._mass.index_add_(1, query, attention.abs())
        self._sum.index_add_(1, query, attention)
        stored_scores = self._stored(scores) if self._scores else None
        if isinstance(self._keep, All):
            for head, parts in enumerate(self._parts):
                score = None if stored_scores is None else stored_scores[head]
                parts.append(_Part(None, None, attention[head], score))
            return
        chosen = torch.zeros_like(attention, dtype=torch.bool)
        for places, present in padded_rows(query - query[:1], self._graph.num_queries):
            kept = self._keep.select(attention[:, places], present)
            chosen[:, places[present]] = kept[:, present]
        for head, parts in enumerate(self._parts):
            mask = chosen[head]
            score = None if stored_scores is None else stored_scores[head][mask]
            parts.append(_Part(query[mask].int(), key[mask].int(), attention[head][mask], score))

    def _stored(self, values: Tensor) -> Tensor:
        return values.detach().to("cpu", self._dtype)

    @staticmethod
    def _check(attention: Tensor, query_of: Callable[[list[int]], int]) -> None:
        broken = torch.isnan(attention)
        if bool(broken.any()):
            place = broken.nonzero()[0].tolist()
            raise CaptureError(
                f"The attention of head {place[0]} is NaN at query {query_of(place)}; expected "
                "numbers. Look for NaN or infinity in the weights and inputs."
            )

    def graphs(self, *, has_sink: bool, **attributes: Any) -> list[AttentionGraph]:
        """Build one attention graph a head; `attributes` are further fields of each."""
        total_edges: Ints = self._graph.in_degree.numpy()
        sink = (1 - self._sum).clamp_min(0).numpy() if has_sink else None
        graphs = []
        for index, (head, parts) in enumerate(zip(self._heads, self._parts, strict=True)):
            stored = [part.score for part in parts if part.score is not None]
            graphs.append(
                AttentionGraph(
                    self._kept_graph(parts),
                    self._joined([part.attention for part in parts]),
                    self._mass[index].numpy(),
                    total_edges,
                    score=self._joined(stored) if self._scores else None,
                    sink=None if sink is None else sink[index],
                    head=head,
                    kept_by=str(self._keep),
                    **attributes,
                )
            )
        return graphs

    def _kept_graph(self, parts: list[_Part]) -> TokenGraph:
        if isinstance(self._keep, All):
            return self._graph
        none = torch.zeros(0, dtype=torch.int32)
        row = torch.cat([none, *(part.row for part in parts if part.row is not None)])
        key = torch.cat([none, *(part.key for part in parts if part.key is not None)])
        graph = self._graph
        rule = Edges.from_pairs(row, key, graph.num_queries, graph.query_offset)
        return replace(graph, rule=rule)

    def _joined(self, parts: list[Tensor]) -> Floats:
        joined: Floats = torch.cat([torch.zeros(0, dtype=self._dtype), *parts]).numpy()
        return joined


@dataclass(frozen=True)
class _Part:
    row: Tensor | None
    key: Tensor | None
    attention: Tensor
    score: Tensor | None
