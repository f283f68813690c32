"""Ranks: how many directions attention and hidden states have, and how depth takes them away."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gattn.analysis.reading.arguments import share
from gattn.analysis.reading.attention import Attention
from gattn.analysis.reading.hidden_states import Hidden, read_hidden
from gattn.analysis.reading.layers_of import layers_of
from gattn.analysis.reading.reductions import Reduction, facts_of
from gattn.analysis.reading.results import Array, Table
from gattn.errors import SelectionError
from gattn.names.choices import HeadChoice
from gattn.progress import walk


def effective_rank(
    attention: Attention, *, tokens: Sequence[str] = (), progress: bool = True
) -> Array:
    r"""Compute the effective rank of each head's attention matrix.

    With the singular values' shares :math:`p_k = \sigma_k / \sum_l \sigma_l` it is

    .. math:: \exp\left(-\sum_k p_k \ln p_k\right),

    from 1, if all queries attend alike, to the number of tokens, if each attends to a token of its
    own; 0 without attention.

    Parameters
    ----------
    attention : Attention
        Any attention, negative attention included.
    tokens : sequence of str
        The texts of an array's tokens; the result names no tokens.
    progress : bool
        Whether to show a progress bar.

    Returns
    -------
    Array
        (layer, head).

    Raises
    ------
    ShapeError
        If attention has another shape, or holds NaN or infinity.
    SelectionError
        If there is none.

    References
    ----------
    Roy and Vetterli (2007), The effective rank: a measure of effective dimensionality.
    """
    layers = layers_of(attention, tokens, signed=True)
    fewer = "take fewer layers or heads, as in capture(text, layers=[0, 1])"
    steps = walk(range(len(layers)), "effective rank", "layer", progress=progress, fewer=fewer)
    values = torch.stack([_effective_rank(layers.read(n)) for n in steps])
    return layers.array(values, layers.axes("layer", "head"), "effective_rank")


def rank_collapse(
    attention: Attention,
    *,
    tokens: Sequence[str] = (),
    heads: HeadChoice = None,
    reduce: Reduction = "mean",
    residual: float = 0.0,
) -> Array:
    r"""Measure how far the layers' product is from mixing all tokens into one.

    Attention alone makes tokens alike: the rows of :math:`P_l = A_l \cdots A_0` approach each
    other. What is left of their differences is

    .. math:: \frac{\|P_l - 1 p^T\|_F}{\|P_l\|_F}, \quad p = \text{the mean of the rows},

    from 0, if all rows are equal, to 1. The rows of a product that is 0 are equal: from some layer
    on, it is 0 if tokens attend to earlier ones alone.

    Parameters
    ----------
    attention : Attention
        Self-attention of consecutive layers.
    tokens : sequence of str
        The texts of an array's tokens; the result names no tokens.
    heads, reduce : optional
        Which heads of a layer become one A, and how, as in `gattn.analysis.rollout`.
    residual : float
        The share r of the residual stream: A becomes (1 - r) A + r I. At 0, attention alone.

    Returns
    -------
    Array
        (layer,): the product up to this layer.

    Raises
    ------
    SelectionError
        If queries and keys are not the same tokens, layers are missing, `residual` is not a
        share, or the residual stream is in the numbers already.
    ShapeError
        If attention is negative.

    References
    ----------
    Dong et al. (2021), Attention is not all you need: pure attention loses rank doubly
    exponentially with depth, which takes the norm :math:`\sqrt{\|\cdot\|_1 \|\cdot\|_\infty}`.
    """
    residual = share(residual, "residual")
    layers = layers_of(attention, tokens).square().consecutive()
    if residual and layers.holds_residual:
        raise SelectionError("These numbers hold the residual stream already: take residual=0.")
    product, left = None, []
    for matrix in layers.reduced(heads, reduce):
        mixed = (1 - residual) * matrix + residual * torch.eye(len(matrix), device="cpu").to(matrix)
        product = mixed if product is None else mixed @ product
        left.append(_residual(product))
    notes = []
    if bool((layers.dropped > 1e-6).any()):
        notes.append("the product is of the kept edges")
    if product is not None and not product.any():
        notes.append("the product of all layers is 0: no path of attention runs through them")
    facts = {"residual": residual} | facts_of(heads, reduce)
    axes = layers.axes("layer")
    return layers.array(torch.stack(left), axes, "residual_of_rank_one", notes, **facts)


def hidden_ranks(hidden: Hidden) -> Table:
    r"""Follow the rank of hidden states over depth.

    Parameters
    ----------
    hidden : Hidden
        Hidden states, such as a model's ``hidden_states`` of one text.

    Returns
    -------
    Table
        One row per ``state``, the one that layer ``state`` reads, with

        - ``effective_rank``: as `effective_rank` has it, of the matrix X (tokens, dim);
        - ``residual``: :math:`\|X - 1 x^T\|_F / \|X\|_F`, x being the mean of the tokens: 0 if all
          tokens are the same, as in `rank_collapse`.

    Raises
    ------
    ShapeError
        If these are no hidden states of one text.

    References
    ----------
    Roy and Vetterli (2007), The effective rank. Dong et al. (2021), Attention is not all you need.
    """
    states = read_hidden(hidden)
    count, tokens, dim = states.shape
    rows = {
        "state": range(count),
        "effective_rank": _effective_rank(states).cpu().numpy(),
        "residual": _residual(states).cpu().numpy(),
    }
    source = f"{count} hidden states of {tokens} tokens, {dim} numbers each"
    return Table.of(rows, name="ranks of hidden states", computed_from=source, index=["state"])


def _effective_rank(matrices: Tensor) -> Tensor:
    sizes = torch.linalg.svdvals(matrices)
    whole = sizes.sum(-1, keepdim=True)
    shares = sizes / torch.where(whole > 0, whole, 1)
    rank: Tensor = torch.special.entr(shares).sum(-1).exp() * (whole[..., 0] > 0)
    return rank


def _residual(matrices: Tensor) -> Tensor:
    whole = torch.linalg.matrix_norm(matrices)
    rest = torch.linalg.matrix_norm(matrices - matrices.mean(-2, keepdim=True))
    left: Tensor = rest / torch.where(whole > 0, whole, 1)
    return left
