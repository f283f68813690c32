"""Chains of every head compared with NetworkX and NumPy, on attention drawn at random."""

from functools import partial
from typing import Any

import networkx as nx
import numpy as np
import torch
from torch import Tensor

from benchmarks.row import Row, Side
from gattn.analysis import mixing, pagerank


def rows(quick: bool) -> list[Row]:
    """List the rows: a layer of 12 heads; fewer and smaller ones if `quick`."""
    heads, size = ((1, 4), 64) if quick else ((1, 12), 512)
    what = f"{heads[0] * heads[1]} heads"
    return [
        Row(
            f"analysis-pagerank/{size}",
            f"PageRank of {what}",
            "nx.pagerank of each head's graph, built beforehand",
            size,
            partial(_pagerank, heads=heads),
            small=16,
        ),
        Row(
            f"analysis-mixing/{size}",
            f"second eigenvalues of {what}",
            "numpy.linalg.eigvals of each head",
            size,
            partial(_mixing, heads=heads),
            small=16,
        ),
    ]


def _attention(heads: tuple[int, int], size: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(*heads, size, size, generator=generator, dtype=torch.float64)
    return (2 * scores).softmax(-1)


def _pagerank(side: str, size: int, device: str, *, heads: tuple[int, int]) -> Side:
    attention = _attention(heads, size)
    if side == "gattn":
        attention = attention.to(device)
        return Side(lambda: torch.from_numpy(pagerank(attention, progress=False).to_numpy()))
    graphs = [
        nx.from_numpy_array(matrix, create_using=nx.DiGraph)
        for matrix in attention.flatten(0, 1).numpy()
    ]
    return Side(lambda: _ranked(graphs).reshape(*heads, size))


def _ranked(graphs: list[Any]) -> Tensor:
    ranks = [nx.pagerank(graph, tol=1e-9) for graph in graphs]
    return torch.tensor([[rank[node] for node in sorted(rank)] for rank in ranks]).double()


def _mixing(side: str, size: int, device: str, *, heads: tuple[int, int]) -> Side:
    attention = _attention(heads, size)
    if side == "gattn":
        attention = attention.to(device)
        return Side(
            lambda: torch.from_numpy(
                mixing(attention, progress=False)["second_eigenvalue"].to_numpy(copy=True)
            )
        )
    matrices = attention.flatten(0, 1).numpy()
    return Side(lambda: torch.from_numpy(_second(matrices)))


def _second(matrices: Any) -> Any:
    return np.array([np.sort(np.abs(np.linalg.eigvals(one)))[-2] for one in matrices])
