"""One call of graph attention, checked: what every engine is given."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from gattn.caching import cached_operand, cached_property, cached_tensor
from gattn.engines.edge_list import EdgeList, check_features
from gattn.errors import ShapeError
from gattn.graph.rules.neighbourhoods import Neighbourhoods
from gattn.graph.token_graph import TokenGraph
from gattn.normalizers import Normalizer, Softmax
from gattn.normalizers.base import as_normalizer, widened
from gattn.weights.base import (
    DotForm,
    PairFunction,
    Positions,
    Tree,
    WeightFunction,
    as_weight_function,
    map_tree,
)
from gattn.weights.dot import ScaledDotProduct


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

    @cached_tensor
    def positions(self) -> Positions:
        """The positions of queries and keys."""
        device = self.query.device
        query = torch.arange(self.graph.num_queries, device=device) + self.graph.query_offset
        key = torch.arange(self.graph.num_keys, device=device)
        return Positions(query + self.first_key, key + self.first_key)

    @cached_tensor
    def edge_index(self) -> Tensor:
        """The edges ``[key; query]`` on the tensors' device; a rule lists its edges on the CPU."""
        return self.graph.edge_index.to(self.query.device)

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
        form = self.dot_form
        if form is None or form.query is None or form.key is None or form.query.is_meta:
            return True
        return all(bool(side.detach().sum().isfinite()) for side in (form.query, form.key))

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
        if form is None or form.query is None or form.key is None:
            return form
        lead = self.query.shape[:2]
        query, key = (x.expand(*lead, *x.shape[2:]) for x in (form.query, form.key))
        return form._replace(query=query, key=key)

    @cached_operand
    def operands(self) -> tuple[Tree, Tree]:
        """What pairs are scored from: the dot form's sides, or what was prepared, tokens first."""
        form = self.dot_form
        if form is not None:
            return form.query, form.key
        return map_tree(_tokens_first, self.sides[0]), map_tree(_tokens_first, self.sides[1])

    @cached_property
    def kernel_dtype(self) -> torch.dtype:
        """The precision for a fused kernel: half precision only if that rounds nothing."""
        given = self.value.dtype
        if self.dot_form is None or widened(self.value[:0]).dtype == given:
            return given
        plain = self.weight.dot_form(*self.sides)
        is_given = plain is not None and plain.query is self.sides[0] and plain.key is self.sides[1]
        return given if is_given and not self.dot_form.bias else torch.float32

    @property
    def token_graph(self) -> TokenGraph:
        """The graph, for engines whose `can_run` refuses a plain list of edges."""
        assert isinstance(self.graph, TokenGraph)
        return self.graph

    @property
    def temperature(self) -> float:
        """What the plain softmax divides scores by; see `is_shared_out_by_softmax`."""
        assert isinstance(self.normalizer, Softmax)
        return self.normalizer.temperature

    @property
    def is_shared_out_by_softmax(self) -> bool:
        """Whether the normalizer is the plain softmax that torch's kernels know."""
        return type(self.normalizer) is Softmax and not self.normalizer.has_sink


_DOT_PRODUCT, _SOFTMAX = ScaledDotProduct(), Softmax()


def attention_call(
    query: Tensor,
    key: Tensor,
    graph: TokenGraph | EdgeList,
    weight: WeightFunction | PairFunction | None = None,
    normalizer: Normalizer | None = None,
    value: Tensor | None = None,
    edge_features: Tensor | None = None,
    dropout: float = 0.0,
    compile: bool = False,
    features_to_value: Tensor | None = None,
) -> tuple[AttentionCall, torch.Size]:
    """Check the inputs and flatten their leading dimensions; also give these."""
    if not isinstance(graph, (TokenGraph, EdgeList)):
        raise ShapeError(
            f"graph must be a TokenGraph, not {type(graph).__name__}; "
            "TokenGraph.from_edge_index and TokenGraph.from_mask build one."
        )
    if not 0 <= dropout <= 1:
        raise ShapeError(f"dropout must be a share from 0 to 1, not {dropout!r}.")
    tensors = {"query": query, "key": key} | ({} if value is None else {"value": value})
    lead = _checked_lead(tensors)
    batch, groups = math.prod(lead), query.shape[-3] // key.shape[-3]
    flat = [x.expand(*lead, *x.shape[-3:]).reshape(batch, *x.shape[-3:]) for x in tensors.values()]
    if groups > 1:
        flat[1:] = [x.repeat_interleave(groups, dim=1) for x in flat[1:]]
    call = AttentionCall(
        flat[0],
        flat[1],
        graph,
        _DOT_PRODUCT if weight is None else as_weight_function(weight),
        _SOFTMAX if normalizer is None else as_normalizer(normalizer),
        flat[-1],
        edge_features,
        dropout,
        compile,
        features_to_value=features_to_value,
    )
    return call, lead


def _checked_lead(tensors: dict[str, Tensor]) -> torch.Size:
    """Check query, key and value against each other; give their leading dimensions, broadcast."""
    if strange := [name for name, x in tensors.items() if not isinstance(x, Tensor)]:
        kinds = ", ".join(type(tensors[name]).__name__ for name in strange)
        raise ShapeError(f"{', '.join(strange)} must be torch tensors, not {kinds}.")
    shapes = ", ".join(f"{name} {tuple(x.shape)}" for name, x in tensors.items())
    if any(x.dim() < 3 for x in tensors.values()):
        raise ShapeError(f"expected (..., heads, tokens, dim) for each tensor, got {shapes}.")
    if len({(x.device, x.dtype) for x in tensors.values()}) > 1:
        kinds = ", ".join(f"{name} {x.dtype} on {x.device}" for name, x in tensors.items())
        raise ShapeError(f"query, key and value must share dtype and device, got {kinds}.")
    query, key, value = tensors["query"], tensors["key"], tensors.get("value")
    if not query.is_floating_point():
        raise ShapeError(f"query, key and value must be floating point, got {query.dtype}.")
    if value is not None and value.shape[-3:-1] != key.shape[-3:-1]:
        raise ShapeError(f"key and value must have the same heads and tokens, got {shapes}.")
    if not key.shape[-3] or query.shape[-3] % key.shape[-3]:
        raise ShapeError(f"the query's heads must be a multiple of the key's, got {shapes}.")
    try:
        lead: torch.Size = torch.broadcast_shapes(*(x.shape[:-3] for x in tensors.values()))
    except RuntimeError as error:
        raise ShapeError(f"the leading dimensions must broadcast, got {shapes}.") from error
    return lead


def _tokens_first(tokens: Tensor) -> Tensor:
    """Lay (B, H, N, .) out so that all numbers of a token, in the whole batch, lie together."""
    return tokens.permute(2, 0, 1, 3).contiguous().permute(1, 2, 0, 3)


def _widest(tree: Tree) -> int:
    if isinstance(tree, tuple):
        return max((_widest(branch) for branch in tree), default=1)
    return 1 if tree is None else tree.shape[-1]


_OF_SHAPES = re.compile(r"size|shape|dimension|out of (range|bounds)", re.IGNORECASE)


@contextmanager
def naming_shapes(call: AttentionCall) -> Iterator[None]:
    """Turn torch's errors about shapes that do not fit into one that names their owners.

    Autocast is off inside: tensors have the precision that they were given, and sums float32.
    """
    device = call.query.device.type
    is_on = device in ("cpu", "cuda") and torch.is_autocast_enabled(device)
    try:
        with torch.autocast(device, enabled=False) if is_on else nullcontext():
            yield
    except (RuntimeError, IndexError) as error:
        reason = str(error).partition("\n")[0]
        if type(error) not in (RuntimeError, IndexError) or not _OF_SHAPES.search(reason):
            raise
        raise ShapeError(
            f"{call.weight!r} and {call.normalizer!r} do not fit queries (batch, heads, tokens, "
            f"dim) {tuple(call.query.shape)} and keys {tuple(call.key.shape)}: {reason} Build them "
            "for these heads and dims, or check the tensors."
        ) from error
