"""One call of graph attention, checked: what every engine is given."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gattn.caching import cached_operand, cached_property, cached_tensor
from gattn.engines.call.edge_list import EdgeList, check_features
from gattn.engines.tensors.moving import moved
from gattn.errors import ShapeError
from gattn.graph.rules.neighbourhoods import Neighbourhoods
from gattn.graph.token_graph import TokenGraph
from gattn.normalizers import Normalizer, Softmax
from gattn.normalizers.base import HALF, widened
from gattn.weights.base import Tree, WeightFunction, map_tree
from gattn.weights.pairs import DotForm, Positions


@dataclass(frozen=True)
class AttentionCall:
    """One call of graph attention, its leading dimensions flattened to one batch.

    `query` (B, H, Q, D), `key` (B, H, K, D) and `value` (B, H, K, V), which only outputs need;
    `edge_features` (E, F) in the graph's edge order, or (Q, K, F); `dropout` is the share of the
    attention that is dropped at random. `compile` asks for the weight function to be compiled.
    `first_key` is the position of the first key: a sliding cache has dropped those before it.
    `features_to_value` (H, F, V) turns an edge's features into what it adds to its key's value.
    """

    query: Tensor
    key: Tensor
    graph: TokenGraph | EdgeList
    weight: WeightFunction
    normalizer: Normalizer
    value: Tensor
    edge_features: Tensor | None = None
    dropout: float = 0.0
    compile: bool = False
    first_key: int = 0
    features_to_value: Tensor | None = None

    def __post_init__(self) -> None:
        queries, keys = self.query.shape[-2], self.key.shape[-2]
        graph, device = self.graph, self.graph.device
        if (graph.num_queries, graph.num_keys) != (queries, keys):
            raise ShapeError(
                f"The graph has {graph.num_queries} queries and {graph.num_keys} keys, the "
                f"tensors have {queries} and {keys}; build the graph for those sizes."
            )
        if device is not None and device != self.query.device:
            raise ShapeError(
                f"The graph's edges are on {device}, the tensors on {self.query.device}; "
                f"move them there with .to({str(self.query.device)!r})."
            )
        if self.edge_features is not None:
            check_features(self.edge_features, graph)

    @cached_property
    def positions(self) -> Positions:
        """The positions of queries and keys."""
        graph, first = self.graph, self.first_key
        start = graph.query_offset + first
        query, key = range(start, start + graph.num_queries), range(first, first + graph.num_keys)
        return Positions(query, key, self.query.device)

    @cached_tensor
    def edge_index(self) -> Tensor:
        """The edges ``[key; query]`` on the tensors' device; a rule lists its edges on the CPU."""
        return moved(self.graph.edge_index, self.query.device)

    @property
    def edges(self) -> Neighbourhoods:
        """The edges sorted by query, on the tensors' device."""
        return self.graph.neighbourhoods.to(self.query.device)

    @property
    def batch_heads(self) -> int:
        """The number of heads in all batch elements together."""
        return math.prod(self.query.shape[:2])

    @cached_property
    def edge_width(self) -> int:
        """The most numbers that a token brings to an edge, in all heads of the batch."""
        return self.batch_heads * max(_widest(side) for side in self.sides)

    @cached_property
    def is_scored_pair_by_pair(self) -> bool:
        """Whether a part of the weight function has no faster path than the pair itself."""
        return any(
            type(part).on_tile is WeightFunction.on_tile
            and type(part).dot_form is WeightFunction.dot_form
            for part in self.weight.modules()
            if isinstance(part, WeightFunction)
        )

    @cached_property
    def is_finite(self) -> bool:
        """Whether the dot form's sides are free of NaN and infinity."""
        form = self.kernel_form
        if form is None or form.query is None or form.key is None or form.query.is_meta:
            return True
        kind = torch.promote_types(form.query.dtype, torch.float32)
        sums = (side.detach().sum(dtype=kind) for side in (form.query, form.key))
        return all(map(math.isfinite, sums))

    @property
    def wants_gradient(self) -> bool:
        """Whether the output has a gradient, judging by the tensors and parameters."""
        known = (self.query, self.key, self.value, self.edge_features, self.features_to_value)
        learned = (*self.weight.parameters(), *self.normalizer.parameters())
        return torch.is_grad_enabled() and any(
            x is not None and x.requires_grad for x in (*known, *learned)
        )

    @property
    def tile_width(self) -> int:
        """The most numbers that a pair takes on a tile, in all heads of the batch."""
        in_steps = self.is_scored_pair_by_pair and not self.compile
        return self.edge_width if in_steps else self.batch_heads

    @cached_operand
    def sides(self) -> tuple[Tree, Tree]:
        """What the weight function prepared for the queries and for the keys."""
        return self.weight.prepare(self.query, self.key, self.positions)

    @cached_operand
    def dot_form(self) -> DotForm | None:
        """The whole score as a dot product plus terms of pairs, if it is one.

        In at least float32, with all batch elements and heads.
        """
        query, key = (map_tree(widened, side) for side in self.sides)
        form = self.weight.dot_form(query, key)
        return None if form is None else self._for_all_heads(form)

    @cached_operand
    def operands(self) -> tuple[Tree, Tree]:
        """What pairs are scored from: the dot form's sides, or what was prepared, tokens first."""
        form = self.dot_form
        if form is not None:
            return form.query, form.key
        return map_tree(_tokens_first, self.sides[0]), map_tree(_tokens_first, self.sides[1])

    @cached_operand
    def kernel_form(self) -> DotForm | None:
        """The dot form for torch's kernels: in half precision if its sides were prepared in it.

        Others, such as sums of dot products, would be rounded once more.
        """
        if self.value.dtype in HALF:
            form = self.weight.dot_form(*self.sides)
            if form is not None and all(map(_holds, self.sides, (form.query, form.key))):
                return self._for_all_heads(form)
        return self.dot_form

    def _for_all_heads(self, form: DotForm) -> DotForm:
        lead = self.query.shape[:2]
        if form.query is None or form.key is None:
            return form
        if form.query.shape[:2] == lead == form.key.shape[:2]:
            return form
        query, key = (x.expand(*lead, *x.shape[2:]) for x in (form.query, form.key))
        return form._replace(query=query, key=key)

    @property
    def token_graph(self) -> TokenGraph:
        """The graph, for engines whose `can_run` refuses lists of edges that are none."""
        graph = self.graph if isinstance(self.graph, TokenGraph) else self.graph.token_graph
        assert graph is not None
        return graph

    @property
    def temperature(self) -> float:
        """What the plain softmax divides scores by; see `is_shared_out_by_softmax`."""
        assert isinstance(self.normalizer, Softmax)
        return self.normalizer.temperature

    @property
    def is_shared_out_by_softmax(self) -> bool:
        """Whether the normalizer is the plain softmax that torch's kernels know."""
        return type(self.normalizer) is Softmax and not self.normalizer.has_sink


def _tokens_first(tokens: Tensor) -> Tensor:
    """Lay (B, H, N, .) out so that all numbers of a token, in the whole batch, lie together."""
    return tokens.permute(2, 0, 1, 3).contiguous().permute(1, 2, 0, 3)


def _holds(tree: Tree, tensor: Tensor | None) -> bool:
    """Return whether a tensor is one of a tree's."""
    if isinstance(tree, tuple):
        return any(_holds(branch, tensor) for branch in tree)
    return tensor is not None and tree is tensor


def _widest(tree: Tree) -> int:
    if isinstance(tree, tuple):
        return max((_widest(branch) for branch in tree), default=1)
    return 1 if tree is None else tree.shape[-1]


_OF_SHAPES = re.compile(r"size|shape|dimension|out of (range|bounds)", re.IGNORECASE)


class naming_shapes:  # noqa: N801 - a context, which is entered in each call
    """Turn torch's errors about shapes that do not fit into one that names their owners.

    Autocast is off inside: tensors have the precision that they were given, and sums float32.
    """

    def __init__(self, call: AttentionCall) -> None:
        self._call = call
        device = call.query.device.type
        is_on = device in ("cpu", "cuda") and torch.is_autocast_enabled(device)
        self._plain = torch.autocast(device, enabled=False) if is_on else None

    def __enter__(self) -> None:
        if self._plain is not None:
            self._plain.__enter__()

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if self._plain is not None:
            self._plain.__exit__(kind, error, trace)
        if kind not in (RuntimeError, IndexError):
            return
        reason, call = str(error).partition("\n")[0], self._call
        if _OF_SHAPES.search(reason):
            raise ShapeError(
                f"{call.weight!r} and {call.normalizer!r} do not fit queries (batch, heads, "
                f"tokens, dim) {tuple(call.query.shape)} and keys {tuple(call.key.shape)}: "
                f"{reason} Build them for these heads and dims, or check the tensors."
            ) from error
