"""What every engine is asked."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from gattn.errors import ContractError, ShapeError
from gattn.graph import TokenGraph
from gattn.normalizers import Normalizer
from gattn.weights.base import (
    DotForm,
    Pairs,
    Positions,
    Tree,
    WeightFunction,
    map_tree,
    tile_scores,
)

EDGE_NUMBERS = 1 << 24
"""How many gathered numbers a block of edges holds at most."""


@dataclass(frozen=True)
class EdgeList:
    """Edges ``[key; query]`` in the caller's own order, duplicates and all."""

    edge_index: Tensor
    num_queries: int
    num_keys: int
    query_offset: int = 0

    def __post_init__(self) -> None:
        index = self.edge_index
        if index.dim() != 2 or index.shape[0] != 2 or index.dtype != torch.long:
            raise ShapeError(
                "edge_index must hold int64 numbers of shape (2, edges), rows key and query, not "
                f"{index.dtype} {tuple(index.shape)}."
            )
        if index.device.type != "cpu":  # Reading the values would stall a GPU.
            return
        sides = (("keys", index[0], self.num_keys), ("queries", index[1], self.num_queries))
        for row, (side, ends, size) in enumerate(sides):
            if len(ends) and (int(ends.min()) < 0 or int(ends.max()) >= size):
                raise ShapeError(
                    f"The {side} edge_index[{row}] must lie in 0 .. {size - 1}; they run from "
                    f"{int(ends.min())} to {int(ends.max())}."
                )

    @property
    def num_edges(self) -> int:
        """How many edges there are."""
        return self.edge_index.shape[1]

    @property
    def device(self) -> torch.device:
        """Where the edges are."""
        return self.edge_index.device


@dataclass(frozen=True)
class AttentionCall:
    """One call of graph attention, its leading dimensions flattened to one batch.

    `query` (B, H, Q, D), `key` (B, H, K, D) and, where outputs are wanted, `value` (B, H, K, V);
    `edge_features` (E, F) in the graph's edge order, or (Q, K, F); `dropout` is the share of the
    attention that is dropped at random.
    """

    query: Tensor
    key: Tensor
    graph: TokenGraph | EdgeList
    weight: WeightFunction
    normalizer: Normalizer
    value: Tensor | None = None
    edge_features: Tensor | None = None
    dropout: float = 0.0

    def __post_init__(self) -> None:
        queries, keys = self.query.shape[-2], self.key.shape[-2]
        graph = self.graph
        if (graph.num_queries, graph.num_keys) != (queries, keys):
            raise ShapeError(
                f"The graph has {graph.num_queries} queries and {graph.num_keys} keys, the "
                f"tensors have {queries} and {keys}; build the graph for those sizes."
            )
        device = graph.device
        if device is not None and device != self.query.device:
            raise ShapeError(
                f"The graph's edges are on {device}, the tensors on {self.query.device}; "
                f"move them there with .to({str(self.query.device)!r})."
            )
        features = self.edge_features
        if features is not None and features.dim() == 2:
            expected: tuple[int, ...] = (graph.num_edges,)
        else:
            expected = (queries, keys)
        if features is not None and tuple(features.shape[:-1]) != expected:
            raise ShapeError(
                f"edge_features must be (edges, features) = ({graph.num_edges}, F) or (queries, "
                f"keys, features) = ({queries}, {keys}, F), not {tuple(features.shape)}."
            )

    @property
    def positions(self) -> Positions:
        """The positions of queries and keys."""
        device = self.query.device
        query = torch.arange(self.graph.num_queries, device=device) + self.graph.query_offset
        return Positions(query, torch.arange(self.graph.num_keys, device=device))

    @cached_property
    def edge_index(self) -> Tensor:
        """The edges ``[key; query]`` beside the tensors; a rule lists its edges on the CPU."""
        return self.graph.edge_index.to(self.query.device)

    @property
    def width(self) -> int:
        """The most numbers that a token brings to each pair, in all heads of the batch."""
        return math.prod(self.query.shape[:2]) * max(_widest(side) for side in self.sides)

    @cached_property
    def sides(self) -> tuple[Tree, Tree]:
        """What the weight function prepared for the queries and for the keys."""
        return self.weight.prepare(self.query, self.key, self.positions)

    @cached_property
    def dot_form(self) -> DotForm | None:
        """The whole score as a dot product plus terms of pairs, where it is one."""
        return self.weight.dot_form(*self.sides)


def _widest(tree: Tree) -> int:
    if isinstance(tree, tuple):
        return max((_widest(branch) for branch in tree), default=1)
    return 1 if tree is None else tree.shape[-1]


@contextmanager
def naming_shapes(call: AttentionCall) -> Iterator[None]:
    """Turn what torch says of shapes that do not fit into an error that names their owners."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, IndexError) as error:
        reason = str(error).partition("\n")[0]
        raise ShapeError(
            f"{call.weight!r} and {call.normalizer!r} do not fit queries (batch, heads, tokens, "
            f"dim) {tuple(call.query.shape)} and keys {tuple(call.key.shape)}: {reason} Build them "
            "for these heads and dims, or check the tensors."
        ) from error


def score_edges(call: AttentionCall, edges: slice = slice(None)) -> Tensor:
    """Score edges of the graph's list: (B, H, E)."""
    key_index, query_index = call.edge_index[:, edges]
    query = map_tree(lambda x: x.transpose(1, 2)[:, query_index], call.sides[0])
    key = map_tree(lambda x: x.transpose(1, 2)[:, key_index], call.sides[1])
    positions, features = call.positions, call.edge_features
    if features is not None:
        is_list = features.dim() == 2
        features = features[edges] if is_list else features[query_index, key_index]
    pairs = Pairs(positions.query[query_index, None], positions.key[key_index, None], features)
    batch, heads = call.query.shape[:2]
    shape = (batch, len(query_index), heads)
    scores = checked_scores(call.weight(query, key, pairs), shape, call.weight)
    return scores.to(call.query.dtype).expand(shape).transpose(1, 2)


def edge_blocks(call: AttentionCall) -> Iterator[tuple[slice, slice]]:
    """Walk the edges of a token graph a few whole neighbourhoods at a time.

    Yields
    ------
    rows, edges : slice
        Some queries, and the edges of their neighbourhoods.
    """
    assert isinstance(call.graph, TokenGraph)
    pointer = call.graph.pointer.cpu()
    most, row = max(1, EDGE_NUMBERS // max(call.width, 1)), 0
    while row < call.graph.num_queries:
        reach = torch.searchsorted(pointer, pointer[row] + most, right=True)
        stop = max(int(reach) - 1, row + 1)
        yield slice(row, stop), slice(int(pointer[row]), int(pointer[stop]))
        row = stop


def score_tile(call: AttentionCall, rows: slice, columns: slice) -> Tensor:
    """Score a block of queries against a block of keys: (B, H, rows, columns)."""
    positions = call.positions
    query = map_tree(lambda x: x[:, :, rows], call.sides[0])
    key = map_tree(lambda x: x[:, :, columns], call.sides[1])
    features = None if call.edge_features is None else call.edge_features[rows, columns]
    pairs = Pairs(positions.query[rows, None, None], positions.key[None, columns, None], features)
    batch, heads = call.query.shape[:2]
    shape = (batch, heads, rows.stop - rows.start, columns.stop - columns.start)
    scores = checked_scores(tile_scores(call.weight, query, key, pairs), shape, call.weight)
    return scores.to(call.query.dtype).expand(shape)


def checked_scores(scores: Tensor, shape: tuple[int, ...], weight: WeightFunction) -> Tensor:
    """Hold what a weight function returned to its contract: one score a pair and head.

    The pair axes must be there in full; batch and heads may be 1 or, leading, missing.
    """
    missing = len(shape) - scores.dim()
    padded = (1,) * missing + tuple(scores.shape)
    heads = 2 if len(shape) == 3 else 1
    wrong = [
        axis
        for axis, (size, wanted) in enumerate(zip(padded, shape, strict=False))
        if size != wanted and not (size == 1 and axis in (0, heads))
    ]
    if missing in (0, 1) and wrong == [heads]:
        raise ShapeError(
            f"{weight} scores {padded[heads]} heads, but the tensors have {shape[heads]}; build "
            "it for that number."
        )
    if missing not in (0, 1) or wrong:
        raise ContractError(
            f"{weight} must return one score for each pair and head, (..., heads) or (..., 1): "
            f"{shape} here, but it returned {tuple(scores.shape)}. Reduce the feature axis only, "
            "for example with .sum(-1)."
        )
    return scores
