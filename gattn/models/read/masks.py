"""Reads the masks of attention calls: who may attend to whom, and what is added to scores."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gattn.caching import cached_property
from gattn.graph.rules.base import Rule
from gattn.graph.rules.edges import Edges
from gattn.graph.rules.simple import Causal, Complete, Window
from gattn.graph.token_graph import TokenGraph
from gattn.models.read.seen_call import LEAST, SeenCall
from gattn.models.read.unread import are_texts, may_be_unread, unread

if TYPE_CHECKING:
    from gattn.models.read.places import Side

_FEW_PAIRS = 1 << 22


@dataclass(eq=False)
class Mask:
    """The mask of a call: None, booleans, or numbers that are added to scores.

    `values` broadcasts to (batch, heads, queries, keys); where it is None, every key may be read,
    or if `is_causal` all up to the query's own. An edge is absent below -9,000, since some mask by
    -10,000; between the windows of Swin models, whose mask is -100, below -50. They `are_scores`
    where a model shows only its softmax; where they `are_ranked`, those that are not among the
    largest are -inf. Values may decide what it takes away, `is_of_values`.
    """

    values: Tensor | None
    is_causal: bool = False
    are_scores: bool = False
    are_ranked: bool = False
    least: float = LEAST
    is_of_values: bool = False
    _graphs: dict[object, TokenGraph] = field(default_factory=dict)
    _real: dict[object, Tensor] = field(default_factory=dict)
    _unread: dict[object, Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, call: SeenCall) -> Mask:
        """Read the mask of a call."""
        mask = call.mask
        if mask is None:
            return cls(None, is_causal=call.is_causal)
        if mask.shape[-1] == 1:  # It says the same of all keys.
            mask = mask.expand(*mask.shape[:-1], call.key.shape[2])
        of_values = call.tokens is not None and call.tokens.has_mask_of_values
        return cls(
            mask,
            are_scores=call.is_scores,
            are_ranked=call.is_ranked,
            least=call.least,
            is_of_values=of_values,
        )

    @cached_property
    def present(self) -> Tensor:
        """Where an edge is, booleans of the shape of `values`: NaN takes none."""
        assert self.values is not None
        if self.values.dtype == torch.bool:
            return self.values
        return ~(self.values.detach() <= self.least)

    @cached_property
    def readable(self) -> Tensor:
        """Where an edge is, or would be if its score were among the largest."""
        if not self.are_ranked:
            return self.present
        assert self.values is not None
        return self.present | (self.values.detach() == -torch.inf)

    @cached_property
    def tells_padding(self) -> bool:
        """Whether what nobody may read is padding: not where values choose keys for each query."""
        if self.values is None or not self.is_of_values or self.are_ranked:
            return self.values is not None
        return not bool((self.present != self.present[:, :, :1]).any())

    @cached_property
    def has_bias(self) -> bool:
        """Whether it adds to the scores of edges, or differs between heads."""
        if self.values is None:
            return False
        if self.are_scores:
            return True
        if self.values.shape[1] > 1 and bool((self.present != self.present[:, :1]).any()):
            return True
        if self.values.dtype == torch.bool:
            return False
        return bool(((self.values != 0) & self.present).any())

    @property
    def is_shared(self) -> bool:
        """Whether all elements of the batch share one mask."""
        return self.values is None or self.values.shape[0] == 1

    def bias(self, element: int, dtype: torch.dtype) -> Tensor | None:
        """Return what it adds to the scores of one element: (heads or 1, queries or 1, keys)."""
        if not self.has_bias:
            return None
        assert self.values is not None
        one = element if self.values.shape[0] > 1 else 0
        values, present = self.values[one], self.present[one]
        if values.dtype == torch.bool:
            values = torch.zeros(values.shape, dtype=dtype, device=values.device)
        if len(values) > 1:
            return values.to(dtype).masked_fill(~present, -torch.inf)
        return values.to(dtype)

    def reads_itself(self, count: int, offset: int, length: int) -> Tensor:
        """Find the queries that are not padding: that read themselves, or are read by others.

        Gives booleans (elements, queries), on the CPU; `offset` is the first query's slot among the
        keys.
        """
        name = count, offset, length
        if name not in self._real:
            self._real[name] = self._reads_itself(count, offset, length)
        return self._real[name]

    def _reads_itself(self, count: int, offset: int, length: int) -> Tensor:
        if not self.tells_padding:
            return self.is_used(count, offset, length)
        present = self.readable[..., offset : offset + length]
        if present.shape[-1] < length:
            return torch.ones(count, length, dtype=torch.bool, device="cpu")
        if present.shape[2] == 1:
            return present.any(1)[:, 0].expand(count, -1).cpu()
        itself = present.diagonal(dim1=2, dim2=3).any(1)
        if not bool(itself.all()):
            read = (present & itself[:, None, :, None]).any(2).any(1)
            itself = itself | read
        if not bool(itself.any()):  # Who reads all but itself says nothing about padding.
            return self.is_used(count, offset, length)
        return itself.expand(count, -1).cpu()

    def unread(self, count: int, offset: int, length: int) -> Tensor:
        """Find the queries that may be padding that reads itself, as `reads_itself` gives them."""
        name = count, offset, length
        if name not in self._unread:
            found = torch.zeros(count, length, dtype=torch.bool, device="cpu")
            if self.values is not None and may_be_unread(self.readable, offset, length):
                found = unread(self.reads(count), offset)
            self._unread[name] = found
        return self._unread[name]

    def untold(self, told: Tensor, offset: int) -> Tensor:
        """Find queries that may be padding of texts, though they are not `told` to be padding."""
        found = self.unread(len(told), offset, told.shape[1]) & ~told
        if not bool(found.any()):
            return found
        return found & are_texts(self.reads(len(told)), found | told, offset)[:, None]

    def reads(self, count: int) -> Tensor:
        """Return which keys queries may read in any head: (elements, queries, keys), on the CPU."""
        return self.readable.any(1).expand(count, -1, -1).cpu()

    @property
    def sees_ahead(self) -> bool:
        """Whether some query may read the key after its own."""
        if self.values is None:
            return not self.is_causal
        rows = self.readable.shape[2]
        present = self.readable if rows > 1 else self.readable.expand(-1, -1, 2, -1)
        return bool(present.diagonal(offset=1, dim1=2, dim2=3).any())

    def is_used(self, count: int, offset: int, length: int) -> Tensor:
        """Find the queries that read anything or are read, as `reads_itself` gives them."""
        if self.values is None or self.values.shape[-1] < offset + length:
            return torch.ones(count, length, dtype=torch.bool, device="cpu")
        present = self.readable.any(1)
        is_read = present[..., offset : offset + length].any(1)
        reads = present.any(2)
        return (reads | is_read).expand(count, -1).cpu()

    def is_read(self, count: int, length: int) -> Tensor:
        """Find the keys that any query may read: (elements, keys), on the CPU."""
        if not self.tells_padding:
            return torch.ones(count, length, dtype=torch.bool, device="cpu")
        return self.readable.any(1).any(1).expand(count, length).cpu()

    def graph(self, element: int, queries: Side, keys: Side, is_bipartite: bool) -> TokenGraph:
        """Return the token graph of one element's real tokens: a rule if possible, else edges."""
        shared = 0 if self.is_shared else element
        rows, columns = len(queries), len(keys)
        order = None if keys.in_order else tuple(keys.slots.tolist())
        name = shared, rows, columns, queries.first, keys.first, is_bipartite, order
        if name not in self._graphs:
            self._graphs[name] = self._graph(shared, queries, keys, is_bipartite)
        return self._graphs[name]

    def _graph(self, element: int, queries: Side, keys: Side, is_bipartite: bool) -> TokenGraph:
        rows, columns = len(queries), len(keys)
        offset = 0 if is_bipartite else queries.first - keys.first
        if self.values is None:
            ends_with_keys = not is_bipartite and rows == 1 and 0 < offset == columns - 1
            rule: Rule = Causal() if self.is_causal or ends_with_keys else Complete()
            return TokenGraph(rule, rows, columns, offset, is_bipartite)
        allowed = self.present[element].any(0)
        allowed = taken(allowed, 0, queries) if allowed.shape[0] > 1 else allowed
        allowed = taken(allowed, 1, keys).cpu().expand(rows, columns)
        return _named(allowed, offset, is_bipartite)


def taken(values: Tensor, dim: int, side: Side) -> Tensor:
    """Take a side's real tokens along a dimension; the tensor itself if that is all of them."""
    if side.in_order and len(side) == values.shape[dim]:
        return values
    return values.index_select(dim, side.slots.to(values.device))


def _named(allowed: Tensor, offset: int, is_bipartite: bool) -> TokenGraph:
    """Find the rule that allows exactly these pairs, or list them."""
    rows, columns = allowed.shape
    edges = int(allowed.sum())
    if is_bipartite:
        candidates: list[Rule] = [Complete()]
    else:
        last = min(columns - 1, offset + rows - 1)
        reach = max(last - int(allowed[-1].int().argmax()), 0) if rows and columns else 0
        ahead = min(rows, columns) - 1
        both = int(allowed[0].sum()) - 1 - offset if rows and not offset else 0
        square = [Complete(), Causal()] if not offset else [Causal()]
        candidates = [*square, Window(reach, 0)]
        if 0 < both < ahead:
            candidates.append(Window(both, both))
    for rule in candidates:
        graph = TokenGraph(rule, rows, columns, offset, is_bipartite)
        if graph.num_edges == edges and _says(graph, allowed):
            return graph
    query, key = allowed.nonzero(as_tuple=True)
    edge_rule = Edges.from_pairs(query, key, rows, offset)
    return TokenGraph(edge_rule, rows, columns, offset, is_bipartite)


def _says(graph: TokenGraph, allowed: Tensor) -> bool:
    """Compare a graph with booleans, a few rows at a time."""
    rows, columns = allowed.shape
    height = max(_FEW_PAIRS // max(columns, 1), 1)
    for start in range(0, rows, height):
        some = slice(start, min(start + height, rows))
        if not torch.equal(graph.allowed(some, slice(0, columns)), allowed[some]):
            return False
    return True
