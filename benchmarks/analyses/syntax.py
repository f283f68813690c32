"""Arborescences of the heads of a causal layer compared with NetworkX's Edmonds' algorithm."""

from __future__ import annotations

import networkx as nx
import numpy as np
import torch
from torch import Tensor

from benchmarks.row import Row, Side
from gattn.analysis.syntax.trees import tree_heads

HEADS = 4


def rows(quick: bool) -> list[Row]:
    """List the row."""
    size = 24 if quick else 64
    work = f"maximum spanning arborescences of {HEADS} causal heads, {size} words"
    peer = "networkx.maximum_spanning_arborescence"
    return [Row("analysis-arborescence", work, peer, size, _build, time_bar=1 / 50, small=8)]


def _build(side: str, size: int, device: str) -> Side:
    generator = torch.Generator().manual_seed(0)
    scores = torch.rand(HEADS, size, size, generator=generator, dtype=torch.float64) + 0.01
    heads = scores.tril(-1).numpy()
    if side == "gattn":
        return Side(lambda: _weights(heads, [tree_heads(one) for one in heads]))
    graphs = [_graph(one) for one in heads]

    def theirs() -> Tensor:
        found = []
        for graph in graphs:
            parents = np.full(size, -1)
            for parent, word in nx.maximum_spanning_arborescence(graph).edges():
                parents[word] = parent
            found.append(parents)
        return _weights(heads, found)

    return Side(theirs)


def _weights(heads: np.ndarray, found: list[np.ndarray]) -> Tensor:
    """Give the weight of each word's edge; the root has none."""
    rows = [
        np.where(parents < 0, 0.0, one[np.arange(len(one)), parents])
        for one, parents in zip(heads, found, strict=True)
    ]
    return torch.from_numpy(np.stack(rows))


def _graph(matrix: np.ndarray) -> nx.DiGraph:
    graph: nx.DiGraph = nx.DiGraph()
    for word, parent in np.argwhere(matrix > 0).tolist():
        graph.add_edge(parent, word, weight=float(matrix[word, parent]))
    return graph
