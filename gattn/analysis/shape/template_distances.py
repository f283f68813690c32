"""Templates: how far a head is from a simple rule of whom to attend to."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from gattn.analysis.reading.arrays import tensor
from gattn.analysis.reading.attention import Attention
from gattn.analysis.reading.dropped import at_most, edge_errors, reads_later
from gattn.analysis.reading.layers_of import layers_of
from gattn.analysis.reading.results import Table
from gattn.errors import ShapeError

_SPREAD = ("punctuation", "uniform")
"""The templates that depend on whether tokens attend to later ones."""


def template_distances(
    attention: Attention,
    templates: Mapping[str, ArrayLike] | None = None,
    *,
    tokens: Sequence[str] = (),
) -> Table:
    r"""Measure how far each head's attention A is from templates M.

    The distance is

    .. math:: \frac{\|A - M\|_F}{\sqrt{\|A\|_F^2 + \|M\|_F^2}},

    from 0, if they are equal, to 1, if they have no edge in common.

    Parameters
    ----------
    attention : Attention
        Self-attention.
    tokens : sequence of str
        The texts of an array's tokens.
    templates : mapping of str to array (tokens, tokens), optional
        Further templates.

    Returns
    -------
    Table
        One row per ``layer`` and ``head``, one column per template:

        - ``self``, ``first``, ``previous``, ``next``: all attention to the query itself, to the
          first token, to the one before, and to the one after; the row is 0 if there is none
          before or after;
        - ``punctuation``: the same to each token of punctuation; NaN if the text has none;
        - ``uniform``: the same to each token.

        If no token attends to later ones, the last two spread over the tokens up to each query
        alone. If only dropped edges could do so, they are assumed not to, and the notes say what
        that may change.

    Raises
    ------
    ShapeError
        If attention is negative, or a template has another shape or name, or is no attention.
    SelectionError
        If queries and keys are not the same tokens.

    References
    ----------
    Kushnareva et al. (2021), Artificial text detection via examining the topology of attention
    maps, which has comma and full stop apart, and no uniform template. The patterns are those of
    Clark et al. (2019), What does BERT look at?
    """
    layers = layers_of(attention, tokens).square()
    later = reads_later(layers)
    count = len(layers.tokens)
    known = _templates(layers.tokens, not later) | _given(templates or {}, count)
    whole = _templates(layers.tokens, is_causal=False) if later is None else {}
    stacked = torch.stack([*known.values(), *(whole[name] for name in _SPREAD if whole)])
    spread = [list(known).index(name) for name in _SPREAD]
    rows: list[dict[str, Any]] = []
    lost = (layers.dropped.cpu() * edge_errors(layers)).sum(-1).sqrt()
    error = apart = 0.0
    for n in range(len(layers)):
        matrix = layers.read(n)
        distances, scale = _distances(matrix, stacked.to(matrix))
        error = max(error, _largest(2 * lost[n, :, None] / scale.cpu()))
        if whole:
            apart = max(apart, _largest(distances[:, spread] - distances[:, len(known) :]))
        rows += [
            {"layer": layers.layers[n], "head": head, **dict(zip(known, row, strict=False))}
            for head, row in zip(layers.heads, distances.tolist(), strict=True)
        ]
    notes = []
    if error > 1e-6:
        notes.append(f"for what was not kept each distance may be off by up to {at_most(error)}")
    if not later and count > 1:
        notes.append("uniform and punctuation spread over the tokens up to each query")
    if whole:
        bound = at_most(min(error + apart, 1))
        notes.append(f"if edges to later tokens were not kept, these two are off by up to {bound}")
    return layers.table(Table, rows, ["layer", "head"], "distances from templates", notes)


def _largest(errors: Tensor) -> float:
    """Return the largest error; no distance is off by more than 1, and NaN is no distance."""
    return min(float(errors.abs().nan_to_num(0).max()), 1.0)


def _templates(tokens: Sequence[str], is_causal: bool) -> dict[str, Tensor]:
    count = len(tokens)
    ones = torch.ones(count, count, dtype=torch.float64, device="cpu")
    first = torch.zeros_like(ones)
    first[:, 0] = 1
    reach = ones.tril() if is_causal else ones
    marks = torch.tensor(
        [_is_punctuation(token) for token in tokens], dtype=ones.dtype, device="cpu"
    )
    return {
        "self": torch.eye(count, dtype=ones.dtype, device="cpu"),
        "first": first,
        "previous": ones.diagonal()[1:].diag(-1),
        "next": ones.diagonal()[1:].diag(1),
        "punctuation": _spread(reach * marks) if marks.any() else ones * torch.nan,
        "uniform": _spread(reach),
    }


def _spread(reach: Tensor) -> Tensor:
    return reach / reach.sum(-1, keepdim=True).clamp_min(1)


def _is_punctuation(token: str) -> bool:
    text = token.strip(" Ġ▁")
    return bool(text) and all(unicodedata.category(letter)[0] == "P" for letter in text)


def _given(templates: Mapping[str, ArrayLike], count: int) -> dict[str, Tensor]:
    made = {name: _template(name, given) for name, given in templates.items()}
    for name, template in made.items():
        if template.shape != (count, count):
            raise ShapeError(
                f"The template {name!r} is {tuple(template.shape)}: templates are (tokens, tokens),"
                f" {(count, count)} here."
            )
    if taken := made.keys() & _templates([""], is_causal=True).keys() | made.keys() & {
        "layer",
        "head",
    }:
        raise ShapeError(f"There is a column {min(taken)!r} already: name the template otherwise.")
    return made


def _template(name: str, given: ArrayLike) -> Tensor:
    made = tensor(given, f"The template {name!r} is not an array of numbers.").double().cpu()
    if not bool(((made >= 0) & made.isfinite()).all()):
        raise ShapeError(f"The template {name!r} is not attention: numbers of at least 0.")
    return made


def _distances(matrix: Tensor, templates: Tensor) -> tuple[Tensor, Tensor]:
    """Return the distances (heads, templates), and the square root that divides them."""
    sizes = matrix.square().sum((-2, -1))[:, None] + templates.square().sum((-2, -1))
    apart = [torch.linalg.matrix_norm(matrix - template) for template in templates]
    return torch.stack(apart, -1) / sizes.sqrt(), sizes.sqrt()
