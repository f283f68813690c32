"""Attention by torch's fused kernel, and repairs where that differs from dense algebra."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from gattn.engines.call import AttentionCall
from gattn.graph.rules.simple import Causal, Complete
from gattn.graph.token_graph import TokenGraph
from gattn.normalizers.base import widened

_LEAST_SCALE = torch.finfo(torch.float32).tiny
_VECTOR = 16

VALUES_OF_EDGES = "edges add their features to the values"
"""Why an engine that never lists edges cannot run a call."""


def can_run(call: AttentionCall) -> str | None:
    """Run a softmax of a dot product on a complete or causal graph."""
    graph = call.graph
    if not isinstance(graph, TokenGraph):
        return "a plain edge_index is neither complete nor causal"
    if call.features_to_value is not None:
        return VALUES_OF_EDGES
    if not call.is_shared_out_by_softmax:
        return "the normalizer is not a softmax without a sink"
    if isinstance(graph.rule, Causal) and (
        graph.query_offset or graph.num_queries > graph.num_keys
    ):
        return "the causal graph has an offset"
    if not isinstance(graph.rule, (Causal, Complete)) or not graph.num_keys:
        return "the graph is neither complete nor causal"
    form = call.dot_form
    if form is None or form.query is None or form.bias:
        return "the score is not a dot product alone"
    return None


def run(call: AttentionCall) -> Tensor:
    """Compute the output, (B, H, Q, V)."""
    form = call.dot_form
    assert form is not None
    assert form.query is not None
    assert form.key is not None
    kind = call.kernel_dtype
    output = attend(
        form.query.to(kind),
        form.key.to(kind),
        call.value.to(kind),
        form.scale / call.temperature,
        is_causal=isinstance(call.token_graph.rule, Causal),
        dropout=call.dropout,
    )
    return output.to(call.value.dtype)


def memory(call: AttentionCall) -> int:
    """Estimate the memory of `run` besides inputs and output, in bytes."""
    return 0


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float,
    mask: Tensor | None = None,
    is_causal: bool = False,
    dropout: float = 0.0,
) -> Tensor:
    """Attend by a softmax of `scale * query . key`: (B, H, Q, D), (B, H, K, D), (B, H, K, V).

    The kernel also scales the -inf of pairs that are not edges, so its scale must be above 0. A
    sign goes into the queries, which is exact; so does a scale that float32 rounds to 0.

    On a CPU, rows of NaN come out as 0 if the keys do not fill one of the processor's vectors:
    rows of 0 are then computed again.
    """
    if scale < 0:
        query, scale = -query, -scale
    if scale < _LEAST_SCALE:
        query, scale = query * scale, 1.0
    is_short = mask is None and key.shape[-2] < _VECTOR and query.device.type == "cpu"
    if is_short and (dropout or torch.compiler.is_compiling()):
        return _by_hand(query, key, value, scale, is_causal, dropout)
    output = scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=is_causal, dropout_p=dropout, scale=scale
    )
    if is_short and _has_rows_of_zeros(output):
        return _by_hand(query, key, value, scale, is_causal, dropout)
    return output


def _has_rows_of_zeros(output: Tensor) -> bool:
    try:
        return not bool(output.detach().any(-1).all())
    except RuntimeError:  # Under `torch.func.vmap` numbers cannot be looked at.
        return True


def _by_hand(
    query: Tensor, key: Tensor, value: Tensor, scale: float, is_causal: bool, dropout: float
) -> Tensor:
    scores = (widened(query) * scale) @ widened(key).mT
    if is_causal:
        future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(future, -torch.inf)
    attention = torch.dropout(torch.softmax(scores, dim=-1), dropout, train=dropout > 0)
    return (attention @ widened(value)).to(value.dtype)
