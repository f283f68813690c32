"""The contract of normalizers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gattn.normalizers.base import Normalizer
from gattn.testing.clauses import BATCH, KEYS, QUERIES, agree, hold_to, moved, normal


def check_normalizer(normalizer: Normalizer, *, num_heads: int = 3) -> None:
    """Check a normalizer against its contract, in float64, on rows of different degrees.

    Parameters
    ----------
    normalizer : Normalizer
        What to check: a copy of it, with its parameters moved a little.
    num_heads : int
        The number of heads that it takes.

    Raises
    ------
    ContractError
        If it breaks a clause: which one, what was expected and what arrived.
    """
    draw = torch.Generator().manual_seed(0)
    degrees = torch.tensor([3, 0, 7, 1, 5])
    places = torch.rand(QUERIES, KEYS, generator=draw).argsort(-1)
    scores = normal(draw, BATCH, num_heads, QUERIES, KEYS)
    case = _Normalizing(moved(normalizer, draw), scores, places < degrees[:, None])
    hold_to(repr(normalizer), case, _CLAUSES, {"num_heads": num_heads})


@dataclass(frozen=True)
class _Normalizing:
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
        """Normalize the edges as a list in an order of its own; return them as rows."""
        query, key = self.edges.nonzero(as_tuple=True)
        draw = torch.Generator().manual_seed(1)
        order = torch.randperm(len(query), generator=draw)
        order = order[torch.argsort(query[order], stable=True)]
        query, key = query[order], key[order]
        attention = self.normalizer.on_edges(self.scores[..., query, key], query, len(self.edges))
        if attention.shape != (*self.scores.shape[:2], len(query)):
            raise AssertionError(
                f"expected on_edges to return one number per edge, {len(query)}, got "
                f"{tuple(attention.shape)}"
            )
        rows = attention.new_zeros(self.scores.shape)
        rows[..., query, key] = attention
        return rows


def _no_edge_no_attention(case: _Normalizing) -> None:
    scores = case.scores.masked_fill(~case.edges, -torch.inf).requires_grad_()
    attention = case.normalizer(scores)
    none = torch.zeros_like(attention[..., ~case.edges])
    agree(attention[..., ~case.edges], none, "attention where there is no edge")
    pull = torch.arange(attention.numel(), dtype=attention.dtype).reshape(attention.shape)
    (gradient,) = torch.autograd.grad((attention * pull).sum(), scores)
    agree(gradient[..., ~case.edges], none, "the gradient where there is no edge")
    if not bool(torch.isfinite(gradient).all() and torch.isfinite(attention).all()):
        raise AssertionError("expected finite attention and gradients, got NaN or infinity")


def _ragged_agrees(case: _Normalizing) -> None:
    agree(case.ragged(), case.rows(), "on_edges, expected from forward on rows,")
    gradients: list[Tensor] = []
    for method in (_Normalizing.ragged, _Normalizing.rows):
        live = replace(case, scores=case.scores.clone().requires_grad_())
        attention = method(live)
        pull = torch.arange(attention.numel(), dtype=attention.dtype).cos()
        pulled = (attention * pull.reshape(attention.shape)).sum()
        gradients += torch.autograd.grad(pulled, live.scores)
    agree(gradients[0], gradients[1], "the gradient of on_edges, expected from forward,")


def _removed_edges_are_none(case: _Normalizing) -> None:
    removed = torch.arange(case.scores.numel()).reshape(case.scores.shape) % 3 == 0
    removed[:, :, 0] = True
    some = replace(case, scores=case.scores.masked_fill(removed, -torch.inf))
    _ragged_agrees(some)
    gone = some.ragged()[removed]
    agree(gone, torch.zeros_like(gone), "attention where a listed edge scores -inf")


def _keys_may_be_permuted(case: _Normalizing) -> None:
    order = torch.arange(KEYS).flip(0).roll(2)
    moved = replace(case, scores=case.scores[..., order], edges=case.edges[:, order])
    agree(moved.rows(), case.rows()[..., order], "attention of permuted keys")


def _rows_are_apart(case: _Normalizing) -> None:
    some = replace(case, scores=case.scores[:1, :, 2:], edges=case.edges[2:])
    agree(some.rows(), case.rows()[:1, :, 2:], "some rows alone")


def _flags_are_true(case: _Normalizing) -> None:
    attention = case.rows().detach()
    if not case.normalizer.is_signed and bool((attention < 0).any()):
        raise AssertionError(
            f"is_signed is False: expected no negative attention, got {float(attention.min())}"
        )
    if case.normalizer.is_distribution:
        total = attention[:, :, case.edges.any(-1)].sum(-1)
        expected = total.clamp_max(1.0) if case.normalizer.has_sink else torch.ones_like(total)
        agree(total, expected, "is_distribution is True: a row's sum")


def _has_gradients(case: _Normalizing) -> None:
    scores = case.scores[:1].clone().requires_grad_()
    leaves = [scores, *case.normalizer.parameters()]
    live = replace(case, scores=scores)
    for method in (_Normalizing.rows, _Normalizing.ragged):
        torch.autograd.gradcheck(lambda *_, m=method: m(live), leaves, fast_mode=True)


def _keeps_half_precision(case: _Normalizing) -> None:
    half = replace(case, scores=case.scores.bfloat16())
    expected = replace(half, scores=half.scores.double()).rows()
    for name, attention in (("forward", half.rows()), ("on_edges", half.ragged())):
        if attention.dtype != torch.bfloat16:
            raise AssertionError(f"{name}: expected torch.bfloat16, got {attention.dtype}")
        agree(attention.double(), expected, f"{name} in bfloat16", 0.01)


def _takes_no_edges(case: _Normalizing) -> None:
    agree(replace(case, edges=case.edges & False).ragged(), 0 * case.scores, "without edges")
    replace(case, scores=case.scores[..., :0], edges=case.edges[:, :0]).rows()


_CLAUSES: Mapping[str, Callable[[_Normalizing], None]] = {
    "no edge, no attention and no gradient": _no_edge_no_attention,
    "an edge list is normalized as rows are": _ragged_agrees,
    "a listed edge with score -inf is no edge": _removed_edges_are_none,
    "keys may be permuted": _keys_may_be_permuted,
    "rows do not mix": _rows_are_apart,
    "is_signed and is_distribution are true": _flags_are_true,
    "gradients are right": _has_gradients,
    "half precision stays": _keeps_half_precision,
    "no edges, no attention": _takes_no_edges,
}
