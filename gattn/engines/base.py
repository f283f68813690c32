"""What every engine is asked."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from gattn.errors import ContractError, ShapeError
from gattn.graph import TokenGraph
from gattn.neighbourhoods import Neighbourhoods
from gattn.normalizers import Normalizer, Softmax
from gattn.normalizers.base import widened
from gattn.weights.base import (
    DotForm,
    Positions,
    Tree,
    WeightFunction,
    map_tree,
)


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
    attention that is dropped at random. `compile` asks for the weight function to be compiled.
    """

    query: Tensor
    key: Tensor
    graph: TokenGraph | EdgeList
    weight: WeightFunction
    normalizer: Normalizer
    value: Tensor | None = None
    edge_features: Tensor | None = None
    dropout: float = 0.0
    compile: bool = False

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

    @cached_property
    def positions(self) -> Positions:
        """The positions of queries and keys."""
        device = self.query.device
        query = torch.arange(self.graph.num_queries, device=device) + self.graph.query_offset
        return Positions(query, torch.arange(self.graph.num_keys, device=device))

    @cached_property
    def edge_index(self) -> Tensor:
        """The edges ``[key; query]`` beside the tensors; a rule lists its edges on the CPU."""
        return self.graph.edge_index.to(self.query.device)

    @cached_property
    def edges(self) -> tuple[Neighbourhoods, Tensor | None]:
        """The edges sorted by query, and the given number of each where they were not."""
        if isinstance(self.graph, TokenGraph):
            return _neighbourhoods(self.graph, self.query.device), None
        key, query = self.edge_index
        return Neighbourhoods.from_pairs(query, key, self.graph.num_queries, self.graph.num_keys)

    @property
    def heads(self) -> int:
        """How many heads there are, of all batch elements."""
        return math.prod(self.query.shape[:2])

    @cached_property
    def edge_width(self) -> int:
        """The most numbers that a token brings to each edge, in all heads of the batch."""
        return self.heads * max(_widest(side) for side in self.sides)

    @property
    def tile_width(self) -> int:
        """The most numbers that a pair takes on a tile, in all heads of the batch."""
        in_steps = _scores_each_pair(self.weight) and not self.compile
        return self.edge_width if in_steps else self.heads

    @cached_property
    def sides(self) -> tuple[Tree, Tree]:
        """What the weight function prepared for the queries and for the keys."""
        return self.weight.prepare(self.query, self.key, self.positions)

    @cached_property
    def dot_form(self) -> DotForm | None:
        """The whole score as a dot product plus terms of pairs, where it is one.

        In at least float32, batch and heads in full.
        """
        query, key = (map_tree(widened, side) for side in self.sides)
        form = self.weight.dot_form(query, key)
        if form is None or form.query is None or form.key is None:
            return form
        lead = self.query.shape[:2]
        query, key = (x.expand(*lead, *x.shape[2:]) for x in (form.query, form.key))
        return DotForm(query, key, form.bias)

    @cached_property
    def operands(self) -> tuple[Tree, Tree]:
        """What tiles are scored from: the dot form's sides, or what was prepared."""
        form = self.dot_form
        return self.sides if form is None else (form.query, form.key)

    @property
    def is_shared_out_by_softmax(self) -> bool:
        """Whether the normalizer is the plain softmax that torch's kernels know."""
        return type(self.normalizer) is Softmax and not self.normalizer.has_sink


_KNOWN: WeakKeyDictionary[TokenGraph, dict[torch.device, Neighbourhoods]] = WeakKeyDictionary()


def _neighbourhoods(graph: TokenGraph, device: torch.device) -> Neighbourhoods:
    known = _KNOWN.setdefault(graph, {})
    if device not in known:
        pointer, key = graph.pointer.to(device), graph.edge_index[0].to(device)
        known[device] = Neighbourhoods(pointer, key, graph.num_keys)
    return known[device]


def _widest(tree: Tree) -> int:
    if isinstance(tree, tuple):
        return max((_widest(branch) for branch in tree), default=1)
    return 1 if tree is None else tree.shape[-1]


def _scores_each_pair(weight: WeightFunction) -> bool:
    """Say whether some part of a weight function has no faster path than the pair itself."""
    return any(
        type(part).on_tile is WeightFunction.on_tile
        and type(part).dot_form is WeightFunction.dot_form
        for part in weight.modules()
        if isinstance(part, WeightFunction)
    )


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
