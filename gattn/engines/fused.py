"""Attention by torch's fused kernel."""

from __future__ import annotations

from torch import Tensor

from gattn.engines.base import AttentionCall
from gattn.engines.kernel import attend
from gattn.graph.rules.simple import Causal, Complete
from gattn.graph.token_graph import TokenGraph


def can_run(call: AttentionCall) -> str | None:
    """Run a softmax of a dot product on a complete or causal graph."""
    graph = call.graph
    if not isinstance(graph, TokenGraph):
        return "a plain edge_index is neither complete nor causal"
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
        call.values.to(kind),
        form.scale / call.temperature,
        is_causal=isinstance(call.token_graph.rule, Causal),
        dropout=call.dropout,
    )
    return output.to(call.values.dtype)


def memory(call: AttentionCall) -> int:
    """Estimate what `run` takes besides inputs and output, in bytes."""
    return 0
