"""Attention by torch-geometric message passing on an edge list: the reference."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor
from torch_geometric.nn import MessagePassing

from gattn.engines.base import AttentionCall, score_edges
from gattn.normalizers.base import widened


class EdgeAttention(MessagePassing):
    """Message passing j -> i with the messages A_ij v_j.

    The attention is an argument of `message`, never stored, so that torch-geometric's explainers
    see it. Tensors are (tokens, heads, dim) or (batch, tokens, heads, dim).
    """

    def __init__(self) -> None:
        super().__init__(aggr="add", flow="source_to_target", node_dim=-3)
        # torch-geometric compiles `propagate` once a class, and explains with the one that it
        # found there: in a subclass that is its parent's compiled one, which explains nothing.
        found = vars(MessagePassing)
        type(self)._orig_propagate = found.get("_orig_propagate", found["propagate"])

    def attend(self, call: AttentionCall) -> Tensor:
        """Compute the output, (B, H, Q, V)."""
        assert call.value is not None
        edge_index = call.edge_index
        num_queries, num_keys = call.query.shape[-2], call.key.shape[-2]
        alpha = call.normalizer.on_edges(score_edges(call), edge_index[1], num_queries)
        alpha = torch.dropout(alpha, call.dropout, train=call.dropout > 0)
        alpha, value = widened(alpha.transpose(1, 2)), widened(call.value.transpose(1, 2))
        if len(value) == 1:
            alpha, value = alpha[0], value[0]
        # torch-geometric's code generator looks for the literal call self.propagate.
        output: Tensor = self.propagate(
            edge_index, size=(num_keys, num_queries), value=(value, None), alpha=alpha
        )
        output = output.reshape(len(call.query), num_queries, *output.shape[-2:])
        return output.transpose(1, 2).to(call.value.dtype)

    def message(self, value_j: Tensor, alpha: Tensor) -> Tensor:
        """Weigh the value of each edge's key: (..., E, H) and (..., E, H, D)."""
        return alpha.unsqueeze(-1) * value_j


def can_run(call: AttentionCall) -> str | None:
    """Run everything."""
    return None


def run(call: AttentionCall) -> Tensor:
    """Compute the output, (B, H, Q, V)."""
    return _reference().attend(call)


@cache
def _reference() -> EdgeAttention:
    return EdgeAttention()
