"""How much heads read what earlier heads write, from the weights alone."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from gattn.analysis.reading.results import Table
from gattn.errors import CaptureError
from gattn.models.decompose.layer_weights import LayerWeights, layer_weights
from gattn.models.decompose.linear_runs import LinearRuns
from gattn.progress import walk

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from gattn.models.load.loading import Model

SIDES = ("query", "key", "value")
INDEX = ("layer", "head", "from_layer", "from_head")


class Composition(Table):
    """What `gattn.compose` gives: a `Table` whose picture is a matrix of heads."""


def compose(
    model: Model = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    *,
    stack: str | None = None,
    progress: bool = True,
) -> Composition:
    r"""Score how much each head reads what each head of an earlier layer writes.

    For a head h that reads and an earlier head g that writes,

    .. math::
        \frac{\|W_{QK}^{h\top} W_{OV}^g\|}{\|W_{QK}^h\| \|W_{OV}^g\|}, \quad
        \frac{\|W_{QK}^h W_{OV}^g\|}{\|W_{QK}^h\| \|W_{OV}^g\|}, \quad
        \frac{\|W_{OV}^h W_{OV}^g\|}{\|W_{OV}^h\| \|W_{OV}^g\|}

    are its Q-, K- and V-composition (Frobenius norms; vectors are columns here), with
    :math:`W_{QK} = W_Q W_K^\top` and :math:`W_{OV} = W_O W_V` of dim of the model. Each norm is of
    matrices as wide as a head, :math:`\|Q K^\top O V\| = \|R_Q K^\top O R_V^\top\|` with R from QR
    decompositions, for all heads of two layers at once.

    Norms are folded into the weights as usual, gain and mean, without the part that depends on the
    token; where all heads read the stream centred, what is written is centred as well. Grouped
    keys and values count for each head that reads them. Rotary embeddings are those of a token that
    attends to itself: none.

    Parameters
    ----------
    model, tokenizer
        As in `gattn.capture`: a model of transformers that reads token ids. It is run on single
        tokens, whose residual stream is replaced by unit vectors: that reads the weights of all.
    stack : str, optional
        Which stack of self-attention; needed where the model has several.
    progress : bool
        Whether to show a progress bar.

    Returns
    -------
    Table
        One row per pair, by ``layer`` and ``head`` of the one that reads, ``from_layer`` and
        ``from_head`` of the one that writes, with the columns ``query``, ``key`` and ``value``.
        ``attrs["baseline"]`` is what to expect of random matrices, :math:`1 / \sqrt{d}` for
        streams of dimension d (one less where they are read centred): the root mean square
        if the one that reads is turned at random.

    Raises
    ------
    CaptureError
        If the model reads no token ids, its attention is not a sum of linear maps of values, or
        queries, keys or values are not linear in what norms give.
    SelectionError, ModelError
        As in `gattn.analysis.contributions`.

    References
    ----------
    Elhage et al. (2021), A mathematical framework for transformer circuits.
    """
    runs = LinearRuns(model, tokenizer, stack)
    layers = centred(runs, layer_weights(runs))
    if len(layers) < 2:
        raise CaptureError(
            f"{runs.name} has one layer of self-attention: expected at least two, as heads compose "
            "with those of earlier layers."
        )
    writers = [writing(one) for one in layers]
    rows = []
    for n in walk(range(1, len(layers)), "composition", "layer", progress=progress):
        sides = reading(layers[n])
        rows += [
            _pairs(layers[n].layer, earlier.layer, scores(writer, sides))
            for earlier, writer in zip(layers[:n], writers, strict=False)
        ]
    table = {name: np.concatenate([row[name] for row in rows]) for name in (*INDEX, *SIDES)}
    expected = baseline(runs, layers)
    made = Composition.of(
        table,
        name="composition",
        computed_from=f"the weights of {runs.name}, {runs.stack} stack",
        notes=[f"random matrices: {expected:.3f}", *stream_notes(runs)],
        index=INDEX,
        baseline=expected,
    )
    return made.sort_index()


def reads_centred(runs: LinearRuns, layers: list[LayerWeights]) -> bool:
    """Return whether no head reads the mean of the stream, as after layer norms."""
    return all(
        bool((x.sum(-2).abs() <= runs.tolerance * x.abs().sum(-2).amax()).all())
        for layer in layers
        for x in (layer.query, layer.key, layer.value)
    )


def centred(runs: LinearRuns, layers: list[LayerWeights]) -> list[LayerWeights]:
    """Leave out the mean of what heads write, if no head reads it."""
    if not reads_centred(runs, layers):
        return layers
    return [replace(x, output=x.output - x.output.mean(-1, keepdim=True)) for x in layers]


def baseline(runs: LinearRuns, layers: list[LayerWeights]) -> float:
    """Return the composition that random matrices have."""
    return float((runs.width - reads_centred(runs, layers)) ** -0.5)


def stream_notes(runs: LinearRuns) -> list[str]:
    """Say what stands between the layers that weights alone do not tell."""
    if any(part.is_post_norm for part in runs.sublayers):
        return ["norms of the residual stream itself, between the layers, are left out"]
    return []


def root(matrix: Tensor) -> Tensor:
    """Return R (..., columns, columns) with R^T R = M^T M of matrices M (..., rows, columns)."""
    found: Tensor = torch.linalg.qr(matrix, mode="r").R
    return found


def reading(layer: LayerWeights) -> tuple[Tensor, Tensor, Tensor]:
    """Return what reads on each side, as long as W_QK or W_OV: (heads, dim, head dim)."""
    return (
        layer.query @ root(layer.key).mT,
        layer.key @ root(layer.query).mT,
        layer.value @ root(layer.output.mT).mT,
    )


def writing(layer: LayerWeights) -> Tensor:
    """Return for each head what writes, as long as W_OV: (heads, value dim, dim)."""
    return root(layer.value) @ layer.output


def scores(writer: Tensor, sides: tuple[Tensor, ...]) -> Tensor:
    """Return the scores of heads on each side: (sides, heads that read, heads that write)."""
    found = []
    for side in sides:
        (count, width), (read, columns) = writer.shape[:2], side.shape[::2]
        products = writer.flatten(0, 1) @ side.transpose(0, 1).flatten(1)
        squares = products.square_().view(count, width, read, columns).sum((1, 3))
        found.append(squares.sqrt().T / _size(side)[:, None] / _size(writer))
    return torch.stack(found)


def _size(matrices: Tensor) -> Tensor:
    """Return the norms of matrices."""
    size: Tensor = torch.linalg.matrix_norm(matrices)
    return size.clamp_min(torch.finfo(size.dtype).tiny)


def _pairs(layer: int, earlier: int, scores: Tensor) -> dict[str, np.ndarray]:
    """Return the columns of all pairs of heads of two layers."""
    head, other = np.indices(scores.shape[1:]).reshape(2, -1)
    places = (np.full_like(head, layer), head, np.full_like(head, earlier), other)
    columns = dict(zip(INDEX, places, strict=True))
    numbers = scores.flatten(1).cpu().numpy()
    return columns | dict(zip(SIDES, numbers, strict=True))
