"""Compares the tokens that a call's values are made of with those of its keys."""

from __future__ import annotations

import torch
from torch import Tensor

from gattn.models.doors.proof.probing import UntoldError
from gattn.models.doors.proof.probing.codes import NONE
from gattn.models.doors.proof.probing.dependence import Dependence

_OTHERS = (
    "its values are those of other tokens than its keys: what a head takes from a key is what "
    "another token gave, as where they are flipped, shifted or of another text; bring keys and "
    "values into one order"
)


class ValuesError(UntoldError):
    """Says that values belong to the tokens of other keys, whatever is around."""


def check_values(found: Dependence) -> None:
    """Refuse a call whose values are made of single tokens, those of other keys than their own.

    Values that mix tokens, or are made of none that is a key, may be meant so.
    """
    keys, shape = found.keys, found.shape
    dims = sorted(keys.index)
    if not dims or not keys.is_exact or not found.values.keys() >= set(dims):
        return
    own, its = _stacked(keys.index, dims), _stacked(found.values, dims)
    if own.shape != its.shape or not bool((its >= NONE).all()):
        return
    are_told = (own >= 0).all(0) & (its >= 0).all(0)
    key, value = (_numbers(x, [shape[dim] for dim in dims]) for x in (own, its))
    are_others = are_told & (key != value)
    if bool(torch.isin(value[are_others], key[are_told]).any()):
        raise ValuesError(_OTHERS)


def _stacked(index: dict[int, Tensor], dims: list[int]) -> Tensor:
    return torch.stack([index[dim] for dim in dims])


def _numbers(places: Tensor, sizes: list[int]) -> Tensor:
    """Give places along several dimensions (dims, lead, slots) one number each."""
    found = torch.zeros_like(places[0])
    for of, size in zip(places, sizes, strict=True):
        found = found * size + of
    return found
