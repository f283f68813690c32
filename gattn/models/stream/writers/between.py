"""Norms that a model applies to the stream between two layers."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gattn.models.stream.adding.ways import is_same
from gattn.models.stream.layers import first_of
from gattn.models.stream.norms import FixedNorm
from gattn.models.stream.probing import forward_of


class Between:
    """What modules without modules in them made of a stream since the last layer ended."""

    def __init__(self) -> None:
        self._events: list[tuple[nn.Module, Tensor, Tensor]] = []

    def note(
        self, module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object], result: object
    ) -> None:
        """Note what a module outside of all layers did."""
        given = first_of((*args, *kwargs.values()))
        is_alone = len(args) + len(kwargs) == 1 and not any(True for _ in module.children())
        if not is_alone or given is None or not isinstance(result, Tensor):
            return
        if given.shape == result.shape and not is_same(given, result):
            self._events.append((module, given.clone(), result.clone()))

    def forget(self) -> None:
        """Begin anew after a layer."""
        self._events.clear()

    def norm(self, end: Tensor, start: Tensor, slots: Tensor) -> FixedNorm | None:
        """Find the norm that made the stream that a layer begins with of a layer's end."""
        least = len(slots) if slots.dtype == torch.bool else int(slots.max()) + 1
        for module, given, result in self._events:
            if given.shape[:-1].numel() < least:
                continue  # It normed something else, such as one vector of each sequence.
            before, after = (x.reshape(-1, x.shape[-1])[slots] for x in (given, result))
            if is_same(before, end) and is_same(after, start):
                return FixedNorm.of(forward_of(module), before, after)
        return None
