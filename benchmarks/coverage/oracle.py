"""A model's own attention, from its eager code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from torch import Tensor

from benchmarks import zoo
from benchmarks.coverage.compared import Heads


def own_attention(specimen: zoo.Specimen, eager: zoo.Specimen) -> tuple[list[Heads | None], int]:
    """Return each call's attention from the model's own eager code, and how many were routed."""
    calls: list[tuple[Any, Tensor | None]] = []
    with _recorded(calls):
        eager.run()
    if calls:
        return _layers(calls), len(calls)
    try:
        output = eager.run(output_attentions=True)
    except TypeError:
        return [], 0
    return [_normalized(x.detach().double()).numpy() for x in _attentions(output)], 0


def _layers(calls: list[tuple[Any, Tensor | None]]) -> list[Heads | None]:
    """Join what a module computes in pieces, one call per packed image."""
    layers: list[Heads | None] = []
    for (module, weights), (before, last) in zip(calls, [(None, None), *calls], strict=False):
        own = None if weights is None else weights.detach().double().numpy()
        if module is before and own is not None and last is not None and len(own) == 1:
            whole = layers[-1]
            assert whole is not None
            seen = whole.shape[2]
            own = np.pad(own, ((0, 0), (0, 0), (seen, 0), (seen, 0)))
            own[:, :, :seen, :seen] = whole
            layers[-1] = own
        else:
            layers.append(own)
    return layers


@contextmanager
def _recorded(calls: list[tuple[Any, Tensor | None]]) -> Iterator[None]:
    """Record the weights that each routed attention function returns, and its module."""
    from transformers import AttentionInterface

    original = AttentionInterface.get_interface

    def answer(interface: Any, name: str, default: Any) -> Any:
        function = original(interface, name, default)

        def call(module: Any, *args: Any, **options: Any) -> Any:
            result = function(module, *args, **options)
            calls.append((module, result[1]))
            return result

        return call

    AttentionInterface.get_interface = answer  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        AttentionInterface.get_interface = original  # type: ignore[method-assign]


def _attentions(output: Any) -> Iterator[Tensor]:
    """Find the attentions in an output, and in the outputs of inner models."""
    for name, value in output.items() if isinstance(output, dict) else ():
        if name.endswith("attentions"):
            yield from (x for x in _flat(value) if x.dim() == 4)
        elif isinstance(value, dict):
            yield from _attentions(value)


def _normalized(attention: Tensor) -> Tensor:
    """Return the softmax of scores, which some models return as their attention."""
    return attention.softmax(-1) if bool((attention < 0).any()) else attention


def _flat(nested: Any) -> Iterator[Tensor]:
    if isinstance(nested, Tensor):
        yield nested
    elif isinstance(nested, (list, tuple)):
        for part in nested:
            yield from _flat(part)
