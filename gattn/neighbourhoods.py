"""Ragged neighbourhoods as padded rows."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor


def padded_rows(query: Tensor, num_queries: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Group the neighbourhoods of near-equal degree and pad each group to rows.

    Rows of degree 2^(k-1) + 1 .. 2^k share a group, so padding at most doubles the edges.

    Parameters
    ----------
    query : Tensor
        The query of each edge, shape (E,), in any order.
    num_queries : int
        How many queries there are.

    Yields
    ------
    edges : Tensor
        Indices into the edges, shape (rows, slots), each row in edge order; 0 where padded.
    present : Tensor
        Booleans (rows, slots), False where padded.
    """
    order = torch.argsort(query, stable=True)
    degree = torch.bincount(query, minlength=num_queries)
    start = degree.cumsum(0) - degree
    group = torch.ceil(torch.log2(degree.clamp_min(1).double())).masked_fill(degree == 0, -1)
    for size in group.unique().tolist():
        if size < 0:
            continue
        rows = (group == size).nonzero()[:, 0]
        slots = torch.arange(int(degree[rows].max()), device=query.device)
        present = slots < degree[rows, None]
        place = (start[rows, None] + slots).masked_fill(~present, 0)
        yield order[place].masked_fill(~present, 0), present
