"""Layers of arrays of attention, of one text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from gattn.errors import ShapeError
from gattn.heads.given.numbers import as_floats

SIZES = "(layers, heads, queries, keys)"


def layers_in(attention: Any) -> Iterator[Tensor]:
    """Iterate over the layers, each (heads, queries, keys)."""
    if isinstance(attention, (list, tuple)):
        for n, part in enumerate(attention):
            yield _one_layer(part, n)
        return
    values = as_floats(attention, "attention")
    if values.dim() == 5 and values.shape[1] != 1:
        raise ShapeError(
            f"Attention {tuple(values.shape)} holds a batch of {values.shape[1]} texts: choose "
            "one, as in attention[:, 0], and leave out its padding."
        )
    if values.dim() not in (4, 5):
        raise ShapeError(
            f"Attention is an array {SIZES}, or a list of layers (heads, queries, keys), not "
            f"{tuple(values.shape)}; a single layer is [attention], and for one matrix there is "
            "AttentionGraph.from_dense."
        )
    yield from values[:, 0] if values.dim() == 5 else values


def _one_layer(part: Any, n: int) -> Tensor:
    if part is None:
        raise ShapeError(
            f"Layer {n} has no attention: leave such layers out. A model returns attention if it "
            'is loaded with attn_implementation="eager"; gattn.capture needs no such thing.'
        )
    if isinstance(part, tuple):
        raise ShapeError(
            f"Layer {n} is a tuple of {len(part)}: what generate() gives are steps of layers. Pass "
            "one step's layers, or capture(prompt, ..., generate=...) for all of them."
        )
    values = as_floats(part, "attention")
    if values.dim() == 4 and len(values) != 1:
        raise ShapeError(
            f"Layer {n} holds a batch of {len(values)} texts: choose one, as in "
            "[layer[0] for layer in attentions], and leave out its padding."
        )
    values = values[0] if values.dim() == 4 else values
    if values.dim() != 3:
        raise ShapeError(
            f"A layer is (heads, queries, keys), but layer {n} is {tuple(values.shape)}."
        )
    return values


def check_layer(layer: Tensor, n: int, first: Tensor) -> None:
    """Refuse a layer of other tokens than the first, an empty one, and NaN or infinity."""
    if layer.shape[1:] != first.shape[1:]:
        raise ShapeError(
            f"Layer {n} has queries and keys {tuple(layer.shape[1:])}, layer 0 has "
            f"{tuple(first.shape[1:])}: layers of other tokens are stacks of their own, as in "
            '{"wide": [...], "narrow": [...]}.'
        )
    if 0 in layer.shape:
        raise ShapeError(f"Layer {n} is empty: {tuple(layer.shape)}.")
    if not bool(torch.isfinite(layer).all()):
        head, query, key = (~torch.isfinite(layer)).nonzero()[0].tolist()
        raise ShapeError(
            f"Layer {n}, head {head} gives query {query} and key {key} "
            f"{float(layer[head, query, key])}: attention must be finite. Leave out padding and "
            "rows that attend to nothing."
        )
