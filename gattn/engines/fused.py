r"""Attention by torch's fused kernel, and repairs where that differs from dense algebra.

In half precision the kernel is given queries, keys and values as they are, without a copy in
float32, wherever the dot form's sides are the tensors that the weight function prepared: dot
products, cosines, rotated ones, with any temperature, and with terms of pairs such as ALiBi. (For
gradients, tiles keep copies in float32, in which sums over blocks add up.) It sums in float32, and
rounds attention and output to the type's precision. With u half the type's eps, the output of query
i is off by at most

.. math::
    \left(e^{2 \Delta_i} - 1 + 2u + 2^{-22} n\right) \max_j |v_j|, \qquad
    \Delta_i = \max_j \left((2^{-23} (d + 2) + u_p)\, |s| \sum_c |q_{ic} k_{jc}|
    + u_b |b_{ij}|\right)

for n keys, heads of size d, a scale s and biases b, both divided by the temperature. Sides that are
the given tensors have :math:`u_p = 0`; those that were rounded when they were prepared, such as
unit vectors times a factor, at most :math:`4u`. On an accelerator, whose kernels take biases in no
other precision, :math:`u_b = u`; on a CPU :math:`u_b = 2^{-24}`.

The error of a score changes each of the row's exponentials by a factor of at most
:math:`e^{\Delta_i}`, and so does their sum, hence twice :math:`\Delta_i`; rounding the attention
and the output is u each; a sum of n products in float32 is the rest.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from gattn.engines.call import AttentionCall
from gattn.engines.shared.blocks import Tiles
from gattn.engines.shared.scoring import tile_bias
from gattn.engines.shared.tiling import every_row_has_edges
from gattn.graph.rules.simple import Causal, Complete
from gattn.graph.token_graph import TokenGraph
from gattn.normalizers.base import widened
from gattn.weights.base import Tree

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
    form = call.kernel_form
    if form is None or form.query is None or form.bias:
        return "the score is not a dot product alone"
    return None


def run(call: AttentionCall) -> Tensor:
    """Compute the output, (B, H, Q, V)."""
    form = call.kernel_form
    assert form is not None
    assert form.query is not None
    assert form.key is not None
    query, key, value = form.query, form.key, call.value
    if not query.dtype == key.dtype == value.dtype:
        key, value = key.to(query.dtype), value.to(query.dtype)
    output = attend(
        query,
        key,
        value,
        form.scale / call.temperature,
        is_causal=isinstance(call.token_graph.rule, Causal),
        dropout=call.dropout,
    )
    return output if output.dtype == call.value.dtype else output.to(call.value.dtype)


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


def fused_block(
    call: AttentionCall, tiles: Tiles, query: Tree, key: Tree, value: Tensor
) -> Tensor | None:
    """Attend by torch's fused kernel with a mask, or give None if that does not suit."""
    if not isinstance(query, Tensor) or not suits_the_kernel(call):
        return None
    mask = tiles.mask(call)
    form = call.kernel_form
    assert form is not None
    if form.bias:
        bias = tile_bias(call, lambda: tiles.pairs(call))
        assert bias is not None
        if bias.requires_grad:  # The kernel gives masks no gradient.
            return None
        bias = bias / call.temperature
        # Kernels on accelerators take no other precision than the queries', on a CPU float32.
        wide = torch.promote_types(query.dtype, torch.float32)
        bias = rounded(bias, query.dtype if is_on_accelerator(call) else wide)
        mask = bias if mask is None else bias.masked_fill(~mask, -torch.inf)
    assert isinstance(key, Tensor)
    broken = None
    if is_on_accelerator(call) and tiles.allowed is not None:
        query, key, broken = _unread(query, key, tiles.mask(call))
    output = attend(
        query,
        key.to(query.dtype),
        value.to(query.dtype),
        form.scale / call.temperature,
        mask,
        dropout=call.dropout,
    )
    return output if broken is None else output.masked_fill(broken, torch.nan)


def rounded(bias: Tensor, kind: torch.dtype) -> Tensor:
    """Round to a precision, in which what is finite stays finite."""
    most = torch.finfo(kind).max
    if most >= torch.finfo(bias.dtype).max:
        return bias.to(kind)
    return bias.clamp(-most, most).where(bias.isfinite(), bias).to(kind)


def _unread(query: Tensor, key: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Put 0 in place of vectors with NaN or infinity; also give the queries that read any."""
    assert mask is not None
    no_query, no_key = (~x.isfinite().all(-1, keepdim=True) for x in (query, key))
    reads = mask.to(query.dtype) @ no_key.to(query.dtype)
    return query.masked_fill(no_query, 0), key.masked_fill(no_key, 0), no_query | (reads > 0)


def is_on_accelerator(call: AttentionCall) -> bool:
    """Return whether the tensors are on another device than the CPU."""
    return call.query.device.type not in ("cpu", "meta")


def suits_the_kernel(call: AttentionCall) -> bool:
    """Return whether torch's fused kernel with a mask gives this attention.

    It adds -inf to pairs that are not edges: rows without edges, or NaN in a key, would give NaN.
    Looking for NaN would stall an accelerator: `_unread` keeps them from the kernel there.
    """
    form = call.kernel_form
    if not call.is_shared_out_by_softmax or form is None or form.query is None:
        return False
    return every_row_has_edges(call.token_graph) and (is_on_accelerator(call) or call.is_finite)
