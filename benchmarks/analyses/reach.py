"""Reach, walks and bottlenecks compared with scipy, dense products and NetworkX."""

import itertools
from functools import partial

import networkx as nx
import numpy as np
import torch
from scipy.sparse.csgraph import shortest_path

from benchmarks.row import Row, Side
from gattn import TokenGraph
from gattn.analysis import bottlenecks, reach, walks

WIDTH = 64
LAYERS = 12


def rows(quick: bool) -> list[Row]:
    """List the rows: windows of 64 tokens, and cuts in 12 causal layers."""
    size, few = (256, 16) if quick else (4096, 64)
    return [
        Row(
            f"analysis-reach/{size}",
            f"layers until each token reaches every other, window of {WIDTH}",
            "scipy.sparse.csgraph.shortest_path, unweighted",
            size,
            _reach,
            time_bar=1 / 2,
        ),
        Row(
            f"analysis-walks/{size}",
            f"walks through {LAYERS} layers, window of {WIDTH}",
            "numpy.linalg.matrix_power of the dense matrix",
            size,
            _walks,
            time_bar=1 / 2,
        ),
        Row(
            f"analysis-bottlenecks/{few}",
            f"minimum cut between two tokens, {LAYERS} causal layers",
            "nx.minimum_node_cut of the unrolled graph, built beforehand",
            few,
            _bottlenecks,
            small=8,
        ),
    ]


def _reach(side: str, size: int, device: str) -> Side:
    graph = TokenGraph.window(size, WIDTH)
    if side == "gattn":
        return Side(lambda: _numbers(reach(graph, progress=False).to_numpy()))
    matrix = nx.to_scipy_sparse_array(graph.to_networkx(), format="csr", dtype=float)
    return Side(lambda: _numbers(shortest_path(matrix, unweighted=True).T))


def _numbers(layers: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.where(np.isinf(layers), -1.0, layers))


def _walks(side: str, size: int, device: str) -> Side:
    graph = TokenGraph.window(size, WIDTH)
    if side == "gattn":
        found = partial(walks, graph, depth=LAYERS, progress=False)
        return Side(lambda: torch.from_numpy(found().to_numpy()))
    matrix = graph.mask().double().numpy()
    return Side(lambda: torch.from_numpy(np.linalg.matrix_power(matrix, LAYERS)))


def _bottlenecks(side: str, size: int, device: str) -> Side:
    key, query = size // 4, size // 2
    if side == "gattn":
        graph = TokenGraph.causal(size)
        return Side(lambda: torch.tensor([len(bottlenecks(graph, key, query, depth=LAYERS))]))
    unrolled = nx.DiGraph()
    places = itertools.product(range(LAYERS), range(size))
    unrolled.add_edges_from(((n, j), (n + 1, i)) for n, j in places for i in range(j, size))
    return Side(
        lambda: torch.tensor([len(nx.minimum_node_cut(unrolled, (0, key), (LAYERS, query)))])
    )
