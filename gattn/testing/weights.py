"""The contract of weight functions."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gattn.engines.shared.scoring import checked_scores
from gattn.errors import ContractError
from gattn.testing.clauses import BATCH, KEYS, QUERIES, agree, hold_to, moved, normal
from gattn.weights.base import PairFunction, Tree, WeightFunction, as_weight_function, map_tree
from gattn.weights.pairs import DotForm, Pairs, Positions


def check_weight_function(
    weight: WeightFunction | PairFunction,
    *,
    num_heads: int = 3,
    query_dim: int = 4,
    key_dim: int | None = None,
    edge_features: int = 0,
) -> None:
    """Check a weight function against its contract, in float64, on sizes that all differ.

    Parameters
    ----------
    weight : WeightFunction or callable
        What to check: a copy of it, with its parameters moved a little.
    num_heads, query_dim : int
        The sizes that it takes.
    key_dim : int, optional
        Features of a key; `query_dim` by default.
    edge_features : int
        The number of features per edge; none by default.

    Raises
    ------
    ContractError
        If it breaks a clause: which one, what was expected and what arrived.
    """
    function = as_weight_function(weight)
    draw = torch.Generator().manual_seed(0)
    key_dim = query_dim if key_dim is None else key_dim
    shape = (QUERIES, KEYS, edge_features)
    case = _Scoring(
        moved(function, draw),
        normal(draw, BATCH, num_heads, QUERIES, query_dim),
        normal(draw, BATCH, num_heads, KEYS, key_dim),
        Positions(torch.arange(QUERIES) + 2, torch.arange(KEYS)),
        normal(draw, *shape) if edge_features else None,
    )
    sizes = {"num_heads": num_heads, "query_dim": query_dim, "key_dim": key_dim}
    hold_to(repr(function), case, _CLAUSES, sizes | {"edge_features": edge_features})


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

    def total(self, form: DotForm) -> Tensor:
        """Add up the parts of a dot form."""
        total = torch.zeros(self.shape, dtype=self.query.dtype)
        for term in form.bias:
            total = total + term.on_tile(None, None, self.pairs())
        if form.query is not None and form.key is not None:
            total = total + form.scale * form.query @ form.key.transpose(-2, -1)
        return total

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
        """Take a part of the queries and keys, with their positions and features."""
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


def _runs(case: _Scoring) -> None:
    case.prepared()
    try:
        _prepares_tokens(case)
        case.all_edges()
    except (AssertionError, ContractError):
        return  # The clauses below judge what it returned.


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


def _scores_are_numbers(case: _Scoring) -> None:
    """Allow -inf, which means no edge; +inf and NaN would make NaN of all that a query reads."""
    try:
        scores = case.all_edges().detach()
    except ContractError:
        return  # The next clause judges what is no score.
    wrong = scores.isnan() | (scores == torch.inf)
    if bool(wrong.any()):
        place = wrong.nonzero()[0].tolist()
        query, key = (int(p[i]) for p, i in zip(case.positions, place[2:], strict=True))
        raise AssertionError(
            f"expected finite scores, or -inf for no edge; it scores {float(scores[tuple(place)])} "
            f"for the query at position {query} and the key at {key} (offset {key - query}), which "
            "makes NaN of all that this query reads"
        )


def _tile_agrees(case: _Scoring) -> None:
    agree(case.tile(), case.all_edges(), "the tile, expected from the edge list,")


def _dot_form_agrees(case: _Scoring) -> None:
    form = case.weight.dot_form(*case.prepared())
    if form is not None:
        agree(case.total(form), case.all_edges(), "the dot form, expected from forward,")


def _capped_form_agrees(case: _Scoring) -> None:
    capped = case.weight.capped_form(*case.prepared())
    if capped is None:
        return
    total = case.total(capped.form)
    if capped.cap is not None:
        total = capped.cap * torch.tanh(total / capped.cap)
    total = case.total(DotForm(None, None, capped.bias)) + total
    agree(total, case.all_edges(), "the capped form, expected from forward,")


def _relative_scores_read_offsets_alone(case: _Scoring) -> None:
    if not case.weight.is_relative:
        return
    query, key = case.positions
    other = replace(
        case,
        query=case.query.flip(2),
        key=case.key.flip(2),
        positions=Positions(query + 3, key + 3),
        features=None if case.features is None else case.features.flip(0),
    )
    agree(other.all_edges(), case.all_edges(), "a relative score of other tokens 3 places on,")


def _pair_alone_counts(case: _Scoring) -> None:
    queries, keys = torch.tensor([1, 3, 2]), torch.tensor([5, 0, 2, 6])
    expected = case.tile()[:, :, queries][..., keys]
    agree(case.among(queries, keys).tile(), expected, "scores among some tokens, shuffled,")


def _batch_items_are_apart(case: _Scoring) -> None:
    for item in range(BATCH):
        alone = replace(case, query=case.query[item, None], key=case.key[item, None])
        agree(alone.tile(), case.tile()[item, None], f"batch item {item} alone")


def _has_gradients(case: _Scoring) -> None:
    leaves = {"query": case.query, "key": case.key}
    if case.features is not None:
        leaves["features"] = case.features
    leaves = {name: leaf.clone().requires_grad_() for name, leaf in leaves.items()}
    live = replace(case, **leaves)  # type: ignore[arg-type]
    leaves |= {name: leaf for name, leaf in case.weight.named_parameters() if leaf.requires_grad}
    scores = live.all_edges()
    _reaches(live, leaves, scores)
    if scores.requires_grad:
        some = scores.detach().isfinite()
        torch.autograd.gradcheck(
            lambda *_: live.all_edges()[some], [*leaves.values()], fast_mode=True
        )


def _reaches(live: _Scoring, leaves: Mapping[str, Tensor], scores: Tensor) -> None:
    """Refuse scores that change with a leaf but give it no gradient; they need not depend on it."""
    found: tuple[Tensor | None, ...] = (None,) * len(leaves)
    if scores.requires_grad:
        found = torch.autograd.grad(scores.sum(), [*leaves.values()], allow_unused=True)
    for (name, leaf), gradient in zip(leaves.items(), found, strict=True):
        if gradient is None and leaf.numel():
            step = 1e-6 * normal(torch.Generator().manual_seed(1), *leaf.shape)
            with torch.no_grad():
                kept, before = leaf.clone(), live.all_edges()
                leaf += step
                change = live.all_edges() - before
                leaf.copy_(kept)
            if bool((change.abs() > 1e-12).any()):
                raise AssertionError(
                    f"the scores depend on {name} but give it no gradient; is there a detach(), a "
                    "no_grad() or a conversion to numbers?"
                )


def _keeps_half_precision(case: _Scoring) -> None:
    half = case.to(torch.bfloat16)
    expected = half.to(torch.float64).tile().detach()
    for name, scores in (("tile", half.tile()), ("edge list", half.all_edges())):
        if torch.promote_types(scores.dtype, torch.float32) != torch.float32:
            raise AssertionError(
                f"{name}: expected torch.bfloat16 (or torch.float32), got {scores.dtype}"
            )
        finite = expected[expected.isfinite()]
        scale = 1 + float(finite.abs().max()) if finite.numel() else 1.0
        agree(scores.double(), expected, f"the {name} in bfloat16", 0.03 * scale)


def _takes_empty_neighbourhoods(case: _Scoring) -> None:
    nothing = torch.arange(0)
    for scores in (case.edges(nothing, nothing), case.among(torch.arange(5), nothing).tile()):
        if scores.numel():
            raise AssertionError(f"without edges: expected no scores, got {scores.numel()}")


_CLAUSES: Mapping[str, Callable[[_Scoring], None]] = {
    "it runs on the given sizes": _runs,
    "prepare keeps tokens apart": _prepares_tokens,
    "scores are finite, or -inf for no edge": _scores_are_numbers,
    "an edge list scores as a tile does": _tile_agrees,
    "the dot form is the score": _dot_form_agrees,
    "the capped form is the score": _capped_form_agrees,
    "a relative score depends on the offset alone": _relative_scores_read_offsets_alone,
    "a pair's score depends on that pair alone": _pair_alone_counts,
    "batch items do not mix": _batch_items_are_apart,
    "gradients are right": _has_gradients,
    "half precision suffices": _keeps_half_precision,
    "no edges, no scores": _takes_empty_neighbourhoods,
}
