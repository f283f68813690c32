"""The kept edges of a layer's heads, collected while its rows are computed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import replace
from itertools import chain
from math import prod
from typing import Any

import torch
from torch import Tensor

from gattn.engines.kernels.emitting import EmittedEdges
from gattn.engines.tensors.moving import moved
from gattn.errors import CaptureError
from gattn.graph.rules.edges import Edges
from gattn.graph.rules.neighbourhoods import padded_rows, pointer_of
from gattn.graph.token_graph import TokenGraph
from gattn.heads.head import AttentionGraph, Ints
from gattn.heads.store import apart
from gattn.heads.store.buffers import Buffer, Mark, append_together, reserve
from gattn.heads.store.consecutive import ConsecutiveGraph, check_order, joined
from gattn.heads.store.rows import masses, picked, widened
from gattn.heads.store.transfer import count_of, on_host
from gattn.keep import All, Keep, sizes_of
from gattn.largest import flat_indices

_FEW = 4096  # NumPy copies fewer values faster than torch


class KeptEdges:
    """The kept edges of several heads, on one token graph or several consecutive ones.

    Blocks come in the order of their queries, on any device; kept edges are in main memory.

    Parameters
    ----------
    heads : sequence of int
        The heads' numbers.
    keep : Keep
        Which edges to keep. `All` stores only values: the graph says which edges they are.
    scores : bool
        Whether to store scores.
    dtype : torch.dtype
        The dtype of the values; half precision is stored as float32.
    """

    def __init__(self, heads: Sequence[int], keep: Keep, scores: bool, dtype: torch.dtype) -> None:
        self._heads, self._keep, self._scores = heads, keep, scores
        self._dtype = torch.float64 if dtype == torch.float64 else torch.float32
        kinds = {"attention": self._dtype}
        if scores:
            kinds["score"] = self._dtype
        self._key_dtype = torch.int32
        if not isinstance(keep, All):
            kinds["key"] = self._key_dtype
        self._kept = {name: [Buffer(kind) for _ in heads] for name, kind in kinds.items()}
        self._degree = torch.zeros(len(heads), 0, dtype=torch.long, device="cpu")
        self._mass = torch.zeros(len(heads), 0, dtype=self._dtype, device="cpu")
        self._sum = torch.zeros_like(self._mass)
        self._pieces: list[ConsecutiveGraph] = []

    @property
    def keep(self) -> Keep:
        """Which edges it keeps."""
        return self._keep

    def begin(self, graph: TokenGraph, first_key: int = 0) -> None:
        """Begin the next rows.

        Parameters
        ----------
        graph : TokenGraph
            Who may attend to whom. Its queries follow those of the last graph; in a bipartite
            graph, they are further queries of the same keys.
        first_key : int
            The key from which its positions count: a sliding cache has dropped those before.
        """
        piece = ConsecutiveGraph(graph.on_host.sorted(), first_key, 0)
        if self._pieces:
            piece = piece._replace(row=self._pieces[-1].stop)
            check_order(self._pieces[0], piece)
            self._widen_keys(piece)
        else:
            self._widen_keys(piece)
            capacity = self._keep.capacity(piece.graph.in_degree) or 0
            for buffers in self._kept.values():
                reserve(buffers, capacity)
        self._pieces.append(piece)
        self._degree, self._mass, self._sum = (
            widened(rows, piece.stop) for rows in (self._degree, self._mass, self._sum)
        )

    def _widen_keys(self, piece: ConsecutiveGraph) -> None:
        """Store keys in eight bytes where four do not hold the last one."""
        last = piece.first_key + piece.graph.num_keys - 1
        if last <= torch.iinfo(self._key_dtype).max:
            return
        self._key_dtype = torch.int64
        for n, buffer in enumerate(keys := self._kept.get("key", [])):
            keys[n] = Buffer(torch.int64)
            keys[n].append(buffer.values())

    def mark(self) -> Mark:
        """Mark the current state, for `go_back`."""
        sizes = [len(buffer) for buffer in chain(*self._kept.values())]
        return Mark(len(self._pieces), sizes)

    def go_back(self, mark: Mark) -> None:
        """Forget everything after a mark."""
        del self._pieces[mark.pieces :]
        stop = self._pieces[-1].stop if self._pieces else 0
        for rows in (self._degree, self._mass, self._sum):
            rows[:, stop:] = 0
        for buffer, size in zip(chain(*self._kept.values()), mark.sizes, strict=True):
            buffer.cut(size)

    def add_rows(
        self,
        rows: slice,
        columns: slice | Tensor,
        allowed: Tensor | None,
        attention: Tensor,
        scores: Tensor | None,
    ) -> None:
        """Keep edges of a block of whole rows of the graph begun last.

        Parameters
        ----------
        rows : slice
            The queries, counted from its first.
        columns : slice or Tensor
            The keys that hold all their edges: a range, or rising numbers.
        allowed : Tensor or None
            Booleans (rows, columns); None if every pair is an edge.
        attention, scores : Tensor
            Shape (heads, rows, columns). Attention is 0 for pairs that are not edges.
        """
        values = self._values(attention, scores)
        attention = values["attention"]
        sizes = sizes_of(attention)
        mass = sizes.sum(-1)
        weighed = mass, mass if sizes is attention else attention.sum(-1)
        if isinstance(self._keep, All):
            self._add(rows, *weighed, picked(values, allowed))
            return
        present = attention.new_ones((), dtype=torch.bool) if allowed is None else allowed
        places = self._keep.places(attention, moved(present, attention.device))
        width = attention.shape[2]
        line = places // width
        key = places - line * width
        key = key + columns.start if isinstance(columns, slice) else moved(columns, key.device)[key]
        self._add(rows, *weighed, *self._taken(rows, places, line, key, values))

    def add_edges(self, edges: slice, attention: Tensor, scores: Tensor | None) -> None:
        """Keep edges of whole neighbourhoods: (heads, edges) in the graph's edge order."""
        values = self._values(attention, scores)
        attention = values["attention"]
        key, query = self._pieces[-1].graph.edge_index[:, edges]
        if not len(query):
            return
        rows = slice(int(query[0]), int(query[-1]) + 1)
        groups = padded_rows(query - rows.start, rows.stop - rows.start)
        device = attention.device
        key, row = (moved(x, device) for x in (key, query - rows.start))
        weighed = masses(attention, row, rows.stop - rows.start)
        if isinstance(self._keep, All):
            self._add(rows, *weighed, values)
            return
        chosen = torch.zeros(attention.shape, dtype=torch.bool, device=device)
        for padded in groups:
            group, present, slot = (moved(x, device) for x in padded)
            block = attention.index_select(1, group.flatten()).view(-1, *group.shape)
            kept = self._keep.select(block, present).flatten(1)
            edge = group.flatten().index_select(0, slot)
            chosen.index_copy_(1, edge, kept.index_select(1, slot))
        places = flat_indices(chosen)
        head = places // len(query)
        edge = places - head * len(query)
        line = row.index_select(0, edge).add_(head, alpha=rows.stop - rows.start)
        key = key.index_select(0, edge)
        self._add(rows, *weighed, *self._taken(rows, places, line, key, values))

    def add_emitted(self, edges: EmittedEdges) -> None:
        """Keep edges that kernels chose, those of all rows of the graph begun last."""
        piece, rows = self._pieces[-1], slice(0, self._pieces[-1].graph.num_queries)
        found = {
            "attention": edges.attention,
            "key": edges.key.to(self._key_dtype) + piece.first_key,
        }
        self._add(rows, edges.mass, edges.mass, found, edges.degree)

    @property
    def num_rows(self) -> int:
        """How many queries there are so far."""
        return self._pieces[-1].stop if self._pieces else 0

    @property
    def is_bipartite(self) -> bool:
        """Whether queries and keys are different tokens."""
        return bool(self._pieces) and self._pieces[0].graph.is_bipartite

    def first_rows(self, rows: int) -> KeptEdges:
        """Copy the first queries."""
        some = copy(self)
        some._pieces = [piece.first_rows(rows) for piece in self._pieces if piece.row < rows]
        if isinstance(self._keep, All):
            sizes = [sum(piece.graph.num_edges for piece in some._pieces)] * len(self._heads)
        else:
            sizes = self._degree[:, :rows].sum(1).tolist()
        some._kept = {
            name: [buffer.first(size) for buffer, size in zip(buffers, sizes, strict=True)]
            for name, buffers in self._kept.items()
        }
        for name in ("_degree", "_mass", "_sum"):
            setattr(some, name, getattr(self, name)[:, :rows].clone())
        return some

    def _values(self, attention: Tensor, scores: Tensor | None) -> dict[str, Tensor]:
        values = {"attention": attention.detach().to(self._dtype)}
        if self._scores and scores is not None:
            values["score"] = scores.detach().to(self._dtype)
        return values

    def _taken(
        self, rows: slice, places: Tensor, line: Tensor, key: Tensor, values: dict[str, Tensor]
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Take the edges at flat places, given the line and key of each; also count each row's.

        Lines number the rows of the first head, then those of the next.
        """
        shape = len(self._heads), rows.stop - rows.start
        taken = {name: block.take(places) for name, block in values.items()}
        key = (key + self._pieces[-1].first_key).to(self._key_dtype)
        return taken | {"key": key}, count_of(line, prod(shape)).view(shape)

    def _add(
        self,
        rows: slice,
        mass: Tensor,
        total: Tensor,
        edges: dict[str, Tensor],
        degree: Tensor | None = None,
    ) -> None:
        """Store edges of whole rows: as many of each head, or `degree` (heads, rows) of each row.

        Also note the mass and the sum of these rows, (heads, rows), and refuse NaN.
        """
        numbers = edges | {"mass": mass, "total": total}
        if degree is not None:
            numbers["degree"] = degree
        numbers = on_host(numbers)
        mass, first = numbers["mass"], self._pieces[-1].row
        self._mass[:, first:][:, rows] = mass
        self._sum[:, first:][:, rows] = numbers["total"]
        if bool(mass.isnan().any()):
            head, row = mass.isnan().nonzero()[0].tolist()
            raise CaptureError(
                f"The attention of head {self._heads[head]} is NaN at query {rows.start + row}; "
                "expected numbers. Look for NaN or infinity in the weights and inputs."
            )
        if degree is None:
            self._append(numbers)
            return
        self._degree[:, first:][:, rows] = numbers["degree"]
        self._append(numbers, numbers["degree"].sum(1).tolist())

    def _append(self, values: dict[str, Tensor], sizes: list[int] | None = None) -> None:
        """Append to each head's buffers: one row per head, or parts of one row with these sizes."""
        for name, buffers in self._kept.items():
            block = values[name]
            if sizes is None or len(set(sizes)) == 1:
                rows = block if sizes is None else block.view(len(buffers), sizes[0])
                if buffers and append_together(buffers, rows):
                    continue
            if sizes is not None and len(block) < _FEW * len(buffers):
                array, stop = block.numpy(), 0
                for buffer, size in zip(buffers, sizes, strict=True):
                    start, stop = stop, stop + size
                    buffer.append_few(array[start:stop])
                continue
            parts = block if sizes is None else block.split(sizes)
            for buffer, part in zip(buffers, parts, strict=True):
                buffer.append(part)

    def graphs(self, *, has_sink: bool, **attributes: Any) -> list[AttentionGraph]:
        """Build one attention graph per head; `attributes` are further fields of each."""
        return [AttentionGraph(**fields, **attributes) for fields in self.fields(has_sink)]

    def fields(self, has_sink: bool) -> Iterator[dict[str, Any]]:
        """List the fields of each head's attention graph, as far as they are known here."""
        total_edges: Ints = torch.cat([piece.graph.in_degree for piece in self._pieces]).numpy()
        graph = joined(self._pieces, of_all_edges=isinstance(self._keep, All))
        queries = self._pieces[-1].stop
        kept = {name: [one.values() for one in some] for name, some in self._kept.items()}
        graphs = self._kept_graphs(graph, kept.get("key"))
        masses = apart.copied(self._mass[:, :queries], self._dtype)
        for index, head in enumerate(self._heads):
            total = self._sum[index, :queries]
            yield {
                "graph": graphs[index],
                "attention": kept["attention"][index].numpy(),
                "total_mass": masses[index].numpy(),
                "total_edges": total_edges,
                "score": kept["score"][index].numpy() if self._scores else None,
                "sink": (1 - total).clamp_min(0).numpy() if has_sink else None,
                "head": head,
                "kept_by": (self._keep,),
            }

    def _kept_graphs(self, graph: TokenGraph, keys: Sequence[Tensor] | None) -> list[TokenGraph]:
        if keys is None:
            return [graph] * len(self._heads)
        if not all(buffer.is_apart for buffer in self._kept["key"]):
            keys = apart.copied(keys, self._key_dtype)
        pointers = apart.copied(map(pointer_of, self._degree[:, : graph.num_queries]), torch.long)
        lists = zip(pointers, keys, strict=True)
        return [replace(graph, rule=Edges(*one, graph.query_offset)) for one in lists]
