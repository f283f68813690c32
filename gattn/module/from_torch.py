"""`torch.nn.MultiheadAttention` as a graph attention layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from gattn.errors import ShapeError
from gattn.normalizers import Softmax

if TYPE_CHECKING:
    from gattn.module.graph_attention import GraphAttention


def from_torch(cls: type[GraphAttention], attention: nn.MultiheadAttention) -> GraphAttention:
    """Copy a `torch.nn.MultiheadAttention`, which gives the same numbers on the same inputs.

    Its ``add_zero_attn`` becomes a softmax with a sink of logit 0. In gattn a batch is always
    (batch, tokens, channels). A MultiheadAttention with ``batch_first=False``, torch's
    default, takes (tokens, batch, channels): transpose its inputs and outputs. Its inputs
    ``(query, key, value)`` are ``x = (key, query, value)``: sources come first.

    Raises
    ------
    ShapeError
        If it was built with ``add_bias_kv``, an extra learned key that is not a token.
    """
    if attention.bias_k is not None:
        raise ShapeError(
            "MultiheadAttention(add_bias_kv=True) has an extra learned key that belongs to no "
            "token; build it without add_bias_kv."
        )
    sizes = attention.kdim, attention.embed_dim, attention.vdim
    layer = cls(
        sizes[0] if len(set(sizes)) == 1 else sizes,
        attention.head_dim,
        heads=attention.num_heads,
        normalizer=Softmax(sink=0.0 if attention.add_zero_attn else None),
        project_output=True,
        bias=attention.in_proj_bias is not None,
        dropout=attention.dropout,
    )
    weights: Sequence[Tensor]
    if attention.in_proj_weight is not None:
        weights = attention.in_proj_weight.chunk(3)
    else:
        weights = (attention.q_proj_weight, attention.k_proj_weight, attention.v_proj_weight)
    stacked = attention.in_proj_bias
    biases = (None, None, None) if stacked is None else stacked.chunk(3)
    given = (*weights, attention.out_proj.weight), (*biases, attention.out_proj.bias)
    layer.to(weights[0])
    own = layer.project_query, layer.project_key, layer.project_value, layer.project_output
    with torch.no_grad():
        for projection, weight, bias in zip(own, *given, strict=True):
            assert projection is not None
            projection.weight.copy_(weight)
            if bias is not None:
                projection.bias.copy_(bias)
    layer.train(attention.training)
    return layer
