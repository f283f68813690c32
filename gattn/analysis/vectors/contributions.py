"""How long the vectors are that tokens add to each other: norm-based analysis."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from gattn.analysis.reading.results import Array, array
from gattn.errors import SelectionError
from gattn.models.decompose.decomposing import decompose
from gattn.models.decompose.decomposition import Decomposition
from gattn.models.run.names.naming import Naming, Tokens
from gattn.names.choices import LayerChoice

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from gattn.models.load.loading import Model
    from gattn.models.run.functions import Runnable
    from gattn.models.stream.sublayers import Sublayer

Of = Literal["head", "attention", "residual", "norm"]
_NUMBERS = 1 << 24  # of the vectors that are in memory at once


def contributions(
    text: Runnable,
    model: Model = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    *,
    of: Of = "attention",
    layers: LayerChoice = None,
    stack: str | None = None,
    progress: bool = True,
    tokens: Tokens | None = None,
    grid: tuple[int, int] | None = None,
) -> Array:
    r"""Measure what tokens add to each other, by the lengths of the vectors that travel.

    Attention alone does not tell: much attention to a short vector moves little.

    Parameters
    ----------
    text, model, tokenizer
        As in `gattn.capture`, but one text, or a function that runs one.
    of : {"head", "attention", "residual", "norm"}
        Which vectors, each of query i and key j:

        - "head": what a head adds, :math:`\|A^h_{ij} W_O^h v^h_j\|`, as in
          ``capture(..., contributions=True)``;
        - "attention": what all heads add together, :math:`\|\sum_h A^h_{ij} W_O^h v^h_j\|`;
        - "residual": the same, and where j is i, with the residual stream :math:`x_i` added;
        - "norm": the same after the norm that reads the sum, its statistics fixed: that of the
          layer itself in post-norm models such as BERT, the MLP's in pre-norm models.
    layers, stack : optional
        Which layers, by default all, and which stack, if the model has several.
    progress : bool
        Whether to show a progress bar.
    tokens, grid
        The tokens' texts, and where patches lie, as in `gattn.capturing`.

    Returns
    -------
    Array
        The axes (layer, query, key), for "head" (layer, head, query, key). That the vectors, with
        residual and bias, sum to what the model computed was verified; `notes` has the error.

    Raises
    ------
    CaptureError, ModelError
        As in `gattn.capture`; also if the vectors of a model cannot be found, or no norm reads the
        sum.
    SelectionError
        If there is no such layer or stack, or no such `of`.

    References
    ----------
    Kobayashi et al. (2020), Attention is not only a weight: analyzing transformers with vector
    norms; (2021), Incorporating residual and normalization layers into analysis of masked language
    models.
    """
    measures: dict[str, Callable[[Sublayer], Tensor]] = {
        "head": _of_heads,
        "attention": _summed,
        "residual": _with_residual,
        "norm": _with_norm,
    }
    if of not in measures:
        raise SelectionError(f"of is one of {', '.join(map(repr, measures))}, not {of!r}.")

    def read(part: Sublayer) -> Tensor:
        return measures[of](part).cpu()

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
    heads = {"head": range(values.shape[1])} if of == "head" else {}
    axes = heads | {"query": None, "key": None}
    facts = {"of": of, "holds_residual": of in ("residual", "norm"), "is_length": True}
    return labelled(found, values, "contribution", axes, **facts)


def residual_shares(
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
    r"""Measure how much of each token stays its own in the attention sublayer of a layer.

    The share is :math:`\|p_i\| / (\|p_i\| + \|m_i\|)`: the preserved :math:`p_i` is the residual
    stream and what the token adds to itself, the mixed-in :math:`m_i` all that other tokens add to
    it. It is 1 minus Kobayashi et al.'s mixing ratio. In post-norm models both are taken after the
    layer's norm, its statistics fixed; the bias belongs to neither.

    Parameters
    ----------
    text, model, tokenizer, layers, stack, progress, tokens, grid
        As in `contributions`.

    Returns
    -------
    Array
        The axes (layer, query), between 0 and 1.

    Raises
    ------
    CaptureError, ModelError, SelectionError
        As in `contributions`.

    References
    ----------
    Kobayashi et al. (2021), Incorporating residual and normalization layers into analysis of masked
    language models.
    """

    def read(part: Sublayer) -> Tensor:
        return _share(output_of(part)).cpu()

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
    return labelled(found, torch.stack(found.results), "residual_share", {"query": None})


def output_of(part: Sublayer) -> Sublayer:
    """Return a sublayer up to its output: after the norm, if that is the layer's own."""
    return part.normed() if part.is_post_norm else part


def labelled(
    found: Decomposition[Tensor],
    values: Tensor,
    name: str,
    axes: Mapping[str, Sequence[int] | None],
    **facts: Any,
) -> Array:
    """Name the axes of results, one per layer; None stands for the tokens."""
    positions = range(len(found.tokens))
    tokens = {axis: found.tokens for axis, labels in axes.items() if labels is None}
    labels = {axis: positions if some is None else some for axis, some in axes.items()}
    return array(
        values,
        {"layer": found.layers, **labels},
        name=name,
        computed_from=found.source,
        edits=found.edits,
        notes=[found.check, *found.notes],
        tokens=tokens,
        **facts,
    )


def _of_heads(part: Sublayer) -> Tensor:
    """Measure each head's vectors: (heads, queries, keys)."""
    lengths = [keys.norm(dim=-1).T for _, keys in _moved(part)]
    norms = torch.cat(lengths, dim=1)
    found = part.values.new_empty(part.heads, len(part), len(part))
    for rows, attention in part.rows():
        factor = part.factor[rows, None].abs()
        torch.mul(attention.abs() * factor, norms[:, None], out=found[:, rows])
    return found


def _summed(part: Sublayer) -> Tensor:
    r"""Measure the sums over heads: (queries, keys).

    With u_h what head h makes of a key, :math:`\|\sum_h A_h u_h\|^2 = A^\top G A` for the key's
    products :math:`G_{hg} = u_h^\top u_g`, so no vector is made for a pair. Sums cancel: double
    precision.
    """
    products = [(keys.double() @ keys.double().mT) for _, keys in _moved(part)]
    gram = torch.cat(products)  # (keys, heads, heads)
    found = part.values.new_empty(len(part), len(part))
    for rows, attention in part.rows():
        weights = attention.double().permute(2, 1, 0)  # (keys, queries, heads)
        squares = ((weights @ gram) * weights).sum(-1).clamp_min(0)
        found[rows] = (squares.sqrt().T * part.factor[rows, None].abs()).to(found.dtype)
    return found


def _moved(part: Sublayer) -> Iterator[tuple[slice, Tensor]]:
    """Return what each head makes of each key, some keys at a time: (keys, heads, dim)."""
    step = max(_NUMBERS // part.weights[:, 0].numel(), 1)
    for start in range(0, len(part), step):
        keys = slice(start, start + step)
        yield keys, part.moved(keys)


def _with_residual(part: Sublayer) -> Tensor:
    found = _summed(part)
    found.diagonal().copy_(part.own().norm(dim=-1))
    return found


def _with_norm(part: Sublayer) -> Tensor:
    if part.norm is None:
        raise SelectionError(
            f"No norm reads the sum of the residual stream and what {part.name} adds, so there are "
            "no contributions of='norm': take of='residual'."
        )
    return _with_residual(part.normed())


def _share(part: Sublayer) -> Tensor:
    """Return the preserved share of each token, (tokens,)."""
    own = part.own()
    preserved, mixed = own.norm(dim=-1), (part.added() + part.residual - own).norm(dim=-1)
    share: Tensor = preserved / (preserved + mixed)
    return share
