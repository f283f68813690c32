"""The base of all weight functions, and their algebra.

To add one to gattn: a class in a file of this folder, its name in the folder's `__init__.py`, in
`gattn/__init__.pyi` and in `docs/api/graphs.rst`, and a test that checks it against a plain loop.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from numbers import Real
from typing import Any, TypeAlias, cast

from torch import Tensor, nn

from gattn.errors import ContractError
from gattn.graph.rules.per_head import HeadEdges
from gattn.weights.pairs import (
    CappedForm,
    DotForm,
    Pairs,
    Positions,
    check_arguments,
    sum_of_capped,
    sum_of_forms,
    tile_scores,
    total,
)
from gattn.weights.parameters import a_head, fixed_or_learned, scaled, shown_factor

Tree: TypeAlias = Tensor | tuple["Tree", ...] | None
"""A tensor, None, or a tuple of trees: what `WeightFunction.prepare` returns for each side."""


class WeightFunction(nn.Module):
    r"""What the edge j -> i scores before normalizing: :math:`w(q_i, k_j)`, for a single pair.

    A subclass writes `forward` for one pair, in operations that broadcast: the last axis is the
    feature axis, the one before it the heads. gattn calls it on edge lists and on tiles alike.
    The other methods are faster or richer paths with a default: `prepare` does once per token
    what does not depend on the pair, and a `dot_form` lets engines multiply matrices.

    Weight functions add (``w1 + w2``, ``sum([...])``) and scale (``c * w``, an inverse
    temperature). A sum of terms that have a dot form has one, too. `PositionWeight` is the base of
    those that read only positions or edge features.

    What `forward` does may be recorded on one piece of the pairs and replayed on the others, so it
    should not count or log. Hooks see all pairs: where the weight function has any, it is called.

    Attributes
    ----------
    is_relative : bool
        Whether a score depends on the offset of the pair and on nothing else, so that one number
        for each offset and head says all scores.

    Examples
    --------
    >>> class Decay(WeightFunction):
    ...     def __init__(self, num_heads):
    ...         super().__init__()
    ...         self.slope = nn.Parameter(torch.zeros(num_heads))
    ...
    ...     def forward(self, query, key, pairs):
    ...         return (query * key).sum(-1) - self.slope * pairs.offset.abs()

    Hold it to the contract, and use it:

    >>> gattn.testing.check_weight_function(Decay(3), num_heads=3)
    >>> q, k, v = torch.randn(3, 2, 5, 4)  # (heads, tokens, dim) each
    >>> gattn.graph_attention(q, k, v, gattn.TokenGraph.causal(5), weight=Decay(2)).shape
    torch.Size([2, 5, 4])
    """

    is_relative: bool = False

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        check_arguments(partial(cast("Any", cls.forward), None), cls.__name__)

    def prepare(self, query: Tensor, key: Tensor, positions: Positions) -> tuple[Tree, Tree]:
        """Do what does not depend on the pair, once per token: projections, rotations, norms.

        Parameters
        ----------
        query, key : Tensor
            Shape (batch, heads, tokens, dim).
        positions : Positions
            Positions of queries and keys.

        Returns
        -------
        tuple of trees
            What `forward` gets in place of query and key: tensors of shape
            (batch, heads or 1, tokens, any); or None, None if it reads only pairs.
        """
        return query, key

    def forward(self, query: Any, key: Any, pairs: Pairs) -> Tensor:
        """Score pairs: (..., H, D), (..., H, D) -> (..., H) or (..., 1)."""
        raise ContractError(f"{type(self).__name__} must define forward(query, key, pairs).")

    def on_tile(self, query: Any, key: Any, pairs: Pairs) -> Tensor:
        """Score all pairs of a tile: (B, H, Q, .), (B, H, K, .) -> (B, H, Q, K)."""
        scores: Tensor = self(
            map_tree(lambda x: x.transpose(1, 2)[:, :, None], query),
            map_tree(lambda x: x.transpose(1, 2)[:, None], key),
            pairs,
        )
        if isinstance(scores, Tensor) and scores.dim() == 3:
            scores = scores[None]
        if not isinstance(scores, Tensor) or scores.dim() != 4:
            found = tuple(scores.shape) if isinstance(scores, Tensor) else scores
            raise ContractError(
                f"{self} must return one score for each pair and head, (..., heads) or (..., 1), "
                f"but on a tile it returned {found}. Reduce the feature axis only, for example "
                "with .sum(-1)."
            )
        return scores.permute(0, 3, 1, 2)

    def on_edges(self, query: Any, key: Any, edges: HeadEdges) -> Tensor | None:
        """Score the edges of a small graph in few passes, or give None where `forward` should.

        (B, H, Q, .), (B, H, K, .) -> (E,), as float32 or float64, in the order of `edges`.
        """
        return None

    def dot_form(self, query: Any, key: Any) -> DotForm | None:
        """Write the score as a dot product plus terms of pairs, or give None if it is not one.

        Takes what `prepare` returned, and must give the same scores as `forward`.
        """
        return None

    def capped_form(self, query: Any, key: Any) -> CappedForm | None:
        """Write the score as a soft cap on a dot form plus terms of pairs, or give None.

        Takes what `prepare` returned; by default the dot form without a cap.
        """
        form = self.dot_form(query, key)
        return None if form is None else CappedForm(form)

    def __add__(self, other: WeightFunction | PairFunction) -> Sum:
        """Add scores: a bias."""
        return Sum(self, as_weight_function(other))

    def __radd__(self, other: object) -> WeightFunction:
        """Let ``sum([...])`` start from 0, and a plain callable stand on the left."""
        if isinstance(other, (int, float)) and other == 0:
            return self
        if callable(other):
            return Sum(as_weight_function(cast("PairFunction", other)), self)
        return NotImplemented

    def __mul__(self, factor: float | Tensor) -> Scaled:
        """Scale scores: an inverse temperature."""
        if not isinstance(factor, (Real, Tensor)):
            return NotImplemented
        return Scaled(cast("float | Tensor", factor), self)

    __rmul__ = __mul__

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.extra_repr()})"


PairFunction: TypeAlias = Callable[[Tensor, Tensor, Pairs], Tensor]


class Sum(WeightFunction):
    """The sum of several weight functions."""

    def __init__(self, *terms: WeightFunction) -> None:
        super().__init__()
        flat: list[WeightFunction] = []
        for term in terms:
            flat.extend(term._each() if isinstance(term, Sum) else [term])
        self.terms: nn.ModuleList = nn.ModuleList(flat)

    def _each(self) -> list[WeightFunction]:
        return cast("list[WeightFunction]", list(self.terms))

    def prepare(self, query: Tensor, key: Tensor, positions: Positions) -> tuple[Tree, Tree]:
        """Prepare each term: two tuples."""
        sides = [term.prepare(query, key, positions) for term in self._each()]
        return tuple(side[0] for side in sides), tuple(side[1] for side in sides)

    def forward(self, query: Tree, key: Tree, pairs: Pairs) -> Tensor:
        """Add the terms' scores."""
        return total([term(q, k, pairs) for term, q, k in self._with(query, key)])

    def on_tile(self, query: Tree, key: Tree, pairs: Pairs) -> Tensor:
        """Add the terms' tiles."""
        return total([tile_scores(term, q, k, pairs) for term, q, k in self._with(query, key)])

    def dot_form(self, query: Tree, key: Tree) -> DotForm | None:
        """Concatenate the terms' features if each has a dot form."""
        return sum_of_forms([term.dot_form(q, k) for term, q, k in self._with(query, key)])

    def capped_form(self, query: Tree, key: Tree) -> CappedForm | None:
        """Add terms of pairs to the one term that has a cap."""
        if (form := super().capped_form(query, key)) is not None:
            return form
        return sum_of_capped([term.capped_form(q, k) for term, q, k in self._with(query, key)])

    def _with(self, query: Tree, key: Tree) -> list[tuple[WeightFunction, Tree, Tree]]:
        assert isinstance(query, tuple)
        assert isinstance(key, tuple)
        return list(zip(self._each(), query, key, strict=True))

    def __repr__(self) -> str:
        return " + ".join(repr(term) for term in self.terms)


class Scaled(WeightFunction):
    """A weight function times a factor; a `nn.Parameter` of shape () or (heads,) is learned."""

    def __init__(self, factor: float | Tensor, weight: WeightFunction) -> None:
        super().__init__()
        self.factor = fixed_or_learned("A factor", factor)
        self.weight = weight
        self.is_relative = weight.is_relative

    def prepare(self, query: Tensor, key: Tensor, positions: Positions) -> tuple[Tree, Tree]:
        """Prepare the weight function itself."""
        return self.weight.prepare(query, key, positions)

    def forward(self, query: Tree, key: Tree, pairs: Pairs) -> Tensor:
        """Scale the score."""
        return self.factor * cast("Tensor", self.weight(query, key, pairs))

    def on_tile(self, query: Tree, key: Tree, pairs: Pairs) -> Tensor:
        """Scale the tile."""
        return a_head(self.factor) * tile_scores(self.weight, query, key, pairs)

    def dot_form(self, query: Tree, key: Tree) -> DotForm | None:
        """Scale the query features and each term of pairs."""
        form = self.weight.dot_form(query, key)
        if form is None:
            return None
        bias = tuple(Scaled(self.factor, term) for term in form.bias)
        if not isinstance(self.factor, Tensor):
            return form._replace(bias=bias, scale=self.factor * form.scale)
        query = None if form.query is None else scaled(form.query, self.factor)
        return form._replace(query=query, bias=bias)

    def __repr__(self) -> str:
        factor = shown_factor(self.factor)
        inner = f"({self.weight})" if isinstance(self.weight, Sum) else str(self.weight)
        return f"{factor} * {inner}"


class PairWeight(WeightFunction):
    """A plain callable ``(query, key, pairs) -> scores`` as a weight function."""

    def __init__(self, function: PairFunction) -> None:
        super().__init__()
        self.function = function

    def forward(self, query: Tree, key: Tree, pairs: Pairs) -> Tensor:
        """Call the function."""
        return self.function(cast("Tensor", query), cast("Tensor", key), pairs)

    def __repr__(self) -> str:
        return str(getattr(self.function, "__name__", type(self.function).__name__))


def as_weight_function(weight: WeightFunction | PairFunction) -> WeightFunction:
    """Take a weight function as it is, and wrap a plain callable.

    Raises
    ------
    ContractError
        If it is neither, or does not take a query, a key and their pairs.
    """
    if isinstance(weight, WeightFunction):
        return weight
    if isinstance(weight, type) or not callable(weight):
        instance = "; pass an instance of it" if isinstance(weight, type) else ""
        raise ContractError(
            "weight must be a WeightFunction, such as ScaledDotProduct() or Cosine(), or a "
            f"callable (query, key, pairs) -> scores, not {weight!r}{instance}."
        )
    made = PairWeight(weight)
    check_arguments(weight.forward if isinstance(weight, nn.Module) else weight, repr(made))
    return made


def map_tree(function: Callable[[Tensor], Tensor], tree: Tree) -> Tree:
    """Apply a function to each tensor of a tree."""
    if tree is None:
        return None
    if isinstance(tree, tuple):
        return tuple(map_tree(function, branch) for branch in tree)
    return function(tree)
