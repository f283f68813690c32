"""Reads a call of a model's attention as graph attention: token graph, weight, normalizer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import groupby
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from gattn.engines.call import AttentionCall
from gattn.errors import CaptureError
from gattn.graph.token_graph import TokenGraph
from gattn.models.read.masks import Mask, taken
from gattn.models.read.places import Place, Side
from gattn.models.read.verifying import verify, verify_empty
from gattn.normalizers import Normalizer, Softmax
from gattn.normalizers.base import widened
from gattn.weights.base import Tree, WeightFunction
from gattn.weights.dot import ScaledDotProduct
from gattn.weights.pairs import Pairs
from gattn.weights.position import PositionWeight
from gattn.weights.softcap import Softcap

if TYPE_CHECKING:
    from gattn.models.edit.base import Edit
    from gattn.models.read.seen_call import SeenCall

_NO_SINK = -200.0
_PLAIN = Softmax()  # Modules take long to make, and all calls share this one.


class GivenBias(PositionWeight):
    """A score that the model computed for each pair and head, given as edge features.

    Parameters
    ----------
    name : "bias" or "scores"
        Whether it is added to scores, or is all of them.
    """

    def __init__(self, name: str = "scores") -> None:
        super().__init__()
        self.name = name

    def forward(self, query: Tree, key: Tree, pairs: Pairs) -> Tensor:
        """Read the features."""
        return cast("Tensor", pairs.features)

    def __repr__(self) -> str:
        return f"the model's {self.name}"


@dataclass(frozen=True, eq=False)
class Reading:
    """Elements of a call's batch with the same tokens and edits, read as graph attention.

    `attention` is the model's own, without the edits, on the real tokens: (elements, heads, ...).
    `is_by_weights` says that the model multiplies its attention with values itself, and may use it
    in other ways, too.
    """

    elements: list[int]
    sequences: list[int]
    queries: Side
    keys: Side
    attention: AttentionCall
    edits: tuple[Edit, ...]
    groups: int
    is_by_weights: bool = field(default=False, kw_only=True)

    @property
    def graph(self) -> TokenGraph:
        """Who may attend to whom."""
        assert isinstance(self.attention.graph, TokenGraph)
        return self.attention.graph

    @property
    def has_vectors(self) -> bool:
        """Whether queries and keys are known, rather than only scores."""
        return self.attention.query.shape[-1] > 0

    @property
    def has_values(self) -> bool:
        """Whether the values are known."""
        value = self.attention.value
        return value is not None and value.shape[-1] > 0

    @property
    def heads(self) -> int:
        """How many heads there are."""
        return int(self.attention.query.shape[1])

    @property
    def splits_heads(self) -> bool:
        """Whether some heads can be computed without the others."""
        return True

    @property
    def lists_edges(self) -> bool:
        """Whether edges are listed, rather than tokens paired."""
        return False

    def features_on(self, features: Tensor | None, graph: TokenGraph) -> Tensor | None:
        """Take the edge features that an edited graph needs."""
        return features


def read(
    call: SeenCall, place: Place, mask: Mask, edits: Sequence[Sequence[Edit]]
) -> list[Reading]:
    """Read a call without its padding, and prove on a few rows that it gives the model's output.

    Under dropout nothing can be proved. `edits` are those of each element of the batch.
    """
    if call.unread:
        raise CaptureError(
            f"{call.where} ({type(call.module).__name__}) chooses its keys by {call.unread!r}: "
            "this is sparse attention, which gattn does not read."
        )
    if call.query.shape[0] != call.key.shape[0] or call.query.shape[1] % call.key.shape[1]:
        raise CaptureError(
            f"{call.where} has queries {tuple(call.query.shape)} and keys {tuple(call.key.shape)}: "
            "expected (batch, heads, tokens, dim), with a multiple of the keys' heads."
        )
    readings = []
    is_alike = mask.is_shared and (call.bias is None or len(call.bias) == 1)

    def kind(element: int) -> object:
        queries, keys = place.queries[element], place.keys[element]
        is_full = len(queries) == call.query.shape[2] and len(keys) == call.key.shape[2]
        own = -1 if is_alike and is_full and keys.in_order else element
        return own, queries.first, keys.first, [id(edit) for edit in edits[element]]

    for _, group in groupby(range(len(call.query)), kind):
        elements = list(group)
        reading = _read(call, place, mask, elements, tuple(edits[elements[0]]))
        if len(reading.queries) and len(reading.keys):
            with torch.no_grad():
                verify_empty(call, reading)
                if not call.dropout:
                    verify(call, reading)
        readings.append(reading)
    return readings


def _read(
    call: SeenCall, place: Place, mask: Mask, elements: list[int], edits: tuple[Edit, ...]
) -> Reading:
    first = elements[0]
    queries, keys = place.queries[first], place.keys[first]
    query, key, value = (
        widened(taken(x[elements[0] : elements[-1] + 1], 2, side))
        for x, side in ((call.query, queries), (call.key, keys), (call.value, keys))
    )
    heads = query.shape[1]
    key, value = (
        x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], dim=1)
        for x in (key, value)
    )
    features = _features(call, mask, first, queries, keys)
    attention = AttentionCall(
        query,
        key,
        mask.graph(first, queries, keys, place.is_bipartite),
        _weight(call, features is not None),
        _normalizer(call),
        value,
        features,
        call.dropout,
        first_key=keys.first,
    )
    sequences = [place.sequences[element] for element in elements]
    return Reading(
        elements,
        sequences,
        queries,
        keys,
        attention,
        edits,
        heads // call.key.shape[1],
        is_by_weights=call.is_scores and call.weights is not None,
    )


def _features(call: SeenCall, mask: Mask, element: int, queries: Side, keys: Side) -> Tensor | None:
    """Sum what the model adds to scores, as edge features (queries, keys, heads)."""
    dtype = widened(call.query[:0]).dtype
    terms = []
    added = mask.bias(element, dtype)
    if added is not None:
        terms.append(added)
    if call.bias is not None:
        terms.append(call.bias[element if len(call.bias) > 1 else 0].to(dtype))
    if call.dropped is not None:
        terms.append(-_sink_of(call.dropped[element].to(dtype)))
    if not terms:
        return None
    # A broadcast axis of queries stays one.
    parts = [taken(x, 1, queries) if x.shape[1] > 1 else x for x in terms]
    total = sum(parts[1:], parts[0])
    total = taken(total[..., : call.key.shape[2]], 2, keys)
    shape = call.query.shape[1], len(queries), len(keys)
    return total.expand(shape).permute(1, 2, 0).to(call.query.device)


def _weight(call: SeenCall, has_bias: bool) -> WeightFunction:
    if call.is_scores:
        return GivenBias()
    scale, usual = call.scale, call.query.shape[-1] ** -0.5
    if scale is not None and math.isclose(scale, usual, rel_tol=1e-12):
        scale = None
    weight: WeightFunction = _dot_product(scale)
    if call.softcap is not None:
        weight = Softcap(weight, call.softcap)
    return weight + GivenBias("bias") if has_bias else weight


@lru_cache(maxsize=16)
def _dot_product(scale: float | None) -> WeightFunction:
    return ScaledDotProduct(scale)


def _sink_of(dropped: Tensor) -> Tensor:
    """Sum slots without a value up as the logit (heads, queries, 1) of one sink.

    Scores are told relative to it, so that it is the same for all queries.
    """
    nothing = (dropped == -torch.inf).all(-1, keepdim=True)
    return dropped.masked_fill(nothing, _NO_SINK).logsumexp(-1, keepdim=True)


def _normalizer(call: SeenCall) -> Normalizer:
    if call.dropped is not None:
        return Softmax(sink=0.0)
    if call.sink is None:
        return _PLAIN
    return Softmax(sink=call.sink.to(widened(call.query[:0]).dtype).reshape(-1))
