"""What is known of the pairs that weight functions score, and the forms that scores may have."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from inspect import signature
from types import FunctionType
from typing import TYPE_CHECKING, NamedTuple, cast

import torch
from torch import Tensor

from gattn.caching import cached_tensor
from gattn.errors import ContractError

if TYPE_CHECKING:
    from gattn.weights.base import Tree, WeightFunction


class Positions:
    """Positions of the queries (Q,) and the keys (K,); with a cache they differ.

    Ranges are listed, on a device, once they are read.
    """

    def __init__(
        self, query: Tensor | range, key: Tensor | range, device: torch.device | None = None
    ) -> None:
        self._given, self._device = (query, key), device

    def __iter__(self) -> Iterator[Tensor]:
        return iter((self.query, self.key))

    @cached_tensor
    def query(self) -> Tensor:
        """The position of each query."""
        return self._listed(self._given[0])

    @cached_tensor
    def key(self) -> Tensor:
        """The position of each key."""
        return self._listed(self._given[1])

    def _listed(self, given: Tensor | range) -> Tensor:
        if isinstance(given, Tensor):
            return given
        return torch.arange(given.start, given.stop, device=self._device)


@dataclass(frozen=True)
class Pairs:
    """What is known of the pairs to score, apart from their vectors.

    Parameters
    ----------
    query, key : Tensor
        Positions, which end in an axis of 1 that broadcasts against heads: (E, 1) on an edge list,
        (Q, 1, 1) and (1, K, 1) on a tile.
    features : Tensor, optional
        Edge features, (E, F) on an edge list and (Q, K, F) on a tile. They have no axis of heads: a
        sum over F takes ``keepdim=True``.
    """

    query: Tensor
    key: Tensor
    features: Tensor | None = None

    @property
    def offset(self) -> Tensor:
        """The key's position minus the query's: negative for the past."""
        return self.key - self.query


def check_arguments(function: Callable[..., object], name: str) -> None:
    """Refuse a function that cannot be called with a query, a key and their pairs."""
    if type(function) is FunctionType:  # Reading a signature takes as long as scoring few pairs.
        code = function.__code__
        if code.co_argcount == 3 and not code.co_kwonlyargcount:
            return
    try:
        known = signature(function)
    except (TypeError, ValueError):  # such as a function written in C
        return
    try:
        known.bind(None, None, None)
    except TypeError as error:
        raise ContractError(
            f"A weight function is called with (query, key, pairs), but {name} takes {known}: "
            "write it as `lambda query, key, pairs: ...`, even if it does not read pairs."
        ) from error


class DotForm(NamedTuple):
    """A score written as ``scale * query . key`` plus terms of pairs.

    `query` (B, H, Q, D) and `key` (B, H, K, D) are None if there is no dot product; each term of
    `bias` is a weight function that reads only pairs.
    """

    query: Tensor | None
    key: Tensor | None
    bias: tuple[WeightFunction, ...] = ()
    scale: float = 1.0


class CappedForm(NamedTuple):
    """A score written as ``cap * tanh(form / cap) + bias``; without a cap, `form` is all of it."""

    form: DotForm
    cap: float | None = None
    bias: tuple[WeightFunction, ...] = ()


def sum_of_forms(forms: Sequence[DotForm | None]) -> DotForm | None:
    """Concatenate the features of terms that are added, if each has a dot form."""
    if any(form is None for form in forms):
        return None
    known = cast("list[DotForm]", forms)
    bias = tuple(term for form in known for term in form.bias)
    products = [form for form in known if form.query is not None]
    if len(products) < 2:
        return DotForm(None, None, bias) if not products else products[0]._replace(bias=bias)
    queries = [cast("Tensor", form.query) * form.scale for form in products]
    keys = [cast("Tensor", form.key) for form in products]
    return DotForm(_concatenate(queries), _concatenate(keys), bias)


def sum_of_capped(forms: Sequence[CappedForm | None]) -> CappedForm | None:
    """Add terms of pairs to the one term that has a cap."""
    known = [form for form in forms if form is not None]
    capped = [form for form in known if form.cap is not None]
    others = [form.form for form in known if form.cap is None]
    if len(known) < len(forms) or len(capped) > 1 or any(x.query is not None for x in others):
        return None
    bias = (*capped[0].bias, *(term for form in others for term in form.bias))
    return capped[0]._replace(bias=bias)


def tile_scores(weight: WeightFunction, query: Tree, key: Tree, pairs: Pairs) -> Tensor:
    """Score a tile by multiplying matrices if there is a dot form, else by `on_tile`.

    (B, H, Q, .), (B, H, K, .) -> (B, H, Q, K), where batch and heads may be 1.
    """
    form = weight.dot_form(query, key)
    if form is None:
        return weight.on_tile(query, key, pairs)
    terms = [term.on_tile(None, None, pairs) for term in form.bias]
    if form.query is not None and form.key is not None:
        terms.append((form.query * form.scale) @ form.key.transpose(-2, -1))
    return total(terms)


def total(scores: Sequence[Tensor]) -> Tensor:
    """Add scores, whose shapes broadcast."""
    found = scores[0]
    for term in scores[1:]:
        found = found + term
    return found


def _concatenate(parts: Sequence[Tensor]) -> Tensor:
    lead = torch.broadcast_shapes(*(part.shape[:-1] for part in parts))
    return torch.cat([part.expand(*lead, part.shape[-1]) for part in parts], dim=-1)
