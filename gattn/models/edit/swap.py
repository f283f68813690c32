"""Edits of how attention is computed: another weight function, or another normalizer."""

from __future__ import annotations

import copy
from typing import cast

from torch import Tensor, nn

from gattn.errors import ContractError, EditError
from gattn.models.edit.base import Edit, edit_class
from gattn.models.edit.where.heads import Numbers
from gattn.models.read.places import Place
from gattn.normalizers import Normalizer
from gattn.weights.base import (
    PairFunction,
    PairWeight,
    Scaled,
    Sum,
    Tree,
    WeightFunction,
    as_weight_function,
)
from gattn.weights.edge_features import EdgeBias
from gattn.weights.pairs import Pairs
from gattn.weights.position import PositionWeight
from gattn.weights.rotary import Rotary
from gattn.weights.softcap import Softcap


class ModelScore(WeightFunction):
    """The model's own score of an edge, with scaling, softcap and bias.

    It stands for the model's weight function inside `Swap`: ``2 * ModelScore()`` doubles the
    scores, ``ModelScore() + ALiBi(12)`` adds a bias to them.
    """

    def forward(self, query: Tree, key: Tree, pairs: Pairs) -> Tensor:
        """Refuse to score outside of a model."""
        raise ContractError("ModelScore() has a meaning only inside Swap(weight=...).")


@edit_class
class Swap(Edit):
    """Swap the weight function of heads, their normalizer, or both.

    Parameters
    ----------
    layer, head : int or sequence of int, optional
        Where; all by default.
    weight : WeightFunction or callable, optional
        The new weight function; the model's own by default. It gets queries and keys as the
        model's attention does: after rotary embeddings and norms, before scaling, with keys
        expanded to the query heads. It replaces scaling, softcap and position bias too; who may
        attend to whom stays. `ModelScore` stands for the score it replaces. Its parameters can be
        trained.
    normalizer : Normalizer, optional
        The replacement of the softmax and its sink; the model's own by default.
    stack : str, optional
        Which stack, where the model has several.
    """

    layer: Numbers = None
    head: Numbers = None
    weight: WeightFunction | PairFunction | None = None
    normalizer: Normalizer | None = None
    stack: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.weight is None and self.normalizer is None:
            raise EditError("Swap takes a weight function, a normalizer, or both; it got neither.")
        if self.weight is not None:
            object.__setattr__(self, "weight", as_weight_function(self.weight))
            if any(isinstance(part, Rotary) for part in self._weight.modules()):
                raise EditError(
                    "The model has already applied its rotary embeddings to the queries and keys "
                    "that Swap gets: give the weight function without Rotary(...)."
                )
        if self.normalizer is not None and not isinstance(self.normalizer, Normalizer):
            raise EditError(
                "normalizer must be a Normalizer, such as Softmax() or Entmax15(), not "
                f"{self.normalizer!r:.60}."
            )

    @property
    def _weight(self) -> WeightFunction:
        return cast("WeightFunction", self.weight)

    def in_call(self, place: Place) -> Edit | None:
        """Return its part in a call, whose positions must be known if they may be read."""
        found = super().in_call(place)
        if found is not None and place.is_adrift and self.weight is not None:
            part = next(filter(_may_read_positions, self._weight.modules()), None)
            if part is not None:
                raise EditError(
                    f"{part!r} may read positions, but a call in {place.stack!r} reads more keys "
                    "than those of its own tokens, so where its queries stand among them is not "
                    "known, as in a step whose prompt ran before the context was opened: open the "
                    "context before the prompt, or run the whole text at once."
                )
        return found

    def scored_by(self, own: WeightFunction, has_vectors: bool) -> WeightFunction:
        """Return the weight function, with the model's own in place of `ModelScore`."""
        if self.weight is None:
            return own
        if not has_vectors and not _reads_no_vectors(self._weight):
            raise EditError(
                f"{self._weight!r} reads queries and keys, but this attention, such as a softmax "
                "written out or a layer on a graph, shows only its scores: use ModelScore() and "
                "weight functions of positions."
            )
        return _bound(self._weight, own)


def _may_read_positions(part: nn.Module) -> bool:
    if isinstance(part, (PositionWeight, PairWeight)):
        return not isinstance(part, EdgeBias)
    is_ours = type(part).__module__.startswith(WeightFunction.__module__.rpartition(".")[0])
    return isinstance(part, WeightFunction) and not (is_ours or isinstance(part, ModelScore))


def _reads_no_vectors(weight: WeightFunction) -> bool:
    if isinstance(weight, (Sum, Scaled, Softcap)):
        return all(
            _reads_no_vectors(part)
            for part in weight.modules()
            if part is not weight and isinstance(part, WeightFunction)
        )
    return isinstance(weight, (ModelScore, PositionWeight))


def _bound(weight: WeightFunction, own: WeightFunction) -> WeightFunction:
    """Copy a weight function with `own` in place of `ModelScore`; parameters are shared."""
    if isinstance(weight, ModelScore):
        return own
    if not any(isinstance(part, ModelScore) for part in weight.modules()):
        return weight
    if isinstance(weight, Sum):
        return Sum(*(_bound(cast("WeightFunction", term), own) for term in weight.terms))
    bound = copy.copy(weight)
    bound._modules = {
        name: _bound(part, own) if isinstance(part, WeightFunction) else part
        for name, part in weight._modules.items()
    }
    return bound
