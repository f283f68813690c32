"""Attention flow from all tokens to the last, beside NetworkX on the same unrolled layers."""

from __future__ import annotations

import networkx as nx
import numpy as np
import torch
from torch import Tensor

from benchmarks.analyses._attention import causal_attention
from benchmarks.row import Row, Side
from gattn.analysis import flow

LAYERS, HEADS = 12, 12


def rows(quick: bool) -> list[Row]:
    """List the row."""
    size = 16 if quick else 64
    work = f"attention flow, all tokens to the last, {LAYERS} layers, {size} tokens, causal"
    peer = "networkx.maximum_flow_value, pair by pair"
    return [Row("analysis-flow", work, peer, size, _build, time_bar=1 / 150, small=8)]


def _build(side: str, size: int, device: str) -> Side:
    attention = causal_attention(LAYERS, HEADS, size)
    if side == "gattn":

        def ours() -> Tensor:
            return torch.from_numpy(flow(attention, queries=-1, progress=False).to_numpy()[0])

        return Side(ours)
    graph = _unrolled(attention.mean(1).numpy())

    def theirs() -> Tensor:
        target = (LAYERS, size - 1)
        flows = [nx.maximum_flow_value(graph, (0, j), target) for j in range(size)]
        return torch.tensor(flows, dtype=torch.float64)

    return Side(theirs)


def _unrolled(layers: np.ndarray) -> nx.DiGraph:
    graph = nx.DiGraph()
    for depth, layer in enumerate(layers):
        mixed = layer / 2 + np.eye(len(layer)) / 2
        for query, key in np.argwhere(mixed > 0).tolist():
            capacity = float(mixed[query, key])
            graph.add_edge((depth, key), (depth + 1, query), capacity=capacity)
    return graph
