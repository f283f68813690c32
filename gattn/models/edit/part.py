"""Heads of a reading with the same edits, computed a few rows or edges at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from gattn.engines import edges, tiles
from gattn.engines.call import AttentionCall, naming_shapes
from gattn.engines.choice import choose
from gattn.engines.edges import EdgeBlock
from gattn.engines.tiles import RowBlock
from gattn.graph.rules.keys import list_keys
from gattn.graph.token_graph import TokenGraph
from gattn.heads.store.emitted import store_emitted
from gattn.heads.store.kept_edges import KeptEdges
from gattn.models.edit.base import Edit
from gattn.models.edit.graphs import Restrict
from gattn.models.read.on_graphs.readings import EdgeReading
from gattn.models.read.reading import Reading

_FEW_ROWS = 8
"""Queries are few if they are at most one in so many."""


@dataclass(frozen=True, eq=False)
class Part:
    """Heads of a reading with the same edits.

    `attention` computes them except for the edits `after`; `own` are their numbers in it.
    """

    reading: Reading
    heads: list[int]
    attention: AttentionCall
    own: list[int]
    after: tuple[Edit, ...]
    is_edited: bool

    @property
    def graph(self) -> TokenGraph:
        """Who may attend to whom, edited."""
        assert isinstance(self.attention.graph, TokenGraph)
        return self.attention.graph

    @cached_property
    def changed(self) -> Tensor:
        """Which queries the edits change, as booleans."""
        changed = torch.zeros(len(self.reading.queries), dtype=torch.bool, device="cpu")
        for edit in self.edits:
            if isinstance(edit, Restrict):
                some: Tensor | None = edit.loses(self.graph, self.reading.graph)
            else:
                some = edit.changes(self.reading)
            changed |= torch.ones_like(changed) if some is None else some
        return changed

    @property
    def edits(self) -> list[Edit]:
        """The edits of these heads."""
        heads = self.reading.heads
        return [edit for edit in self.reading.edits if self.heads[0] in edit.heads(heads)]

    def blocks(self, *, scores: bool = True) -> Iterator[RowBlock]:
        """Walk whole rows of the part's edited attention.

        Without scores it has no gradient; see `tiles.row_blocks`.
        """
        is_whole = len(self.own) == self.attention.query.shape[1]
        for block in tiles.row_blocks(self.attention, scores=scores):
            score, attention = block.scores, block.attention
            if not is_whole:
                score = None if score is None else score[:, self.own]
                attention = attention[:, self.own]
            for edit in self.after:
                attention = edit.shared(attention, block, self.reading)
            yield block._replace(scores=score, attention=attention)

    def dense(self, *, scores: bool = True) -> Tensor:
        """Return the whole edited attention, (elements, heads, queries, keys).

        Without scores it has no gradient.
        """
        whole = self._empty()
        for block in self.blocks(scores=scores):
            whole[:, :, block.rows, list_keys(block.columns).to(whole.device)] = block.attention
        return whole

    def _empty(self) -> Tensor:
        reading = self.reading
        sizes = len(self.own), len(reading.queries), len(reading.keys)
        return self.attention.query.new_zeros(len(reading.elements), *sizes)

    def store(
        self,
        stores: Sequence[KeptEdges],
        *,
        scores: bool,
        look: Callable[[RowBlock], None] | None = None,
    ) -> None:
        """Keep the edges of each element in its store, and let `look` see each block."""
        is_plain = len(self.own) == self.attention.query.shape[1] and not self.after
        if look is None and is_plain and store_emitted(self.attention, stores, scores=scores):
            return
        for block in self.blocks(scores=scores):
            score = block.scores
            for element, store in enumerate(stores):
                store.add_rows(
                    block.rows,
                    block.columns,
                    block.allowed,
                    block.attention[element],
                    None if score is None else score[element],
                )
            if look is not None:
                look(block)

    def output(self, rows: Tensor) -> Tensor:
        """Compute the output of some queries: (elements, heads, rows, value dim)."""
        call = self.attention
        at = rows.to(call.query.device)
        if not self.after and self._are_few(rows):
            with naming_shapes(call):
                attention = tiles.some_rows(call, at)
                attention = torch.dropout(attention, call.dropout, train=call.dropout > 0)
                some = attention @ call.value
            return some[:, self.own] if len(self.own) < some.shape[1] else some
        return self._output()[:, :, at]

    def _are_few(self, rows: Tensor) -> bool:
        """Return whether queries are computed by themselves, without choosing an engine."""
        call = self.attention
        size = 4 * len(rows) * call.batch_heads * self.graph.num_keys
        return _FEW_ROWS * len(rows) <= call.query.shape[2] and size <= tiles.BLOCK_BYTES

    def _output(self) -> Tensor:
        if not self.after:
            with naming_shapes(self.attention):
                whole: Tensor = choose(self.attention).run(self.attention)
            return whole[:, self.own] if len(self.own) < whole.shape[1] else whole
        return torch.cat([self.times_values(block) for block in self.blocks()], dim=2)

    def times_values(self, block: RowBlock) -> Tensor:
        """Multiply a block's attention with the values."""
        value, dropout = self.attention.value, self.attention.dropout
        assert value is not None
        if len(self.own) < value.shape[1]:
            value = value[:, self.own]
        columns = block.columns
        value = value[:, :, columns if isinstance(columns, slice) else columns.to(value.device)]
        attention = torch.dropout(block.attention, dropout, train=dropout > 0)
        return attention @ value


@dataclass(frozen=True, eq=False)
class EdgePart(Part):
    """Heads of a reading whose edges are listed."""

    def edge_blocks(self) -> Iterator[EdgeBlock]:
        """Walk whole neighbourhoods of the part's edited attention: (elements, heads, edges)."""
        key, query = self.graph.edge_index
        for block in self._blocks():
            score, attention = block.scores[:, self.own], block.attention[:, self.own]
            for edit in self.after:
                ends = query[block.edges], key[block.edges]
                attention = edit.shared_on_edges(attention, block.edges, *ends, self.reading)
            yield EdgeBlock(block.edges, score, attention)

    def dense(self, *, scores: bool = True) -> Tensor:
        """Return the whole edited attention, (elements, heads, queries, keys)."""
        whole = self._empty()
        key, query = self.graph.edge_index.to(whole.device)
        for some, _, attention in self.edge_blocks():
            whole[:, :, query[some], key[some]] = attention
        return whole

    def _blocks(self) -> Iterator[EdgeBlock]:
        reading = self.reading
        is_known = self.attention is reading.attention and not torch.is_grad_enabled()
        if is_known and isinstance(reading, EdgeReading):
            features = self.attention.edge_features
            assert features is not None
            whole = slice(0, reading.unedited.shape[1])
            yield EdgeBlock(whole, features.T[None], reading.unedited[None])
            return
        yield from edges.edge_blocks(self.attention)

    def store(
        self,
        stores: Sequence[KeptEdges],
        *,
        scores: bool,
        look: Callable[[RowBlock], None] | None = None,
    ) -> None:
        """Keep the edges of each element in its store; there are no blocks to look at."""
        for some, score, attention in self.edge_blocks():
            for element, store in enumerate(stores):
                store.add_edges(some, attention[element], score[element] if scores else None)

    def output(self, rows: Tensor) -> Tensor:
        """Compute the output of some queries: (elements, heads, rows, value dim)."""
        return self._output()[:, :, rows.to(self.attention.query.device)]

    def _output(self) -> Tensor:
        if not self.after:
            return super()._output()
        attention = torch.cat([block.attention for block in self.edge_blocks()], dim=-1)
        call, own, matrix = self.attention, self.own, self.attention.features_to_value
        some = replace(
            call,
            query=call.query[:, own],
            key=call.key[:, own],
            value=call.value[:, own],
            features_to_value=None if matrix is None else matrix[own],
        )
        output: Tensor = edges.times_values(some, attention)
        return output
