"""Spectra of heads without directions, and hidden states as signals on their graphs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from gattn.analysis.reading.arguments import share
from gattn.analysis.reading.attention import Attention
from gattn.analysis.reading.hidden_states import Hidden, read_hidden
from gattn.analysis.reading.layers import Layers
from gattn.analysis.reading.layers_of import layers_of
from gattn.analysis.reading.results import Array, Table
from gattn.errors import SelectionError, ShapeError
from gattn.progress import walk


def graph_frequencies(
    attention: Attention,
    *,
    tokens: Sequence[str] = (),
    self_loops: bool = False,
    progress: bool = True,
) -> Array:
    r"""Compute the eigenvalues of each head's normalized Laplacian, its frequencies.

    With the symmetric part :math:`S = (A + A^T) / 2` and its degrees D,

    .. math:: L = I - D^{-1/2} S D^{-1/2},

    and 0 in the row of a token without edges. Frequencies lie between 0 and 2: as many are 0 as
    the graph has components, and the largest is 2 if it is bipartite.

    Parameters
    ----------
    attention : Attention
        Self-attention.
    tokens : sequence of str
        The texts of an array's tokens; the result names no tokens.
    self_loops : bool
        Whether tokens' attention to themselves counts in their degrees. Self-loops pull all
        frequencies towards 0.
    progress : bool
        Whether to show a progress bar.

    Returns
    -------
    Array
        (layer, head, index), rising.

    Raises
    ------
    ShapeError
        If attention is negative.
    SelectionError
        If queries and keys are not the same tokens.
    """
    layers = layers_of(attention, tokens).square()
    rows = [
        torch.linalg.eigvalsh(laplacian).clamp_min(0)
        for laplacian in _laplacians(layers, self_loops, progress)
    ]
    axes = layers.axes("layer", "head") | {"index": range(len(layers.positions))}
    values = torch.stack(rows)
    return layers.array(values, axes, "frequency", _notes(layers), self_loops=self_loops)


def spectral_table(
    attention: Attention,
    hidden: Hidden | None = None,
    *,
    tokens: Sequence[str] = (),
    self_loops: bool = False,
    high: float = 0.5,
    progress: bool = True,
) -> Table:
    r"""Describe the spectrum of every head, and how hidden states X vary along its edges.

    Parameters
    ----------
    attention : Attention
        Self-attention.
    hidden : Hidden, optional
        Hidden states of the same tokens: (tokens, dim) for all layers; one state for each layer
        that is there, in their order; or, of attention in all layers, all of a model's
        ``hidden_states``, one more than it has layers, of which layer l reads state l. Layers of a
        trace count calls: if some layers have no attention, or only some were captured, take the
        states that those layers read, as in ``[hidden_states[n] for n in which]``.
    tokens : sequence of str
        The texts of an array's tokens; the result names no tokens.
    self_loops : bool
        As in `graph_frequencies`.
    high : float
        The share of the eigenvectors, those of the largest eigenvalues, that count as high
        frequencies.
    progress : bool
        Whether to show a progress bar.

    Returns
    -------
    Table
        One row per ``layer`` and ``head``, with

        - ``fiedler``: the second smallest eigenvalue of L (see `graph_frequencies`), 0 if the
          graph falls into components; the larger, the harder it is to cut in two;
        - ``largest``: the largest eigenvalue;

        and, if hidden states are given,

        - ``smoothness``: :math:`\mathrm{Tr}(X^T L X) / \mathrm{Tr}(X^T X)`, the mean frequency of
          X by energy: the *smaller*, the more alike the states of tokens that attend to each
          other;
        - ``high_frequency``: the share of X's energy in the high frequencies. Equal eigenvalues at
          the cut share theirs.

    Raises
    ------
    ShapeError
        If attention is negative, or hidden states have other tokens.
    SelectionError
        If queries and keys are not the same tokens, `high` is not a share, or there are not as
        many hidden states as layers.

    References
    ----------
    Noël (2026), Geometry of reason: spectral signatures of valid mathematical reasoning, which
    takes the mean of a layer's heads as one graph, self-loops included. Shuman et al. (2013), The
    emerging field of signal processing on graphs.
    """
    high = share(high, "high")
    if high in (0, 1):
        raise SelectionError(f"high is a share between 0 and 1, not {high}.")
    layers = layers_of(attention, tokens).square()
    states = None if hidden is None else _states(hidden, layers)
    rows: list[dict[str, float]] = []
    for n, laplacian in enumerate(_laplacians(layers, self_loops, progress)):
        found = _described(laplacian, None if states is None else states[n], high)
        names, values = tuple(found), torch.stack(list(found.values()), -1).tolist()
        rows += [
            {"layer": layers.layers[n], "head": head, **dict(zip(names, row, strict=True))}
            for head, row in zip(layers.heads, values, strict=True)
        ]
    return layers.table(Table, rows, ["layer", "head"], "spectra", _notes(layers))


def normalized_laplacian(attention: Tensor, self_loops: bool = False) -> Tensor:
    """Build L = I - D^-1/2 S D^-1/2 of matrices (..., tokens, tokens); see `graph_frequencies`."""
    if not self_loops:
        attention = attention - torch.diag_embed(attention.diagonal(dim1=-2, dim2=-1))
    symmetric = (attention + attention.mT) / 2
    degree = symmetric.sum(-1)
    scale = torch.where(degree > 0, degree, torch.inf).rsqrt()
    linked = torch.diag_embed((degree > 0).to(attention))
    return linked - scale[..., :, None] * symmetric * scale[..., None, :]


def _described(laplacian: Tensor, state: Tensor | None, high: float) -> dict[str, Tensor]:
    """Describe the heads of a layer; see `spectral_table`."""
    if state is None:
        frequencies, signal = torch.linalg.eigvalsh(laplacian), {}
    else:
        frequencies, waves = torch.linalg.eigh(laplacian)
        state = state.to(laplacian)
        energy = (waves.mT @ state).square().sum(-1)
        whole = state.square().sum()
        signal = {
            "smoothness": (state * (laplacian @ state)).sum((-2, -1)) / whole,
            "high_frequency": (energy * _is_high(frequencies, high)).sum(-1) / whole,
        }
    frequencies = frequencies.clamp_min(0)
    second = min(1, frequencies.shape[-1] - 1)
    return {"fiedler": frequencies[:, second], "largest": frequencies[:, -1], **signal}


def _laplacians(layers: Layers, self_loops: bool, progress: bool) -> Iterator[Tensor]:
    fewer = "take fewer layers or heads, as in capture(text, layers=[0, 1])"
    for n in walk(range(len(layers)), "spectra", "layer", progress=progress, fewer=fewer):
        yield normalized_laplacian(layers.read(n), self_loops)


def _is_high(frequencies: Tensor, high: float) -> Tensor:
    """Say of each eigenvector whether it is of the upper ones, or which share of equals is."""
    count = frequencies.shape[-1]
    first = min(count - 1, count - int(high * count + 0.5))
    cut = frequencies[:, first, None]
    tolerance = 8 * count * torch.finfo(frequencies.dtype).eps
    equal = (frequencies - cut).abs() <= tolerance
    upper = equal[:, first:].sum(-1, keepdim=True) / equal.sum(-1, keepdim=True)
    return torch.where(equal, upper.to(frequencies), (frequencies > cut).to(frequencies))


def _states(hidden: Hidden, layers: Layers) -> list[Tensor]:
    states = read_hidden(hidden)
    if states.shape[1] != len(layers.positions):
        raise ShapeError(
            f"There are hidden states of {states.shape[1]} tokens, and attention among "
            f"{len(layers.positions)}: give those of the same text, padding cut off."
        )
    if len(states) == 1:
        return [states[0]] * len(layers)
    count = len(layers)
    is_whole = layers.layers == tuple(range(count)) and len(states) == count + 1
    if len(states) != count and not is_whole:
        raise SelectionError(
            f"There are {len(states)} hidden states and {count} layers of attention, "
            f"{list(layers.layers)}: give those that these layers read, one each, as in "
            "[hidden_states[n] for n in which]."
        )
    return list(states[:count])


def _notes(layers: Layers) -> list[str]:
    if not bool((layers.dropped > 1e-6).any()):
        return []
    return [
        "frequencies are those of the kept edges; others can move them either way, without a "
        "useful bound"
    ]
