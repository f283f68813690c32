"""Attention by torch-geometric message passing on an edge list: the reference."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor
from torch_geometric.nn import MessagePassing

from gattn.engines.call import AttentionCall
from gattn.engines.memory import uncompiled
from gattn.engines.scoring import checked_scores
from gattn.normalizers.base import widened
from gattn.weights.base import Pairs, map_tree


class EdgeAttention(MessagePassing):
    """Message passing j -> i with the messages A_ij v_j.

    The attention is an argument of `message`, never stored, so that torch-geometric's explainers
    see it. Tensors are (tokens, heads, dim) or (batch, tokens, heads, dim).
    """

    def __init__(self) -> None:
        super().__init__(aggr="add", flow="source_to_target", node_dim=-3)
        # torch-geometric compiles `propagate` once per class, and explains with the one that it
        # found there: in a subclass, its parent's compiled one, which explains nothing.
        found = vars(MessagePassing)
        type(self)._orig_propagate = found.get("_orig_propagate", found["propagate"])

    def attend(self, call: AttentionCall) -> Tensor:
        """Compute the output, (B, H, Q, V)."""
        edge_index = call.edge_index
        num_queries, num_keys = call.query.shape[-2], call.key.shape[-2]
        alpha = _normalized(call, _scores(call))
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
    """Run any call."""
    return None


@uncompiled
def run(call: AttentionCall) -> Tensor:
    """Compute the output, (B, H, Q, V)."""
    return _reference().attend(call)


def memory(call: AttentionCall) -> int:
    """Estimate the memory of `run` besides inputs and output, in bytes."""
    value = call.batch_heads * call.value.shape[-1]
    return call.graph.num_edges * (3 * call.edge_width + 2 * value) * call.query.element_size()


@cache
def _reference() -> EdgeAttention:
    return EdgeAttention()


def _scores(call: AttentionCall) -> Tensor:
    """Score the edges in the caller's own order: (B, H, E)."""
    key_index, query_index = call.edge_index
    sides = call.sides
    if call.dot_form is not None:  # Half precision cannot hold large products.
        sides = map_tree(widened, sides[0]), map_tree(widened, sides[1])
    query = map_tree(lambda x: x.transpose(1, 2)[:, query_index], sides[0])
    key = map_tree(lambda x: x.transpose(1, 2)[:, key_index], sides[1])
    positions, features = call.positions, call.edge_features
    if features is not None and features.dim() == 3:
        features = features[query_index, key_index]
    pairs = Pairs(positions.query[query_index, None], positions.key[key_index, None], features)
    batch, heads = call.query.shape[:2]
    shape = (batch, len(query_index), heads)
    scores = checked_scores(call.weight(query, key, pairs), shape, call.weight)
    return widened(scores).expand(shape).transpose(1, 2)


def _normalized(call: AttentionCall, scores: Tensor) -> Tensor:
    edges, on_edges = call.edges, call.normalizer.on_edges
    if edges.order is None:
        return on_edges(scores, edges.query, edges.num_queries)
    ordered = scores.index_select(-1, edges.order)
    attention = on_edges(ordered, edges.query, edges.num_queries)
    return attention.index_select(-1, torch.argsort(edges.order))
