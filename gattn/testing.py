"""What a new weight function or normalizer must satisfy, as checks to call from a test."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor, nn

from gattn.engines.base import checked_scores
from gattn.errors import ContractError
from gattn.normalizers.base import Normalizer
from gattn.weights.base import (
    PairFunction,
    Pairs,
    Positions,
    Tree,
    WeightFunction,
    as_weight_function,
    map_tree,
)

_BATCH, _QUERIES, _KEYS = 2, 5, 7
_Case = TypeVar("_Case")


def check_weight_function(
    weight: WeightFunction | PairFunction,
    *,
    heads: int = 3,
    query_dim: int = 4,
    key_dim: int | None = None,
    edge_features: int = 0,
) -> None:
    """Hold a weight function to its contract, in float64, on sizes that all differ.

    Parameters
    ----------
    weight : WeightFunction or callable
        What is checked: a copy of it, its parameters moved a little.
    heads, query_dim : int
        The sizes that it takes.
    key_dim : int, optional
        Features of a key; `query_dim` by default.
    edge_features : int
        How many features an edge has; none by default.

    Raises
    ------
    ContractError
        Naming the clause that broke, what was expected and what arrived.
    """
    function = as_weight_function(weight)
    draw = torch.Generator().manual_seed(0)
    shape = (_QUERIES, _KEYS, edge_features)
    case = _Scoring(
        _moved(function, draw),
        _normal(draw, _BATCH, heads, _QUERIES, query_dim),
        _normal(draw, _BATCH, heads, _KEYS, query_dim if key_dim is None else key_dim),
        Positions(torch.arange(_QUERIES) + 2, torch.arange(_KEYS)),
        _normal(draw, *shape) if edge_features else None,
    )
    _hold(repr(function), case, _WEIGHT_CLAUSES)


def check_normalizer(normalizer: Normalizer, *, heads: int = 3) -> None:
    """Hold a normalizer to its contract, in float64, on rows of different degrees.

    Parameters
    ----------
    normalizer : Normalizer
        What is checked: a copy of it, its parameters moved a little.
    heads : int
        The number of heads that it takes.

    Raises
    ------
    ContractError
        Naming the clause that broke, what was expected and what arrived.
    """
    draw = torch.Generator().manual_seed(0)
    degrees = torch.tensor([3, 0, 7, 1, 5])
    places = torch.rand(_QUERIES, _KEYS, generator=draw).argsort(-1)
    scores = _normal(draw, _BATCH, heads, _QUERIES, _KEYS)
    case = _Normalising(_moved(normalizer, draw), scores, places < degrees[:, None])
    _hold(repr(normalizer), case, _NORMALIZER_CLAUSES)


# Weight functions


@dataclass(frozen=True)
class _Scoring:
    """A weight function and what it scores; features are (queries, keys, F)."""

    weight: WeightFunction
    query: Tensor
    key: Tensor
    positions: Positions
    features: Tensor | None

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return (*self.query.shape[:3], self.key.shape[2])

    def prepared(self) -> tuple[Tree, Tree]:
        return self.weight.prepare(self.query, self.key, self.positions)

    def pairs(self) -> Pairs:
        query, key = self.positions
        return Pairs(query[:, None, None], key[None, :, None], self.features)

    def tile(self) -> Tensor:
        scores = self.weight.on_tile(*self.prepared(), self.pairs())
        return checked_scores(scores, self.shape, self.weight).expand(self.shape)

    def edges(self, query: Tensor, key: Tensor) -> Tensor:
        sides = [
            map_tree(lambda x, i=index: x.transpose(1, 2)[:, i], side)  # type: ignore[misc]
            for side, index in zip(self.prepared(), (query, key), strict=True)
        ]
        features = None if self.features is None else self.features[query, key]
        positions = self.positions.query[query, None], self.positions.key[key, None]
        batch, heads = self.query.shape[:2]
        shape = (batch, len(query), heads)
        scores = self.weight(*sides, Pairs(*positions, features))
        return checked_scores(scores, shape, self.weight).expand(shape).transpose(1, 2)

    def all_edges(self) -> Tensor:
        query, key = torch.ones(self.shape[2:]).nonzero(as_tuple=True)
        scores: Tensor = self.edges(query, key).unflatten(-1, self.shape[2:])
        return scores

    def among(self, queries: Tensor, keys: Tensor) -> _Scoring:
        """Take some queries and some keys, with their positions and features."""
        return replace(
            self,
            query=self.query[:, :, queries],
            key=self.key[:, :, keys],
            positions=Positions(self.positions.query[queries], self.positions.key[keys]),
            features=None if self.features is None else self.features[queries][:, keys],
        )

    def to(self, dtype: torch.dtype) -> _Scoring:
        return replace(
            self,
            weight=copy.deepcopy(self.weight).to(dtype),
            query=self.query.to(dtype),
            key=self.key.to(dtype),
            features=None if self.features is None else self.features.to(dtype),
        )


def _prepares_tokens(case: _Scoring) -> None:
    for name, side, tokens in zip(("query", "key"), case.prepared(), case.shape[2:], strict=True):

        def hold(tensor: Tensor, name: str = name, tokens: int = tokens) -> Tensor:
            batch, heads = case.shape[:2]
            free = tensor.dim() == 4 and tensor.shape[1] in (1, heads)
            if not free or tensor.shape[0] != batch or tensor.shape[2] != tokens:
                raise AssertionError(
                    f"prepare's {name} side: expected (batch, heads or 1, tokens, any) = "
                    f"({batch}, {heads} or 1, {tokens}, any), got {tuple(tensor.shape)}"
                )
            return tensor

        map_tree(hold, side)


def _tile_agrees(case: _Scoring) -> None:
    _agree(case.tile(), case.all_edges(), "the tile, expected from the edge list,")


def _dot_form_agrees(case: _Scoring) -> None:
    form = case.weight.dot_form(*case.prepared())
    if form is None:
        return
    total = torch.zeros(case.shape, dtype=case.query.dtype)
    for term in form.bias:
        total = total + term.on_tile(None, None, case.pairs())
    if form.query is not None and form.key is not None:
        total = total + form.query @ form.key.transpose(-2, -1)
    _agree(total, case.all_edges(), "the dot form, expected from forward,")


def _pair_alone_counts(case: _Scoring) -> None:
    queries, keys = torch.tensor([1, 3, 2]), torch.tensor([5, 0, 2, 6])
    expected = case.tile()[:, :, queries][..., keys]
    _agree(case.among(queries, keys).tile(), expected, "scores among some tokens, shuffled,")


def _batch_items_are_apart(case: _Scoring) -> None:
    for item in range(_BATCH):
        alone = replace(case, query=case.query[item, None], key=case.key[item, None])
        _agree(alone.tile(), case.tile()[item, None], f"batch item {item} alone")


def _has_gradients(case: _Scoring) -> None:
    leaves = [case.query, case.key, *([] if case.features is None else [case.features])]
    leaves = [leaf.clone().requires_grad_() for leaf in leaves]
    features = leaves[2] if case.features is not None else None
    live = replace(case, query=leaves[0], key=leaves[1], features=features)
    if live.all_edges().requires_grad:
        leaves += case.weight.parameters()
        torch.autograd.gradcheck(lambda *_: live.all_edges(), leaves, fast_mode=True)


def _keeps_half_precision(case: _Scoring) -> None:
    half = case.to(torch.bfloat16)
    expected = half.to(torch.float64).tile().detach()
    for name, scores in (("tile", half.tile()), ("edge list", half.all_edges())):
        if scores.dtype != torch.bfloat16:
            raise AssertionError(f"{name}: expected scores in torch.bfloat16, got {scores.dtype}")
        scale = 1 + float(expected.abs().max())
        _agree(scores.double(), expected, f"the {name} in bfloat16", 0.03 * scale)


def _takes_empty_neighbourhoods(case: _Scoring) -> None:
    nothing = torch.arange(0)
    for scores in (case.edges(nothing, nothing), case.among(torch.arange(5), nothing).tile()):
        if scores.numel():
            raise AssertionError(f"without edges: expected no scores, got {scores.numel()}")


_WEIGHT_CLAUSES: Mapping[str, Callable[[_Scoring], None]] = {
    "prepare keeps tokens apart": _prepares_tokens,
    "an edge list scores as a tile does": _tile_agrees,
    "the dot form is the score": _dot_form_agrees,
    "a pair's score depends on that pair alone": _pair_alone_counts,
    "batch items do not mix": _batch_items_are_apart,
    "gradients are right": _has_gradients,
    "half precision stays": _keeps_half_precision,
    "no edges, no scores": _takes_empty_neighbourhoods,
}


# Normalizers


@dataclass(frozen=True)
class _Normalising:
    """A normalizer, scores (B, H, Q, K), and which pairs (Q, K) are edges."""

    normalizer: Normalizer
    scores: Tensor
    edges: Tensor

    def rows(self) -> Tensor:
        attention: Tensor = self.normalizer(self.scores.masked_fill(~self.edges, -torch.inf))
        if attention.shape != self.scores.shape:
            raise AssertionError(
                f"expected attention of the scores' shape {tuple(self.scores.shape)}, got "
                f"{tuple(attention.shape)}"
            )
        return attention

    def ragged(self) -> Tensor:
        """Normalise the edges as a list in an order of its own; return it as rows."""
        query, key = self.edges.nonzero(as_tuple=True)
        draw = torch.Generator().manual_seed(1)
        order = torch.randperm(len(query), generator=draw)
        query, key = query[order], key[order]
        attention = self.normalizer.on_edges(self.scores[..., query, key], query, len(self.edges))
        if attention.shape != (*self.scores.shape[:2], len(query)):
            raise AssertionError(
                f"expected on_edges to return one number an edge, {len(query)}, got "
                f"{tuple(attention.shape)}"
            )
        rows = attention.new_zeros(self.scores.shape)
        rows[..., query, key] = attention
        return rows


def _no_edge_no_attention(case: _Normalising) -> None:
    scores = case.scores.masked_fill(~case.edges, -torch.inf).requires_grad_()
    attention = case.normalizer(scores)
    none = torch.zeros_like(attention[..., ~case.edges])
    _agree(attention[..., ~case.edges], none, "attention where there is no edge")
    pull = torch.arange(attention.numel(), dtype=attention.dtype).reshape(attention.shape)
    (gradient,) = torch.autograd.grad((attention * pull).sum(), scores)
    _agree(gradient[..., ~case.edges], none, "the gradient where there is no edge")
    if not bool(torch.isfinite(gradient).all() and torch.isfinite(attention).all()):
        raise AssertionError("expected finite attention and gradients, got NaN or infinity")


def _ragged_agrees(case: _Normalising) -> None:
    _agree(case.ragged(), case.rows(), "on_edges, expected from forward on rows,")
    gradients: list[Tensor] = []
    for method in (_Normalising.ragged, _Normalising.rows):
        live = replace(case, scores=case.scores.clone().requires_grad_())
        attention = method(live)
        pull = torch.arange(attention.numel(), dtype=attention.dtype).cos()
        pulled = (attention * pull.reshape(attention.shape)).sum()
        gradients += torch.autograd.grad(pulled, live.scores)
    _agree(gradients[0], gradients[1], "the gradient of on_edges, expected from forward,")


def _removed_edges_are_none(case: _Normalising) -> None:
    removed = torch.arange(case.scores.numel()).reshape(case.scores.shape) % 3 == 0
    removed[:, :, 0] = True
    some = replace(case, scores=case.scores.masked_fill(removed, -torch.inf))
    _ragged_agrees(some)
    gone = some.ragged()[removed]
    _agree(gone, torch.zeros_like(gone), "attention where a listed edge scores -inf")


def _keys_may_be_permuted(case: _Normalising) -> None:
    order = torch.arange(_KEYS).flip(0).roll(2)
    moved = replace(case, scores=case.scores[..., order], edges=case.edges[:, order])
    _agree(moved.rows(), case.rows()[..., order], "attention of permuted keys")


def _rows_are_apart(case: _Normalising) -> None:
    some = replace(case, scores=case.scores[:1, :, 2:], edges=case.edges[2:])
    _agree(some.rows(), case.rows()[:1, :, 2:], "some rows alone")


def _flags_are_true(case: _Normalising) -> None:
    attention = case.rows().detach()
    if not case.normalizer.is_signed and bool((attention < 0).any()):
        raise AssertionError(
            f"is_signed is False: expected no negative attention, got {float(attention.min())}"
        )
    if case.normalizer.is_distribution:
        total = attention[:, :, case.edges.any(-1)].sum(-1)
        expected = total.clamp_max(1.0) if case.normalizer.has_sink else torch.ones_like(total)
        _agree(total, expected, "is_distribution is True: a row's sum")


def _normalizer_has_gradients(case: _Normalising) -> None:
    scores = case.scores[:1].clone().requires_grad_()
    leaves = [scores, *case.normalizer.parameters()]
    live = replace(case, scores=scores)
    for method in (_Normalising.rows, _Normalising.ragged):
        torch.autograd.gradcheck(lambda *_, m=method: m(live), leaves, fast_mode=True)


def _normalizer_keeps_half_precision(case: _Normalising) -> None:
    half = replace(case, scores=case.scores.bfloat16())
    expected = replace(half, scores=half.scores.double()).rows()
    for name, attention in (("forward", half.rows()), ("on_edges", half.ragged())):
        if attention.dtype != torch.bfloat16:
            raise AssertionError(f"{name}: expected torch.bfloat16, got {attention.dtype}")
        _agree(attention.double(), expected, f"{name} in bfloat16", 0.01)


def _takes_no_edges(case: _Normalising) -> None:
    _agree(replace(case, edges=case.edges & False).ragged(), 0 * case.scores, "without edges")
    replace(case, scores=case.scores[..., :0], edges=case.edges[:, :0]).rows()


_NORMALIZER_CLAUSES: Mapping[str, Callable[[_Normalising], None]] = {
    "no edge, no attention and no gradient": _no_edge_no_attention,
    "an edge list is normalised as rows are": _ragged_agrees,
    "a listed edge with score -inf is no edge": _removed_edges_are_none,
    "keys may be permuted": _keys_may_be_permuted,
    "rows do not mix": _rows_are_apart,
    "is_signed and is_distribution are true": _flags_are_true,
    "gradients are right": _normalizer_has_gradients,
    "half precision stays": _normalizer_keeps_half_precision,
    "no edges, no attention": _takes_no_edges,
}


# Both

_Module = TypeVar("_Module", bound=nn.Module)


def _hold(name: str, case: _Case, clauses: Mapping[str, Callable[[_Case], None]]) -> None:
    for clause, hold in clauses.items():
        try:
            hold(case)
        except Exception as error:
            raise ContractError(f"{name} breaks the clause {clause!r}: {error}") from error


def _agree(got: Tensor, expected: Tensor, what: str, tolerance: float = 1e-9) -> None:
    if got.shape != expected.shape:
        raise AssertionError(
            f"{what}: expected the shape {tuple(expected.shape)}, got {tuple(got.shape)}"
        )
    got, expected = got.detach(), expected.detach()
    near = (got - expected).abs() <= tolerance * (1 + expected.abs())
    if not bool(near.all()):
        place = tuple((~near).nonzero()[0].tolist())
        raise AssertionError(
            f"{what} at {place}: expected {float(expected[place]):.6g}, got {float(got[place]):.6g}"
        )


def _normal(draw: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(shape, generator=draw, dtype=torch.float64)


def _moved(module: _Module, draw: torch.Generator) -> _Module:
    """Copy a module to float64 and move its parameters off special values such as 0."""
    moved = copy.deepcopy(module).double()
    with torch.no_grad():
        for parameter in moved.parameters():
            parameter.add_(0.1 * _normal(draw, *parameter.shape))
    return moved
