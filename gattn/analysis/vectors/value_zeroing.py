"""Value zeroing: how much a layer's output turns when a token's value is zeroed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gattn.analysis.reading.arguments import several_tokens
from gattn.analysis.reading.results import Array, array
from gattn.analysis.reading.sources import Source
from gattn.checks import whole
from gattn.errors import CaptureError, SelectionError
from gattn.heads.geometry import Geometry
from gattn.heads.nouns import counted
from gattn.models.edit.edges import Cut
from gattn.models.effects.copying import LayerCopies
from gattn.models.load.loading import model_name
from gattn.models.run.editing import open_edits
from gattn.models.run.functions import Runnable, resolved_for
from gattn.models.run.names.naming import Naming, Tokens
from gattn.names.choices import LayerChoice, numbers_of
from gattn.names.tokens import find_tokens
from gattn.progress import walk

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from gattn.models.load.loading import Model


def value_zeroing(
    text: Runnable,
    model: Model = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    *,
    zeroed: int | str | Sequence[int | str] | None = None,
    layers: LayerChoice = None,
    stack: str | None = None,
    batch_size: int | None = None,
    progress: bool = True,
    tokens: Tokens | None = None,
    grid: tuple[int, int] | None = None,
) -> Array:
    r"""Measure how much each layer needs each token's value.

    In one layer at a time the value of token t is zeroed in all heads, while attention stays as it
    is, and the layer runs to its end, the MLP included. With its output :math:`y_i` for token i,

    .. math::

        C_{it} = 1 - \cos(y_i, y_i^{\text{without } t}),

    each row divided by its sum. It is the only measure of mixing here that takes the whole layer
    into account: attention, values, residual stream, norms and MLP.

    The model runs once. Then what follows each layer's attention runs on each pair of tokens that
    attention joins, as heads give :math:`o_i - A_{it} v_t` without the value of t. That takes a
    layer that mixes tokens by attention alone, which is tested whenever it runs; otherwise, or
    where edits are open, T tokens take T runs of the model, for all layers together, in batches.

    Parameters
    ----------
    text, model, tokenizer
        As in `gattn.capture`, but one text, or a function that runs one.
    zeroed : int, str, or sequence of these, optional
        The tokens whose values are zeroed, one after another: positions, negative from the end, or
        texts, which name every token of that text; by default all. If only some are, rows are not
        divided by their sum, which is not known.
    layers : int or sequence of int, optional
        In which layers; by default all.
    stack : str, optional
        Which stack, such as "encoder", if the model has several.
    batch_size : int, optional
        How many tokens run at once; by default as many as fit in 1 GiB, or in half of a GPU's
        free memory. One if a function runs the model.
    progress : bool
        Whether to show a progress bar.
    tokens, grid
        The tokens' texts, and where patches lie, as in `gattn.capturing`.

    Returns
    -------
    Array
        Axes ``layer``, ``query`` and ``key``. A row in which no value makes a difference is 0. The
        numbers hold the residual stream, so `gattn.analysis.rollout` adds none.

    Raises
    ------
    SelectionError
        If there is no such token, layer or stack.
    ModelError
        If the model cannot be loaded, or its layers cannot be found.
    CaptureError
        As in `gattn.capture`.

    References
    ----------
    Mohebbi et al. (2023), Quantifying context mixing in transformers.

    Examples
    --------
    >>> mixing = gattn.analysis.value_zeroing("The keys to the cabinet", "bert-base-uncased")
    >>> gattn.analysis.rollout(mixing).draw()
    """
    model, tokenizer = resolved_for(text, model, tokenizer)
    copies = LayerCopies(text, model, tokenizer, stack, Naming(tokens, grid))
    keys = _tokens(zeroed, copies.tokens, copies.geometry)
    depth = _chosen("layers", layers, copies.num_layers)
    size = copies.batch_size if batch_size is None else batch_size
    size = whole("batch_size", size, 1, CaptureError) if copies.repeats else 1
    edits, notes = open_edits(model), []
    scores = None if edits else _by_token(copies, keys, depth, size, progress)
    if scores is None:
        scores = _by_copies(copies, keys, depth, size, progress)
    count = counted(len(copies), "token")
    if len(keys) == len(copies):
        sums = scores.sum(-1, keepdims=True)
        scores = np.divide(scores, sums, out=scores, where=sums > 0)
    else:
        notes.append("rows are not divided by their sum: only some tokens were zeroed")
    return array(
        scores,
        {"layer": depth, "query": range(len(copies)), "key": keys},
        name="value_zeroing",
        computed_from=str(Source(model_name(model), copies.stack, size=count, edits=edits)),
        edits=edits,
        notes=notes,
        tokens={"query": copies.tokens, "key": [copies.tokens[key] for key in keys]},
        holds_residual=True,
    )


def _by_token(
    copies: LayerCopies, keys: Sequence[int], depth: Sequence[int], size: int, progress: bool
) -> NDArray[np.float64] | None:
    """Run what follows attention, token by token; None where layers cannot be run so.

    A score is that of `_by_copies`, (layers, tokens, keys).
    """
    scores = np.zeros((len(depth), len(copies), len(keys)))
    try:
        layers = copies.after_attention()
        runs = [(row, columns) for row in range(len(depth)) for columns in _batches(keys, size)]
        fewer = "choose some with zeroed="
        for row, columns in walk(runs, "value zeroing", "batch", progress=progress, fewer=fewer):
            layer = layers[depth[row]]
            some = layer.attention[:, :, [keys[n] for n in columns]] != 0
            query, column = some.any(0).nonzero(as_tuple=True)
            key = torch.tensor(keys, device=query.device)[columns.start + column]
            turned = _turned(layer.output[query], layer.without(query, key)).cpu().numpy()
            scores[row, query.cpu().numpy(), columns.start + column.cpu().numpy()] = turned
    except CaptureError:
        return None
    return scores


def _by_copies(
    copies: LayerCopies, keys: Sequence[int], depth: Sequence[int], size: int, progress: bool
) -> NDArray[np.float64]:
    """Run the model with each value zeroed, and say how far outputs turn (layers, tokens, keys)."""
    row_of = {layer: row for row, layer in enumerate(depth)}
    scores = np.zeros((len(depth), len(copies), len(keys)))
    batches = _batches(keys, size)
    fewer = "choose some with zeroed="
    for columns in walk(batches, "value zeroing", "batch", progress=progress, fewer=fewer):

        def see(layer: int, output: Tensor, columns: range = columns) -> None:
            if layer in row_of:
                turned = _turned(output[:1], output[1:]).T
                scores[row_of[layer], :, columns.start : columns.stop] = turned.cpu().numpy()

        cuts = [Cut(depth, key=keys[n], renormalize=False, stack=copies.stack) for n in columns]
        copies.run([[cut] for cut in cuts], see)
    return scores


def _batches(keys: Sequence[int], size: int) -> list[range]:
    return [range(len(keys))[at : at + size] for at in range(0, len(keys), size)]


def _turned(plain: Tensor, changed: Tensor) -> Tensor:
    """Compute 1 - cos, as half the squared distance on the sphere: it loses no digits."""
    one, other = (torch.nn.functional.normalize(x.double(), dim=-1) for x in (plain, changed))
    return (one - other).square().sum(-1) / 2


def _tokens(
    chosen: int | str | Sequence[int | str] | None, tokens: Sequence[str], lie: Geometry | None
) -> list[int]:
    places = range(len(tokens))
    if chosen is None:
        return list(places)
    several = several_tokens("zeroed", chosen, lie)
    found = [place for one in several for place in find_tokens(one, places, tokens, "zeroed")]
    if not found or len(set(found)) < len(found):
        raise SelectionError(f"zeroed names at least one, and each once, not {chosen!r:.80}.")
    return found


def _chosen(name: str, chosen: LayerChoice, count: int) -> list[int]:
    numbers = numbers_of(name, chosen)
    if numbers is None:
        return list(range(count))
    if wrong := [number for number in numbers if not 0 <= number < count]:
        raise SelectionError(f"{name} has {wrong[0]}, but there are 0 .. {count - 1}.")
    return numbers
