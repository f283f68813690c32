"""Graphs over thresholds compared with NetworkX; barcodes compared with ripser, if installed."""

from __future__ import annotations

from importlib.util import find_spec

import networkx as nx
import numpy as np
import torch
from torch import Tensor

from benchmarks.analyses._attention import causal_attention
from benchmarks.row import Row, Side
from gattn.analysis import barcode, topology_table
from gattn.analysis.shape.topology import THRESHOLDS

LAYERS, HEADS = 12, 12
COLUMNS = ["edges", "strong_components", "betti0", "betti1"]


def rows(quick: bool) -> list[Row]:
    """List the rows."""
    size = 32 if quick else 512
    work = f"of {LAYERS} x {HEADS} heads, {size} tokens, causal"
    found = [
        Row(
            "analysis-topology",
            f"components and Betti numbers at {len(THRESHOLDS)} thresholds {work}",
            "the same with networkx, graph by graph",
            size,
            _counts,
            time_bar=1 / 5,
            small=8,
        )
    ]
    if find_spec("ripser"):
        peer = "ripser(maxdim=0), head by head"
        barcodes = f"barcodes of dimension 0 {work}"
        found.append(Row("analysis-barcode", barcodes, peer, size, _barcodes, 1.0, small=8))
    return found


def _counts(side: str, size: int, device: str) -> Side:
    attention = causal_attention(LAYERS, HEADS, size)
    if side == "gattn":

        def ours() -> Tensor:
            table = topology_table(attention, progress=False)
            return torch.from_numpy(table[COLUMNS].to_numpy(np.float64))

        return Side(ours)
    matrices = attention.flatten(0, 1).numpy()

    def theirs() -> Tensor:
        counts = [_of_graph(matrix >= t) for matrix in matrices for t in THRESHOLDS]
        return torch.tensor(counts, dtype=torch.float64)

    return Side(theirs)


def _of_graph(edges: np.ndarray) -> list[int]:
    graph = nx.DiGraph()
    graph.add_nodes_from(range(len(edges)))
    query, key = np.nonzero(edges & ~np.eye(len(edges), dtype=bool))
    graph.add_edges_from(zip(key.tolist(), query.tolist(), strict=True))
    plain = graph.to_undirected()
    components = nx.number_connected_components(plain)
    return [
        graph.number_of_edges(),
        nx.number_strongly_connected_components(graph),
        components,
        plain.number_of_edges() - len(plain) + components,
    ]


def _barcodes(side: str, size: int, device: str) -> Side:
    attention = causal_attention(LAYERS, HEADS, size)
    shape = (LAYERS * HEADS, size - 1)
    if side == "gattn":
        return Side(
            lambda: torch.from_numpy(
                barcode(attention, progress=False)["death"].to_numpy(copy=True).reshape(shape)
            )
        )
    from ripser import ripser

    strengths = torch.maximum(attention, attention.mT).flatten(0, 1).numpy()

    def theirs() -> Tensor:
        found = np.zeros(shape)  # ripser leaves out bars without length
        for row, strength in zip(found, strengths, strict=True):
            distance = 1 - strength
            np.fill_diagonal(distance, 0)
            bars = ripser(distance, distance_matrix=True, maxdim=0)["dgms"][0][:, 1]
            finite = np.sort(bars[np.isfinite(bars)])
            row[len(row) - len(finite) :] = finite
        return torch.from_numpy(found)

    return Side(theirs)
