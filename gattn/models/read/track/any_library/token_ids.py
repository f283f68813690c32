"""Finds the ids of tokens among what a model is given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def ids_of(inputs: Mapping[str, Any]) -> Tensor | None:
    """Find the ids of tokens: what is called input_ids, or the only input of integers.

    They are (batch, tokens) or (tokens,), and may be in a dictionary, as a tokenizer gives them.
    """
    found = texts_of(inputs)
    is_named = "input_ids" in found and "decoder_input_ids" not in found
    if len(found) != 1 and not is_named:
        return None
    return found["input_ids"] if is_named else next(iter(found.values()))


def texts_of(inputs: Mapping[str, Any]) -> dict[str, Tensor]:
    """Find the inputs that may be ids of tokens, by name, each (batch, tokens)."""
    named = dict(inputs)
    for x in inputs.values():
        named |= x if isinstance(x, Mapping) else {}
    return {
        name: x[None] if x.dim() == 1 else x
        for name, x in named.items()
        if isinstance(x, Tensor) and x.dtype in (torch.int32, torch.int64) and x.dim() in (1, 2)
    }
