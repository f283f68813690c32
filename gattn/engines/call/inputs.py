"""Inputs of a call, checked against each other, and their leading dimensions flattened."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gattn.engines.call.call import AttentionCall
from gattn.engines.call.edge_list import EdgeList
from gattn.errors import ShapeError
from gattn.graph.token_graph import TokenGraph
from gattn.normalizers import Normalizer, Softmax
from gattn.normalizers.base import as_normalizer
from gattn.weights.base import PairFunction, WeightFunction, as_weight_function
from gattn.weights.dot import ScaledDotProduct

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
            "graph must be a TokenGraph, such as TokenGraph.causal(num_tokens), or one that "
            "TokenGraph.from_edge_index or TokenGraph.from_mask builds, not "
            f"{type(graph).__name__}{f' {graph!r:.60}' * isinstance(graph, str)}."
        )
    if not 0 <= dropout <= 1:
        raise ShapeError(f"dropout must be a share from 0 to 1, not {dropout!r}.")
    tensors = {"query": query, "key": key}
    lead = _checked_lead(tensors if value is None else tensors | {"value": value})
    groups = query.shape[-3] // key.shape[-3]
    call = AttentionCall(
        _flat(query, lead),
        _flat(key, lead, groups),
        graph,
        _DOT_PRODUCT if weight is None else as_weight_function(weight),
        _SOFTMAX if normalizer is None else as_normalizer(normalizer),
        _flat(key if value is None else value, lead, groups),
        edge_features,
        dropout,
        compile,
        features_to_value=features_to_value,
    )
    return call, lead


def _flat(tokens: Tensor, lead: torch.Size, copies: int = 1) -> Tensor:
    """Flatten the leading dimensions to one, and give each head its copies."""
    if not lead:
        tokens = tokens.unsqueeze(0)
    elif len(lead) > 1 or tokens.shape[:-3] != lead:
        own = tokens.shape[-3:]
        tokens = tokens.expand(*lead, *own).reshape(math.prod(lead), *own)
    return tokens if copies == 1 else tokens.repeat_interleave(copies, dim=1)


def _checked_lead(tensors: dict[str, Tensor]) -> torch.Size:
    """Check query, key and value against each other; give their leading dimensions, broadcast."""
    if strange := [name for name, x in tensors.items() if not isinstance(x, Tensor)]:
        kinds = ", ".join(type(tensors[name]).__name__ for name in strange)
        raise ShapeError(
            f"{', '.join(strange)} must be torch tensors, as torch.as_tensor makes "
            f"them, not {kinds}."
        )
    query, *others = tensors.values()
    shape, device, dtype = query.shape, query.device, query.dtype
    lead: torch.Size = shape[:-3]
    are_alike = True
    for x in others:
        if x.device != device or x.dtype != dtype:
            kinds = ", ".join(f"{name} {x.dtype} on {x.device}" for name, x in tensors.items())
            raise ShapeError(f"query, key and value must share dtype and device, got {kinds}.")
        are_alike = are_alike and x.shape[:-3] == lead
    if min(x.dim() for x in tensors.values()) < 3:
        raise _misfit(tensors, "expected (..., heads, tokens, dim) for each tensor")
    if not dtype.is_floating_point:
        raise ShapeError(f"query, key and value must be floating point, got {dtype}.")
    key_heads, keys, _ = others[0].shape[-3:]
    if others[-1].shape[-3:-1] != (key_heads, keys):
        raise _misfit(tensors, "key and value must have the same heads and tokens")
    if not key_heads or shape[-3] % key_heads:
        raise _misfit(tensors, "the query's heads must be a multiple of the key's")
    if are_alike:
        return lead
    try:
        lead = torch.broadcast_shapes(*(x.shape[:-3] for x in tensors.values()))
    except RuntimeError as error:
        raise _misfit(tensors, "the leading dimensions must broadcast") from error
    return lead


def _misfit(tensors: dict[str, Tensor], expected: str) -> ShapeError:
    shapes = ", ".join(f"{name} {tuple(x.shape)}" for name, x in tensors.items())
    return ShapeError(f"{expected}, got {shapes}.")
