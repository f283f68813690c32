"""Barcodes: how a head's components and loops come and go as weaker attention counts too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import minimum_spanning_tree
from scipy.special import entr
from torch import Tensor

from gattn.analysis.reading.attention import Attention
from gattn.analysis.reading.dropped import at_most, largest_dropped
from gattn.analysis.reading.layers_of import layers_of
from gattn.analysis.reading.results import Table, edits_of
from gattn.errors import DependencyError, SelectionError, ShapeError
from gattn.progress import walk

_PLACE = ["layer", "head", "dimension"]
_ROUNDING = 1e-5


class Barcode(Table):
    """The bars of heads: one row per bar, by ``layer``, ``head`` and ``dimension``."""

    def summary(self) -> Table:
        r"""Describe the bars of each head in one row per dimension.

        With the bars' lengths :math:`l_k` and their shares :math:`p_k = l_k / \sum_m l_m`:

        - ``number``, ``sum``, ``mean`` and ``std`` of the lengths; the mean and the deviation are
          NaN if there are no bars;
        - ``entropy``: :math:`-\sum_k p_k \ln p_k`, in nats: 0 if one bar has all the length.

        Heads without bars, those of a single token, have rows, too.
        """
        heads = list(dict.fromkeys(place[:2] for place in self.index)) or self.attrs["heads"]
        dimensions = range(int(self.attrs["dimension"]) + 1)
        places = pd.MultiIndex.from_tuples(
            [(*head, dimension) for head in heads for dimension in dimensions], names=_PLACE
        )
        bars = (self["death"] - self["birth"]).groupby(level=_PLACE)
        columns = {
            "number": bars.size().reindex(places, fill_value=0),
            "sum": bars.sum().reindex(places, fill_value=0.0),
            "mean": bars.mean().reindex(places),
            "std": bars.std(ddof=0).reindex(places),
            "entropy": bars.agg(_entropy).reindex(places, fill_value=0.0),
        }
        return Table.of(
            columns,
            name="barcode summary",
            computed_from=self.computed_from,
            notes=self.notes,
            edits=edits_of(self),
        )


def barcode(
    attention: Attention, *, tokens: Sequence[str] = (), dimension: int = 0, progress: bool = True
) -> Barcode:
    r"""Compute the barcodes of each head.

    Tokens i and j lie at the distance :math:`1 - \max(A_{ij}, A_{ji})` of each other, and are
    linked from that distance on. A bar of dimension 0 is a component, from 0 to the distance at
    which it joins another one: the deaths are the edges of the minimum spanning tree. A bar of
    dimension 1 is a loop, from the distance that closes it to the one at which triangles fill it.

    Parameters
    ----------
    attention : Attention
        Self-attention.
    tokens : sequence of str
        The texts of an array's tokens; the result names no tokens.
    dimension : int
        0, or 1 to have loops too. These need the package ripser, and time: seconds for a causal
        head of 512 tokens, and minutes for one that sees ahead.
    progress : bool
        Whether to show a progress bar.

    Returns
    -------
    Barcode
        One row per bar, with ``birth`` and ``death``. Of n tokens there are n - 1 bars of dimension
        0; the one that never dies is left out. Where edges were dropped, the notes say how far bars
        may be off: the diagram of a filtration moves by no more than its values do.

    Raises
    ------
    ShapeError
        If attention is negative or more than 1.
    SelectionError
        If queries and keys are not the same tokens, `dimension` is another one, or ripser is
        not installed.

    References
    ----------
    Kushnareva et al. (2021), Artificial text detection via examining the topology of attention
    maps. Bauer (2021), Ripser: efficient computation of Vietoris-Rips persistence barcodes.
    Cohen-Steiner, Edelsbrunner and Harer (2007), Stability of persistence diagrams.
    """
    if dimension not in (0, 1):
        raise SelectionError(f"Barcodes have the dimensions 0 and 1, not {dimension!r}.")
    if dimension:
        _ripser()
    layers = layers_of(attention, tokens).square()
    rows: list[tuple[int, int, int, float, float]] = []
    places = [(n, row) for n in range(len(layers)) for row in range(len(layers.heads))]
    fewer = "take fewer tokens or heads, as in trace[1, 3]"
    strengths = torch.zeros(0, device="cpu")
    for n, row in walk(places, "barcodes", "head", progress=progress, fewer=fewer):
        if row == 0:
            strengths = _strengths(layers.read(n))
        strength = strengths[row].cpu().numpy()
        place = (layers.layers[n], layers.heads[row])
        rows += [(*place, 0, 0.0, death) for death in _deaths(strength)]
        if dimension:
            rows += [(*place, 1, birth, death) for birth, death in _loops(strength)]
    bars = pd.DataFrame(rows, columns=[*_PLACE, "birth", "death"])
    bars = bars.astype({"birth": np.float64, "death": np.float64})
    bound = largest_dropped(layers).max()
    notes = _errors(at_most(bound), dimension) if bound > 1e-6 else []
    heads = [(layer, head) for layer in layers.layers for head in layers.heads]
    facts = {"dimension": dimension, "heads": heads}
    return layers.table(Barcode, bars, _PLACE, "barcode", notes, **facts)


def _errors(bound: str, dimension: int) -> list[str]:
    """Return how far bars may be off if distances may be up to `bound` shorter."""
    notes = [f"bars of dimension 0 may end up to {bound} earlier, for edges that were not kept"]
    if dimension:
        notes.append(
            f"bars of dimension 1 may begin and end up to {bound} earlier each, and those of up to "
            f"{bound} may come and go"
        )
    return notes


def _strengths(matrices: Tensor) -> Tensor:
    """Return max(A, A^T), checked to lie between 0 and 1."""
    largest = float(matrices.max())
    if largest > 1 + _ROUNDING:
        raise ShapeError(
            f"Distances are 1 - attention, but there is attention of {largest:.3g}: barcodes need "
            "attention from 0 to 1."
        )
    return torch.maximum(matrices, matrices.mT).clamp_max(1)


def _deaths(strength: NDArray[np.floating[Any]]) -> list[float]:
    """List the edges of the minimum spanning tree, rising; tokens without edges are at 1."""
    # SciPy before 1.17 takes graphs with indices of 32 bits alone.
    query, key = (side.astype(np.int32) for side in np.nonzero(np.triu(strength, 1)))
    # SciPy takes a distance of 0 for no edge, so that all are one longer.
    longer = csr_array((2.0 - strength[query, key], (query, key)), shape=strength.shape)
    found = np.sort(minimum_spanning_tree(longer).data - 1)
    return [*found.tolist(), *[1.0] * (len(strength) - 1 - len(found))]


def _loops(strength: NDArray[np.floating[Any]]) -> list[list[float]]:
    distance = 1 - strength
    np.fill_diagonal(distance, 0)
    found = _ripser()(distance, distance_matrix=True, maxdim=1)["dgms"][1]
    bars: list[list[float]] = found[np.lexsort(found.T[::-1])].astype(np.float64).tolist()
    return bars


def _ripser() -> Any:
    try:
        from ripser import ripser
    except ImportError as error:
        raise DependencyError(
            "Bars of dimension 1 need the package ripser: pip install 'gattn[topology]'."
        ) from error
    return ripser


def _entropy(lengths: pd.Series[float]) -> float:
    whole = lengths.sum()
    return float(entr(lengths / whole).sum()) if whole > 0 else 0.0
