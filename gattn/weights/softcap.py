"""A soft cap on scores."""

from __future__ import annotations

import torch
from torch import Tensor

from gattn.checks import finite_number
from gattn.errors import ContractError
from gattn.weights.base import PairFunction, Tree, WeightFunction, as_weight_function
from gattn.weights.pairs import CappedForm, Pairs, Positions, tile_scores


class Softcap(WeightFunction):
    r"""Another weight function's score s, capped: :math:`c \tanh(s / c)`.

    Only what it wraps is capped: ``Softcap(w, c) + b`` and ``Softcap(w + b, c)`` differ.

    Parameters
    ----------
    weight : WeightFunction or callable
        What is capped.
    cap : float
        c, above 0.

    References
    ----------
    Gemma Team (2024), Gemma 2: cap 50.
    """

    def __init__(self, weight: WeightFunction | PairFunction, cap: float) -> None:
        super().__init__()
        if not finite_number("cap", cap) > 0:
            raise ContractError(f"cap must be above 0, not {cap!r}.")
        self.weight = as_weight_function(weight)
        self.cap = cap

    def prepare(self, query: Tensor, key: Tensor, positions: Positions) -> tuple[Tree, Tree]:
        """Prepare the weight function itself."""
        return self.weight.prepare(query, key, positions)

    def forward(self, query: Tree, key: Tree, pairs: Pairs) -> Tensor:
        """Cap pairs."""
        return self._capped(self.weight(query, key, pairs))

    def on_tile(self, query: Tree, key: Tree, pairs: Pairs) -> Tensor:
        """Cap a tile."""
        return self._capped(tile_scores(self.weight, query, key, pairs))

    def capped_form(self, query: Tree, key: Tree) -> CappedForm | None:
        """Cap the weight function's dot form."""
        form = self.weight.dot_form(query, key)
        return None if form is None else CappedForm(form, self.cap)

    def _capped(self, scores: Tensor) -> Tensor:
        return self.cap * torch.tanh(scores / self.cap)

    def extra_repr(self) -> str:
        """Show the weight function and the cap."""
        return f"{self.weight}, {self.cap}"
