"""Compares the tokens that a call's values are made of with those of its keys."""

from __future__ import annotations

import torch

from gattn.models.doors.proof.layouts.slots import Owner
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


def check_values(found: Dependence, owner: Owner | None) -> None:
    """Refuse a call whose values are made of single tokens, those of other keys than their own.

    Values that mix tokens, or are made of none that is a key, may be meant so.
    """
    keys = found.keys
    if not keys.index or not keys.is_exact or not found.values.keys() >= keys.index.keys():
        return
    pairs = []
    for dim, own in keys.index.items():
        its = found.values[dim]
        if own.shape != its.shape or not bool((its >= NONE).all()):
            return
        if dim in keys.batch and len(its.unique()) < len(own.unique()):  # Heads may share values.
            if owner is None or dim != owner.dim:
                continue
            own, its = (owner.elements[x.clamp(min=0)].where(x >= 0, x) for x in (own, its))
        pairs.append((own, its))
    if not pairs:
        return
    key, value = (torch.stack(some) for some in zip(*pairs, strict=True))
    are_told = (key >= 0).all(0) & (value >= 0).all(0)
    are_others = are_told & (key != value).any(0)
    if not bool(are_others.any()):
        return
    own, its = (x.T.unique(dim=0) for x in (key[:, are_told], value[:, are_others]))
    if len(torch.cat((own, its)).unique(dim=0)) < len(own) + len(its):
        raise ValuesError(_OTHERS)
