"""The weights of attention, read from any model as what its heads make of its residual stream."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gattn.errors import CaptureError
from gattn.models.decompose.linear_runs import UNIT, LinearRuns, Seen
from gattn.models.stream.rounding import tolerance

_CHECKED = 4


@dataclass(frozen=True, eq=False)
class LayerWeights:
    r"""The weights of the heads of one layer; vectors of the residual stream are rows.

    For a vector x of the stream :math:`q = x W_Q + b_Q`, and so on; what a head's attention adds
    to the stream is :math:`\sum_j A_{ij} v_j W_O`. Norms are in all of them, gain, mean and shift,
    without what depends on the token.

    Parameters
    ----------
    layer : int
        The layer.
    query, key : Tensor (heads, dim, head dim)
        The weights W_Q and W_K; each query head has the keys that it reads.
    value : Tensor (heads, dim, value dim)
        The weight W_V.
    output : Tensor (heads, value dim, dim)
        The weight W_O.
    biases : tuple of Tensor (heads, head dim)
        The biases of queries, keys and values.
    scale : float
        What q·k is multiplied with.
    is_biased : bool
        Whether the model adds numbers of pairs of positions to the scores.
    """

    layer: int
    query: Tensor
    key: Tensor
    value: Tensor
    output: Tensor
    biases: tuple[Tensor, Tensor, Tensor]
    scale: float
    is_biased: bool


def layer_weights(runs: LinearRuns) -> list[LayerWeights]:
    """Read the weights of all layers of a stack.

    While the norms are fixed, queries, keys and values are affine functions of a layer's input: the
    biases are what zero gives, and the weights what unit vectors add to that. It is checked on
    four random vectors.

    Raises
    ------
    CaptureError
        If queries, keys or values are not affine functions.
    """
    probes = runs.probes(runs.width)
    seen = runs.layers(probes)
    return [
        _weights(part.layer, part.name, one, probes, part.weights)
        for part, one in zip(runs.sublayers, seen, strict=True)
    ]


def _weights(layer: int, name: str, seen: Seen, probes: Tensor, output: Tensor) -> LayerWeights:
    maps = [
        affine_map(f"The {side} of {name}", probes, numbers)
        for side, numbers in (("queries", seen.query), ("keys", seen.key), ("values", seen.value))
    ]
    (query, key, value), biases = zip(*maps, strict=True)
    return LayerWeights(layer, query, key, value, output, biases, seen.scale, seen.is_biased)


def affine_map(what: str, probes: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Return the weight (..., dim, out) and bias (..., out) that give numbers (..., probes, out).

    The probes are those of `LinearRuns.probes`.
    """
    bias = numbers[..., 0, :].clone()
    weight = (numbers[..., 1:-_CHECKED, :] - bias[..., None, :]) / UNIT
    wanted, rows = numbers[..., -_CHECKED:, :], probes[-_CHECKED:].to(numbers)
    missing = (rows @ weight + bias[..., None, :] - wanted).abs().amax()
    if not missing <= tolerance(probes) * wanted.abs().amax():
        raise CaptureError(
            f"{what} are not a linear function of the vectors that are read, even with the "
            "norms held fixed: there is no matrix of weights to read."
        )
    return weight, bias


def rotations(runs: LinearRuns, weights: list[LayerWeights], distance: int) -> list[Tensor]:
    r"""Return what positions do to queries, so many tokens after their key: (heads, dim, dim).

    Rotary embeddings turn queries and keys by their positions; the key is at position 0, where
    nothing is turned, and the query at `distance`. The matrix R of :math:`q(d) = q(0) R` is solved
    for from as many random vectors as it needs, and checked on others.

    Raises
    ------
    CaptureError
        If the queries at a distance are no linear function of those at none.
    """
    size = weights[0].query.shape[-1]
    if not distance:
        return [
            torch.eye(size, device="cpu").to(one.query).expand(len(one.query), -1, -1)
            for one in weights
        ]
    given = runs.random(4 * size, runs.width)
    rows, found = given.to(weights[0].query), []
    for one, seen in zip(weights, runs.layers(given, distance + 1), strict=True):
        start, turned = (rows @ one.query + one.biases[0][:, None]).double(), seen.query.double()
        half = len(rows) // 2
        solved = torch.linalg.lstsq(start[:, :half], turned[:, :half]).solution
        missing = (start[:, half:] @ solved - turned[:, half:]).abs().amax()
        if not missing <= 10 * tolerance(given) * turned.abs().amax():
            raise CaptureError(
                f"The queries of layer {one.layer} at distance {distance} are not those at 0, "
                "turned: the weights do not say how they score."
            )
        found.append(solved.to(one.query))
    return found
