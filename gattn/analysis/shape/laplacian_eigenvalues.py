"""LapEigvals: the Laplacian eigenvalues of causal attention, one per token."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from gattn.analysis.reading.attention import Attention
from gattn.analysis.reading.dropped import at_most, edge_errors, reads_later
from gattn.analysis.reading.layers import Layers
from gattn.analysis.reading.layers_of import layers_of
from gattn.analysis.reading.results import Array
from gattn.checks import whole
from gattn.errors import SelectionError, ShapeError


def laplacian_eigenvalues(
    attention: Attention,
    *,
    tokens: Sequence[str] = (),
    unrolled: bool = False,
    top: int | None = None,
) -> Array:
    r"""Compute the Laplacian eigenvalues of causal attention, LapEigvals.

    A head's Laplacian is :math:`D - A` with the mean attention that a token gets as its degree,
    :math:`d_{jj} = \sum_i A_{ij} / (n - j)`, over the n - j tokens from j on. As A is triangular,
    the eigenvalues are the diagonal, one per token:

    .. math:: \lambda_j = \frac{1}{n - j} \sum_{i \ge j} A_{ij} - A_{jj}.

    It is large if later tokens read a token more than it reads itself.

    Parameters
    ----------
    attention : Attention
        Causal self-attention.
    tokens : sequence of str
        The texts of an array's tokens.
    unrolled : bool
        Whether the layers make one graph per head number, on the nodes (layer, token): what a token
        gives to itself in a layer is then the edge from the layer before, and counts in that
        layer's degree. In the first layer it stays a self-loop, and the last one has no layer
        after it. Degrees are divided by the number of edges out of a node, n - j + 1 in the first
        layer, n - j in others and n - j - 1 in the last.
    top : int, optional
        How many of the largest eigenvalues of each head to give; by default all, in the order of
        the tokens.

    Returns
    -------
    Array
        (layer, head, token), or, with `top`, (layer, head, rank), the largest first.

    Raises
    ------
    ShapeError
        If attention is negative, or goes to later tokens: then the matrix is not triangular, and
        the method not defined. `graph_frequencies` reads any self-attention.
    SelectionError
        If queries and keys are not the same tokens, `top` is not a number of tokens, or, unrolled,
        there is one layer or one is missing.

    References
    ----------
    Binkowski et al. (2025), Hallucination detection in LLMs using spectral features of attention
    maps; `unrolled` is the form that their code computes.
    """
    layers = layers_of(attention, tokens).square()
    if top is not None:
        top = whole("top", top, 1, SelectionError, most=len(layers.positions))
    if unrolled and len(layers.consecutive()) < 2:
        raise SelectionError("One layer cannot be unrolled: give two layers at least.")
    later = reads_later(layers)
    if later:
        raise ShapeError(
            "LapEigvals are the diagonal of a causal head's Laplacian, but here tokens attend to "
            "later ones, too: graph_frequencies and spectral_table read any self-attention."
        )
    values = torch.stack(list(_unrolled(layers) if unrolled else _by_layer(layers)))
    notes = []
    if (bound := _largest_error(layers)) > 1e-6:
        notes.append(f"for what was not kept each eigenvalue may be off by up to {at_most(bound)}")
    if later is None:
        notes.append("no edge to a later token is taken to be among those that were not kept")
    axes = layers.axes("layer", "head", "token")
    if top is not None:
        values = values.sort(-1, descending=True).values[..., :top]
        axes = layers.axes("layer", "head") | {"rank": range(top)}
    return layers.array(values, axes, "laplacian_eigenvalue", notes, unrolled=unrolled)


def _by_layer(layers: Layers) -> Iterator[Tensor]:
    left = _left(layers)
    for n in range(len(layers)):
        matrix = layers.read(n)
        yield matrix.sum(-2) / left.to(matrix) - matrix.diagonal(dim1=-2, dim2=-1)


def _unrolled(layers: Layers) -> Iterator[Tensor]:
    left, last = _left(layers), len(layers) - 1
    matrix = layers.read(0)
    for n in range(len(layers)):
        own = matrix.diagonal(dim1=-2, dim2=-1)
        later = matrix.sum(-2) - own
        after = layers.read(n + 1) if n < last else matrix
        up = after.diagonal(dim1=-2, dim2=-1)
        edges = left.to(matrix)
        if n == 0:
            yield (later + own + up) / (edges + 1) - own
        elif n < last:
            yield (later + up) / edges
        else:
            yield later / (edges - 1).clamp_min(1)
        matrix = after


def _left(layers: Layers) -> Tensor:
    """Count the tokens from each on."""
    return torch.arange(len(layers.positions), 0, -1, device="cpu")


def _largest_error(layers: Layers) -> float:
    """Bound how far an eigenvalue may be off for attention that was dropped."""
    edge = edge_errors(layers)
    later = edge.flip(-1).cumsum(-1).flip(-1)
    above = torch.cat([edge[1:], torch.zeros_like(edge[:1])])
    fewest = (_left(layers) - 1).clamp_min(1)
    return float(torch.maximum((later + above) / fewest, edge).max())
