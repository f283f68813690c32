"""The cells of token graphs: which share of the pairs in each is edges."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gattn.drawing.matrices.cells import Pooling, averages, overlaps
from gattn.engines.shared.tiling import tile_pairs
from gattn.graph.rules.keys import list_keys
from gattn.graph.token_graph import TokenGraph

_MOST_PAIRS, _MOST_COUNTS = 1 << 31, 1 << 28
_FEWEST, _AT_ONCE, _TILE = 1024, 1 << 20, 64


@dataclass(frozen=True)
class PatternCells:
    """A token graph, queries as rows and keys as columns; where there is no edge it is empty.

    Parameters
    ----------
    graph : TokenGraph
        The token graph, in main memory.
    """

    graph: TokenGraph

    @property
    def shape(self) -> tuple[int, int]:
        """How many rows and columns there are: of very many keys, as many as are soon counted."""
        queries, keys = max(self.graph.num_queries, 1), max(self.graph.num_keys, 1)
        most = max(_FEWEST, _MOST_COUNTS // queries)
        return min(queries, most), min(keys, most)

    @property
    def pool(self) -> Pooling:
        """Of several pairs the share that are edges is shown: their mean."""
        return "mean"

    @property
    def is_quick(self) -> bool:
        """Whether it takes less than about ten seconds to look at."""
        queries, keys = self.graph.num_queries, self.graph.num_keys
        if max(queries, keys) > _MOST_COUNTS:
            return False
        if self._is_counted(min(keys, _FEWEST)):
            return queries * min(keys, _FEWEST) <= _MOST_COUNTS
        return tile_pairs(self.graph, _TILE) <= _MOST_PAIRS

    def at(self, rows: int, columns: int) -> NDArray[np.float64]:
        """Return the share of edges in so many rows and columns at most, NaN where it is 0."""
        rows, columns = (min(pair) for pair in zip((rows, columns), self.shape, strict=True))
        queries = max(self.graph.num_queries, 1)
        down = overlaps(np.arange(queries + 1.0), rows)
        edges = np.zeros((rows, columns))
        for part, across in (self._counted if self._is_counted(columns) else self._walked)(columns):
            edges += down[part].T @ across
        area = queries * max(self.graph.num_keys, 1) / (rows * columns)
        return averages(edges, np.full_like(edges, area), edges > 1e-9)

    def _walked(self, columns: int) -> Iterator[tuple[slice, Any]]:
        """Look at all pairs, some rows at a time: these, and their edges in each column."""
        across = overlaps(np.arange(self.graph.num_keys + 1.0), columns)
        for part, keys, allowed in self.graph.row_blocks():
            yield part, allowed.double().numpy() @ across[list_keys(keys, None).numpy()]

    def _counted(self, columns: int) -> Iterator[tuple[slice, Any]]:
        """Ask the rule for the same numbers: of whole keys, and of those that a column cuts."""
        ends = np.linspace(0, self.graph.num_keys, columns + 1)
        low = torch.from_numpy(np.floor(ends + 1e-9)).long()
        cut = np.maximum(ends - low.numpy(), 0.0)
        for rows in torch.arange(self.graph.num_queries, device="cpu").split(
            max(_AT_ONCE // columns, 1)
        ):
            query = rows + self.graph.query_offset
            whole = self._count(query, low[:-1], low[1:])
            part = cut * self._count(query, low, (low + 1).clamp_max(self.graph.num_keys))
            yield slice(int(rows[0]), int(rows[-1]) + 1), whole + part[:, 1:] - part[:, :-1]

    def _count(self, query: torch.Tensor, low: torch.Tensor, high: torch.Tensor) -> NDArray[Any]:
        asked = torch.broadcast_tensors(query[:, None], low, high)
        count = self.graph.rule.count(*(one.contiguous() for one in asked))
        assert count is not None
        return count.double().numpy()

    def _is_counted(self, columns: int) -> bool:
        """Return whether the rule knows the numbers, and counting is quicker than looking."""
        graph = self.graph
        if columns >= graph.num_keys or graph.num_queries * columns > tile_pairs(graph, _TILE):
            return False
        few = torch.arange(graph.query_offset, graph.query_offset + 1, device="cpu")
        return (
            graph.rule.count(few, torch.zeros(1, dtype=torch.long, device="cpu"), few + 1)
            is not None
        )
