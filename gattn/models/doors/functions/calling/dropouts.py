"""Tells whether a call of one of torch's dropouts drops anything."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

_F = nn.functional
_PLAIN = frozenset((_F.dropout, torch.dropout, torch.dropout_))
_OFF_BY_DEFAULT = frozenset((_F.alpha_dropout, _F.feature_alpha_dropout))
_OTHERS = _OFF_BY_DEFAULT | {
    *(_F.dropout1d, _F.dropout2d, _F.dropout3d),
    *(torch.feature_dropout, torch.feature_dropout_, torch.alpha_dropout, torch.alpha_dropout_),
    *(torch.feature_alpha_dropout, torch.feature_alpha_dropout_),
}
DROPOUTS = _PLAIN | _OTHERS
_TAKES = ("input", "p", "training", "inplace")


def dropped_by(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> float | None:
    """Return the probability with which a call drops numbers; None if it is no call of dropout."""
    if func not in DROPOUTS:
        return None
    given = dict(zip(_TAKES, args, strict=False)) | dict(kwargs)
    is_on = given.get("training", given.get("train", func not in _OFF_BY_DEFAULT))
    return float(given.get("p", 0.5)) if is_on else 0.0


def keeps_scale(func: Any) -> bool:
    """Return whether a dropout drops each number by itself, as attention is usually dropped."""
    return func in _PLAIN
