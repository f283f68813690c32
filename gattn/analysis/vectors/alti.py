"""ALTI: how much nearer each token's vector brings a layer to its output."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gattn.analysis.reading.results import Array
from gattn.analysis.vectors.contributions import labelled, output_of
from gattn.models.decompose.decomposing import decompose
from gattn.models.run.names.naming import Naming, Tokens
from gattn.names.choices import LayerChoice

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from gattn.models.load.loading import Model
    from gattn.models.run.functions import Runnable
    from gattn.models.stream.sublayers import Sublayer

_ROWS = 64  # of queries whose vectors are made at once
_NUMBERS = 1 << 21  # of these vectors
_MOVED = 1 << 26  # of what the heads make of keys


def alti(
    text: Runnable,
    model: Model = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    *,
    layers: LayerChoice = None,
    stack: str | None = None,
    progress: bool = True,
    tokens: Tokens | None = None,
    grid: tuple[int, int] | None = None,
) -> Array:
    r"""Measure how tokens mix in each layer, by the distance of each vector from their sum.

    The output :math:`y_i` of an attention sublayer is the sum of the bias and of vectors
    :math:`T_i(x_j)`, one per key; that of i itself holds the residual stream. In post-norm models
    they are taken after the layer's norm, its statistics fixed. Then

    .. math::
        c_{ij} = \frac{\max(0, \|y_i\|_1 - \|y_i - T_i(x_j)\|_1)}
        {\sum_k \max(0, \|y_i\|_1 - \|y_i - T_i(x_k)\|_1)}

    Through the layers: ``gattn.analysis.rollout(alti(...))``, which knows that the residual stream
    is in the numbers already.

    Parameters
    ----------
    text, model, tokenizer, layers, stack, progress, tokens, grid
        As in `gattn.analysis.contributions`.

    Returns
    -------
    Array
        The axes (layer, query, key). Rows sum to 1, or to 0 if no vector is nearer to the output
        than the zero vector, which `notes` says.

    Raises
    ------
    CaptureError, ModelError, SelectionError
        As in `gattn.analysis.contributions`.

    References
    ----------
    Ferrando et al. (2022), Measuring the mixing of contextual information in the transformer.
    """

    def read(part: Sublayer) -> Tensor:
        return _interactions(output_of(part)).cpu()

    found = decompose(
        text,
        model,
        tokenizer,
        read=read,
        layers=layers,
        stack=stack,
        progress=progress,
        naming=Naming(tokens, grid),
    )
    values = torch.stack(found.results)
    if empty := int((values.sum(-1) == 0).sum()):
        found.notes.append(f"in {empty} rows no vector comes nearer to the output: they are zero")
    return labelled(found, values, "ALTI", {"query": None, "key": None}, holds_residual=True)


def _interactions(part: Sublayer) -> Tensor:
    """Return the shares of a layer: (queries, keys)."""
    found = _nearer(part)
    whole, rest = part.after.abs().sum(-1), (part.after - part.own()).abs().sum(-1)
    found.diagonal().copy_(whole - rest)
    found.clamp_min_(0)
    return found / found.sum(-1, keepdim=True).clamp_min(torch.finfo(found.dtype).tiny)


def _nearer(part: Sublayer) -> Tensor:
    """Say how much nearer each vector comes to the output, without the residual: (queries, keys).

    Vectors are made for one tile of queries and keys at a time.
    """
    found = part.values.new_zeros(len(part), len(part))
    whole = part.after.abs().sum(-1, keepdim=True)
    width = part.residual.shape[1]
    most, step = max(_MOVED // (part.heads * width), 1), max(_NUMBERS // (_ROWS * width), 1)
    for start in range(0, len(part), most):
        moved = part.moved(slice(start, start + most))  # (keys, heads, dim)
        for rows, attention in _few_rows(part):
            weights = (attention * part.factor[rows, None]).permute(2, 1, 0)
            for first in range(0, len(moved), step):
                keys = slice(start + first, min(start + first + step, start + len(moved)))
                if bool((weights[keys] != 0).any()):
                    vectors = weights[keys] @ moved[first : first + step]  # (keys, queries, dim)
                    vectors -= part.after[rows]
                    found[rows, keys] = whole[rows] - vectors.abs_().sum(-1).T
    return found


def _few_rows(part: Sublayer) -> Iterator[tuple[slice, Tensor]]:
    """Walk the attention by blocks of no more than `_ROWS` rows."""
    for rows, attention in part.rows():
        for start in range(0, attention.shape[1], _ROWS):
            some = attention[:, start : start + _ROWS]
            first = rows.start + start
            yield slice(first, first + some.shape[1]), some
