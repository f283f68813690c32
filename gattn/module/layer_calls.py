"""What a layer computes: its call of an engine, and the engine that runs it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from gattn.engines import edges, message_passing
from gattn.engines.call import AttentionCall, attention_call
from gattn.engines.choice import choose, named
from gattn.errors import ContractError, ShapeError
from gattn.graph.token_graph import TokenGraph
from gattn.module.given_edges import GivenEdges, Nodes, given_edges
from gattn.module.node_features import to_heads
from gattn.weights.edge_features import WithEdges

if TYPE_CHECKING:
    from gattn.module.graph_attention import GraphAttention


def given_to(
    layer: GraphAttention,
    sides: tuple[Tensor, ...],
    edge_index: TokenGraph | Tensor,
    edge_attr: Tensor | None,
) -> GivenEdges:
    """Read the graph and the edge features that a layer is given."""
    sources, targets, _ = sides
    are_apart = sources is not targets
    nodes = Nodes(sources.shape[-2], targets.shape[-2], are_apart)
    fill_value = layer.fill_value if layer.add_self_loops else None
    given = given_edges(edge_index, edge_attr, nodes, fill_value)
    if layer.project_edge is None:
        return given
    found, wanted = given.features, layer.edge_dim
    if found is None or (wanted != -1 and found.shape[-1] != wanted):
        raise ShapeError(
            f"{layer!r} was built with edge_dim={wanted}: it needs edge_attr of shape (edges, "
            f"{'features' if wanted == -1 else wanted}), not "
            f"{None if found is None else tuple(found.shape)}."
        )
    return given


def call_of(
    layer: GraphAttention, sides: tuple[Tensor, Tensor, Tensor], given: GivenEdges
) -> tuple[AttentionCall, tuple[int, ...]]:
    """Project the features of nodes and check the call; also give the shape of the batch."""
    weight, features, matrix = layer.weight, given.features, None
    if layer.project_edge is not None:
        assert features is not None
        features = features.to(layer.project_key.weight.dtype)
        layer.project_edge(features[:0])  # takes its size, if it has none yet
        weight = WithEdges(weight, layer.project_edge)
        matrix = layer.project_edge.weight.unflatten(0, (layer.heads, -1)).mT
    call, lead = attention_call(
        to_heads(layer.project_query, sides[1], layer.heads),
        to_heads(layer.project_key, sides[0], layer.heads),
        given.graph,
        weight,
        layer.normalizer,
        to_heads(layer.project_value, sides[2], layer.heads),
        features,
        layer.dropout if layer.training else 0.0,
        layer.compile_weight,
        matrix,
    )
    if call.edge_features is not None and matrix is None:
        form = call.dot_form
        if form is not None and not form.bias:
            raise ContractError(
                f"Nothing in {layer!r} reads edge_attr: build it with edge_dim="
                f"{call.edge_features.shape[-1]}, or with a weight function of edge features."
            )
    return call, lead if sides[0].dim() > 2 else ()


def computed(layer: GraphAttention, call: AttentionCall, name: str | None) -> Tensor:
    """Compute the output of a call, (B, H, Q, V)."""
    if layer.passes_messages:
        return layer.attend(call, message_passing.attention(call))
    engine = choose(call) if name is None else named(name, call)
    if engine is message_passing:
        return layer.attend(call, message_passing.attention(call))
    output: Tensor = engine.run(call)
    return output


def weighed(layer: GraphAttention, call: AttentionCall, name: str | None) -> tuple[Tensor, Tensor]:
    """Compute a call's output, and its attention in the order of its edges, (B, H, E)."""
    if name == "message_passing" or layer.passes_messages:
        attention = message_passing.attention(call)
        return layer.attend(call, attention), attention
    if name not in (None, "edges"):
        raise ContractError(
            f"The engine {name} computes outputs only; attention weights take edges or "
            "message_passing."
        )
    attention = edges.attention(call)
    return edges.times_values(call, attention), call.edges.as_given(attention)
