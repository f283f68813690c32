"""Distances between heads, compared with scipy, pair by pair."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import torch
from scipy.spatial.distance import jensenshannon, squareform
from torch import Tensor

from benchmarks.row import Row, Side
from gattn.analysis import head_distances

HEADS, DIM = 48, 16


def rows(quick: bool) -> list[Row]:
    """List the row."""
    size = 32 if quick else 128
    what = f"{HEADS} causal heads, {size} tokens"
    return [
        Row(
            "analysis-head-distances",
            f"Jensen-Shannon distances of all pairs of {what}",
            "scipy's jensenshannon, pair by pair",
            size,
            _distances,
            time_bar=1 / 2,
            growth=(128, 256, 512),
            small=8,
        ),
    ]


def _query_and_key(size: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    query, key = (torch.randn(HEADS, size, DIM, generator=generator) for _ in range(2))
    return 2 * query, key


def _distances(side: str, size: int, device: str) -> Side:
    query, key = _query_and_key(size)
    scores = (query @ key.mT / DIM**0.5).double()
    attention = scores.masked_fill(~torch.ones(size, size).tril().bool(), -torch.inf).softmax(-1)
    if side == "gattn":
        attention = attention.to(device)
        return Side(lambda: torch.from_numpy(head_distances(attention, progress=False).to_numpy()))
    matrices = attention.numpy()

    def by_scipy() -> Tensor:
        found = [
            np.nan_to_num(jensenshannon(one, other, axis=1)).mean()
            for one, other in combinations(matrices, 2)
        ]
        return torch.from_numpy(squareform(found))

    return Side(by_scipy)
