"""A call of an attention function, as contexts are shown it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn


@dataclass
class RoutedCall:
    """One call of an attention function.

    `query` is (batch, heads, queries, dim), `key` and `value` (batch, key heads, keys, dim or
    value dim), `output` (batch, queries, heads, value dim), `weights` the attention where the
    function gives it. `mask` is what the implementation takes: None, booleans or an additive term
    that broadcast to (batch, heads, queries, keys).
    """

    name: str
    module: nn.Module
    implementation: str
    query: Tensor
    key: Tensor
    value: Tensor
    mask: Any
    options: dict[str, Any]
    output: Tensor
    weights: Tensor | None = None
    is_own: bool = False
