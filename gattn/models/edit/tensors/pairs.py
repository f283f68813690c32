"""Cuts of any edges of a head at once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gattn.engines.tiles import RowBlock
from gattn.graph.rules.edges import Edges
from gattn.graph.rules.keys import list_keys
from gattn.graph.token_graph import TokenGraph
from gattn.models.edit.base import Edit
from gattn.models.read.places import Side

if TYPE_CHECKING:
    from gattn.models.read.reading import Reading


@dataclass(frozen=True, eq=False, repr=False)
class CutPairs(Edit):
    """Cut edges of one head, as `Cut` does: those from each `key` to its `query`, (edges,)."""

    query: Tensor
    key: Tensor
    layer: int
    head: int
    renormalize: bool = True
    stack: str | None = None

    @property
    def is_after(self) -> bool:  # type: ignore[override]
        """Whether it changes attention after normalizing."""
        return not self.renormalize

    def changes(self, reading: Reading) -> Tensor:
        """Return which queries of a call it changes."""
        changed = torch.zeros(len(reading.queries), dtype=torch.bool, device="cpu")
        changed[self._pairs(reading)[0]] = True
        return changed

    def allowed(self, graph: TokenGraph, reading: Reading) -> TokenGraph:
        """Cut edges before normalizing."""
        if not self.renormalize:
            return graph
        pairs = self._pairs(reading)
        rule = Edges.from_pairs(*pairs, len(reading.queries), graph.query_offset)
        return graph - replace(graph, rule=rule)

    def shared(self, attention: Tensor, block: RowBlock, reading: Reading) -> Tensor:
        """Cut edges after normalizing."""
        if self.renormalize:
            return attention
        cut = self._matrix(reading)[block.rows][:, list_keys(block.columns).cpu()]
        return attention.masked_fill(cut.to(attention.device), 0.0)

    def shared_on_edges(
        self, attention: Tensor, edges: slice, query: Tensor, key: Tensor, reading: Reading
    ) -> Tensor:
        """Cut listed edges after normalizing."""
        if self.renormalize:
            return attention
        cut = self._matrix(reading)[query.cpu(), key.cpu()]
        return attention.masked_fill(cut.to(attention.device), 0.0)

    def _pairs(self, reading: Reading) -> tuple[Tensor, Tensor]:
        return _numbers(self.query, reading.queries), _numbers(self.key, reading.keys)

    def _matrix(self, reading: Reading) -> Tensor:
        """Say of each pair whether it is cut."""
        cut = torch.zeros(len(reading.queries), len(reading.keys), dtype=torch.bool, device="cpu")
        cut[self._pairs(reading)] = True
        return cut


def _numbers(positions: Tensor, side: Side) -> Tensor:
    """Count positions from a side's first token."""
    table = torch.full((side.end,), -1, device="cpu")
    table[side.at] = torch.arange(len(side), device="cpu")
    return table[positions]
