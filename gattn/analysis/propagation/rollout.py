"""Rollout: how much of each token's state comes from each token of the text."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gattn.analysis.propagation.mixed import NOTED, Mixed, Residual
from gattn.analysis.reading.attention import Attention
from gattn.analysis.reading.layers_of import layers_of
from gattn.analysis.reading.reductions import Reduction
from gattn.analysis.reading.results import Array
from gattn.names.choices import HeadChoice


def rollout(
    attention: Attention,
    *,
    tokens: Sequence[str] = (),
    heads: HeadChoice = None,
    reduce: Reduction = "mean",
    residual: Residual = None,
    from_layer: int | None = None,
) -> Array:
    r"""Roll attention out: how much of each token's state comes from each token of the text.

    .. math::

        R_l = \tilde A_l R_{l-1}, \quad R_{\text{from\_layer}-1} = I, \quad
        \tilde A_{ij} = \frac{(1 - r_i) A_{ij} + r_i \delta_{ij}}{(1 - r_i) \sum_k A_{ik} + r_i}

    with A a layer's attention, its heads made one, and r the share of the residual stream. Each
    row sums to 1, or to 0 if a token attends to nothing and r = 0.

    Parameters
    ----------
    attention : Attention
        A trace, stack, head, or array, of self-attention in consecutive layers.
    tokens : sequence of str
        The texts of an array's tokens.
    heads : int, sequence of int, or sequence of (layer, head), optional
        Which heads are read: one or several of every layer, or heads at places; by default all that
        each layer has. If none is read of a layer, the residual stream passes through it alone.
    reduce : str or array
        How a layer's heads become one: "mean", "max", "min", or one weight per head, (heads,) or
        (layers, heads).
    residual : float or array (layers, tokens), optional
        The share r, from 0 (none) to 1; `gattn.analysis.residual_shares` measures it for each layer
        and token. By default 0.5, or 0 if the numbers hold the residual already, as those of `alti`
        and of ``contributions(..., of="residual")`` do: it is never added twice.
    from_layer : int, optional
        The layer to start from, by default the first.

    Returns
    -------
    Array (layer, query, key)
        R after each layer from `from_layer` on. If edges were dropped, each number is a lower
        bound, and the coordinate ``error_bound`` (layer, query) says how much a row may lack.

    Raises
    ------
    ShapeError
        If it does not have the shape of attention, or is negative.
    SelectionError
        If there is no such head, layer or share, layers are missing in between, the numbers are
        rolled out already, or the residual stream has no share of them, as of lengths of vectors.

    References
    ----------
    Abnar and Zuidema (2020), Quantifying attention flow in transformers.
    """
    mixed = Mixed.of(
        layers_of(attention, tokens, differing=True), heads, reduce, residual, from_layer
    )
    rolled, bounds = mixed.rolled()
    error = torch.stack(bounds)
    notes = mixed.notes()
    if (worst := float(error.max())) > NOTED:
        notes.append(f"lower bounds: they lack at most {worst:.2g}, see error_bound")
    rows = range(len(error[0]))
    found = mixed.array(torch.stack(rolled), "rollout", notes, {"query": rows, "key": rows})
    return found.assign_coords(error_bound=(("layer", "query"), error.cpu().numpy()))
