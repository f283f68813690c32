"""Spectra of all heads compared with NetworkX, which builds each head's graph."""

from __future__ import annotations

import networkx as nx
import numpy as np
import torch
from torch import Tensor

from benchmarks.analyses._attention import causal_attention
from benchmarks.row import Row, Side
from gattn.analysis import graph_frequencies

LAYERS, HEADS = 2, 12


def rows(quick: bool) -> list[Row]:
    """List the row."""
    size = 32 if quick else 256
    work = f"frequencies of {LAYERS} x {HEADS} heads, {size} tokens, causal"
    peer = "networkx.normalized_laplacian_spectrum, head by head"
    return [Row("analysis-spectral", work, peer, size, _build, time_bar=1 / 5, small=8)]


def _build(side: str, size: int, device: str) -> Side:
    attention = causal_attention(LAYERS, HEADS, size)
    if side == "gattn":
        return Side(
            lambda: torch.from_numpy(graph_frequencies(attention, progress=False).to_numpy())
        )
    matrices = attention.flatten(0, 1).numpy()

    def theirs() -> Tensor:
        spectra = []
        for matrix in matrices:
            symmetric = (matrix + matrix.T) / 2
            np.fill_diagonal(symmetric, 0)
            graph = nx.from_numpy_array(symmetric)
            spectra.append(np.sort(nx.normalized_laplacian_spectrum(graph).real))
        return torch.from_numpy(np.array(spectra).reshape(LAYERS, HEADS, size))

    return Side(theirs)
