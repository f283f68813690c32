"""Attention flow to the last token from all, beside NetworkX on the same unrolled layers."""

from __future__ import annotations

import networkx as nx
import numpy as np
import torch
from torch import Tensor

from benchmarks.measure import Row, Side
from gattn.analysis import flow

LAYERS, HEADS = 12, 12


def rows(quick: bool) -> list[Row]:
    """List the row."""
    size = 16 if quick else 64
    work = f"attention flow, one target, all sources, {LAYERS} layers, {size} tokens, causal"
    peer = "networkx.maximum_flow_value, one pair after the other"
    return [Row("analysis-flow", work, peer, size, _build, time_bar=1 / 150, small=8)]


def _build(side: str, size: int, device: str) -> Side:
    attention = _drawn(size)
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


def _drawn(size: int) -> Tensor:
    """Draw causal attention, (layers, heads, tokens, tokens)."""
    generator = torch.Generator().manual_seed(0)
    shape = (LAYERS, HEADS, size, size)
    scores = 2 * torch.randn(shape, generator=generator, dtype=torch.float64)
    is_later = torch.ones(size, size, dtype=torch.bool).triu(1)
    return scores.masked_fill(is_later, -torch.inf).softmax(-1)


def _unrolled(layers: np.ndarray) -> nx.DiGraph:
    graph = nx.DiGraph()
    for depth, layer in enumerate(layers):
        mixed = layer / 2 + np.eye(len(layer)) / 2
        for query, key in np.argwhere(mixed > 0).tolist():
            capacity = float(mixed[query, key])
            graph.add_edge((depth, key), (depth + 1, query), capacity=capacity)
    return graph
