"""Attention by torch-geometric message passing on an edge list: the reference."""

from __future__ import annotations

from functools import cache
from inspect import signature

import torch
from torch import Tensor
from torch_geometric.nn import MessagePassing

from gattn.engines.call import AttentionCall
from gattn.engines.shared.scoring import checked_scores, share_out
from gattn.engines.tensors.memory import uncompiled
from gattn.errors import ContractError
from gattn.normalizers.base import widened
from gattn.weights.base import map_tree
from gattn.weights.pairs import Pairs

_STEPS = "message", "aggregate", "update"
_HOOKS = tuple(
    f"_{step}_forward{when}_hooks"
    for step in ("propagate", "message", "aggregate")
    for when in ("_pre", "")
)


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

    @property
    def is_looked_at(self) -> bool:
        """Whether an explainer or a hook looks at the messages."""
        return bool(self.explain) or any(getattr(self, hooks) for hooks in _HOOKS)

    @property
    def passes_messages(self) -> bool:
        """Whether anyone looks at the messages, or a subclass changes them."""
        is_changed = (getattr(type(self), x) is not getattr(EdgeAttention, x) for x in _STEPS)
        return self.is_looked_at or any(is_changed)

    def attend(self, call: AttentionCall, attention: Tensor) -> Tensor:
        """Compute the output (B, H, Q, V) from the `attention` of the call's edges."""
        edge_index = call.edge_index
        num_queries, num_keys = call.query.shape[-2], call.key.shape[-2]
        alpha = torch.dropout(attention, call.dropout, train=call.dropout > 0)
        alpha, value = widened(alpha.transpose(1, 2)), widened(call.value.transpose(1, 2))
        if len(value) == 1:
            alpha, value = alpha[0], value[0]
        # torch-geometric's code generator looks for the literal call self.propagate.
        output: Tensor = self.propagate(
            edge_index,
            size=(num_keys, num_queries),
            value=(value, None),
            alpha=alpha,
            edge_value=self._edge_value(call),
        )
        output = output.reshape(len(call.query), num_queries, *output.shape[-2:])
        return output.transpose(1, 2).to(call.value.dtype)

    def message(self, value_j: Tensor, alpha: Tensor, edge_value: Tensor | None = None) -> Tensor:
        """Weigh the value of each edge's key: (..., E, H) and (..., E, H, D).

        `edge_value` (E, H, D) is what the edge itself adds to it.
        """
        value = value_j if edge_value is None else value_j + edge_value
        return alpha.unsqueeze(-1) * value

    def _edge_value(self, call: AttentionCall) -> Tensor | None:
        features, matrix = _features(call), call.features_to_value
        if features is None or matrix is None:
            return None
        if "edge_value" not in signature(self.message).parameters:
            raise ContractError(
                f"Edges add to the values of {type(self).__name__}, so its message must take "
                "edge_value, and add it to value_j."
            )
        value: Tensor = torch.einsum("ef,hfd->ehd", widened(features), widened(matrix))
        return value


def can_run(call: AttentionCall) -> str | None:
    """Run any call."""
    return None


@uncompiled
def run(call: AttentionCall) -> Tensor:
    """Compute the output, (B, H, Q, V)."""
    return _reference().attend(call, attention(call))


def attention(call: AttentionCall) -> Tensor:
    """Compute the attention of the call's edges before dropout, (B, H, E)."""
    scores, edges = _scores(call), call.edges
    if edges.order is not None:
        scores = scores.index_select(-1, edges.order)
    shares = [share_out(call.normalizer, scores, block) for block in edges.blocks(edges.num_edges)]
    return edges.as_given(shares[0] if shares else scores)


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
    positions = call.positions
    ends = positions.query[query_index, None], positions.key[key_index, None]
    pairs = Pairs(*ends, _features(call))
    batch, heads = call.query.shape[:2]
    shape = (batch, len(query_index), heads)
    scores = checked_scores(call.weight(query, key, pairs), shape, call.weight)
    return widened(scores).expand(shape).transpose(1, 2)


def _features(call: AttentionCall) -> Tensor | None:
    features = call.edge_features
    if features is None or features.dim() == 2:
        return features
    key_index, query_index = call.edge_index
    return features[query_index, key_index]
