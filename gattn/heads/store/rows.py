"""What a store does with blocks of whole rows, and with numbers of all rows."""

from __future__ import annotations

from torch import Tensor

from gattn.engines.tensors.moving import moved
from gattn.heads.store import apart
from gattn.keep import sizes_of
from gattn.largest import flat_indices
from gattn.normalizers.base import neighbourhood_sums


def widened(rows: Tensor, size: int) -> Tensor:
    """Extend (heads, rows) with zeros to at least `size` rows."""
    heads, known = rows.shape
    if size <= known:
        return rows
    wider = apart.empty(heads, max(size, 2 * known), rows.dtype).zero_()
    wider[:, :known] = rows
    return wider


def masses(attention: Tensor, row: Tensor, num_rows: int) -> tuple[Tensor, Tensor]:
    """Sum up the sizes, and the values, of the edges (heads, edges) of each row."""
    sizes = sizes_of(attention)
    mass = neighbourhood_sums(sizes, row, num_rows)
    return mass, mass if sizes is attention else neighbourhood_sums(attention, row, num_rows)


def picked(values: dict[str, Tensor], allowed: Tensor | None) -> dict[str, Tensor]:
    """Return the edges of blocks (heads, rows, columns) as (heads, edges)."""
    if allowed is None:
        return {name: block.flatten(1) for name, block in values.items()}
    # much faster than masked_select with a broadcast mask
    edge = moved(flat_indices(allowed), values["attention"].device)
    return {name: block.flatten(1).index_select(1, edge) for name, block in values.items()}
