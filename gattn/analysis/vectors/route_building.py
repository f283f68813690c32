"""Builds the graph of routes from the top, layer by layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gattn.analysis.vectors.importances import Norm, importances, kept, proximity
from gattn.analysis.vectors.route_graphs import Node, Routes
from gattn.models.stream.sublayers import Sublayer


class Builder:
    """Builds the graph from the top."""

    def __init__(self, tokens: Sequence[str], layers: int, position: int) -> None:
        self.graph = Routes()
        self._tokens = tokens
        self._add(layers, position, "residual")

    def add_mlp(self, layer: int, position: int, stream: float, mlp: float) -> None:
        """Add the parts of a token's stream after a layer."""
        target = (layer + 1, position, "residual")
        if stream:
            self._edge(self._add(layer, position, "middle"), target, "residual", stream)
        if mlp:
            self._add_mlp(self._add(layer, position, "middle"), target, mlp)

    def add_attention(
        self,
        layer: int,
        position: int,
        heads: Mapping[int, Mapping[int, float]],
        stream: float,
        mlp: float | None,
    ) -> None:
        """Add the parts of a token's stream after attention: by key, and by head."""
        is_parallel = mlp is not None
        target = (layer + 1, position, "residual") if is_parallel else (layer, position, "middle")
        if stream:
            self._edge(self._add(layer, position, "residual"), target, "residual", stream)
        if mlp:
            self._add_mlp(self._add(layer, position, "residual"), target, mlp)
        if not heads:
            return
        whole = sum(sum(shares.values()) for shares in heads.values())
        added = self._add(layer, position, "attention")
        self._edge(added, target, "output", whole)
        for key, shares in heads.items():
            importance = sum(shares.values())
            self._edge(
                self._add(layer, key, "residual"),
                added,
                "self" if key == position else "attention",
                importance,
                importance / whole,
                head=max(shares, key=lambda head: shares[head]),
                **{f"head_{head}": share for head, share in shares.items()},
            )

    def _add_mlp(self, source: Node, target: Node, mlp: float) -> None:
        added = self._add(target[0] - 1, target[1], "mlp")
        self._edge(source, added, "mlp", mlp, 1.0)
        self._edge(added, target, "output", mlp)

    def _add(self, layer: int, position: int, kind: str) -> Node:
        node = (layer, position, kind)
        if node not in self.graph:
            token = self._tokens[position]
            self.graph.add_node(node, layer=layer, position=position, kind=kind, token=token)
        return node

    def _edge(
        self,
        source: Node,
        target: Node,
        kind: str,
        importance: float,
        weight: float | None = None,
        **facts: Any,
    ) -> None:
        self.graph.add_edge(
            source,
            target,
            weight=importance if weight is None else weight,
            importance=importance,
            kind=kind,
            layer=source[0],
            **facts,
        )

    def positions(self, layer: int, kind: str) -> list[int]:
        """List the tokens that have a node of a kind in a layer."""
        return sorted(p for at, p, of in self.graph if at == layer and of == kind)


def add_layer(
    builder: Builder, sublayer: Sublayer, reached: Tensor, threshold: float, norm: Norm
) -> Tensor:
    """Add the edges into tokens' streams after a layer; give the tokens that they come from."""
    layer = sublayer.layer
    if not sublayer.is_parallel:
        where = reached.to(sublayer.after.device)
        part = sublayer.normed() if sublayer.is_post_norm else sublayer
        before, end = part.after[where], part.end[where]
        near = torch.stack([proximity(before, end, norm), proximity(end - before, end, norm)])
        streams, mlps = kept(near / near.sum(0), threshold).tolist()
        for token, stream, mlp in zip(reached.tolist(), streams, mlps, strict=True):
            builder.add_mlp(layer, token, stream, mlp)
        reached = torch.tensor(builder.positions(layer, "middle"), device="cpu")
    for some in importances(sublayer, reached, norm):
        heads, _, keys = some.attention.shape
        parts = [some.attention.transpose(1, 2).flatten(0, 1), some.residual[None]]
        parts += [] if some.mlp is None else [some.mlp[None]]
        shares = kept(torch.cat(parts), threshold).cpu()
        attention = shares[: heads * keys].unflatten(0, (heads, keys))
        for row, token in enumerate(some.rows.tolist()):
            edges = attention[..., row].nonzero().tolist()
            of_key: dict[int, dict[int, float]] = {}
            for head, key in edges:
                of_key.setdefault(key, {})[head] = float(attention[head, key, row])
            mlp = None if some.mlp is None else float(shares[-1, row])
            builder.add_attention(layer, token, of_key, float(shares[heads * keys, row]), mlp)
    return torch.tensor(builder.positions(layer, "residual"), device="cpu")
