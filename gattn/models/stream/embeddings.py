"""The stream before the first layer as a sum of embeddings."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gattn.models.stream.parts import Stream, Writer
from gattn.models.stream.rounding import tolerance
from gattn.models.stream.sublayers import FixedNorm


class Embedded:
    """What embeddings gave since a run began, and norms of what followed."""

    def __init__(self) -> None:
        self._found: list[tuple[str, Tensor]] = []
        self._norms: list[tuple[Tensor, FixedNorm]] = []

    def note(self, name: str, module: nn.Module, given: Tensor | None, result: Tensor) -> None:
        """Note what a module without modules in it gave, outside of all layers."""
        if isinstance(module, nn.Embedding):
            self._found.append((name, result.detach().clone()))
        elif self._found and given is not None and given.shape == result.shape:
            if result.dim() != 3 or torch.equal(given, result):
                return
            norm = FixedNorm.of(module, given[0].detach(), result[0].detach())
            if norm is not None:
                self._norms.append((given[0].detach().clone(), norm))

    def stream(self, start: Tensor) -> Stream:
        """Take the stream (tokens, dim) apart, as far as it is a sum of embeddings."""
        flat = [(name, x.reshape(-1, x.shape[-1])) for name, x in self._found]
        some = [(name, x) for name, x in flat if x.shape == start.shape]
        if not some:
            return Stream([Writer("embedding")], start[None])
        paths = [name for name, _ in some]
        names = [path.rpartition(".")[2] for path in paths]
        names = names if len(set(names)) == len(names) else paths
        if len(set(names)) < len(names):  # One module that looks several ids up.
            names = [f"{path} {n}" for n, path in enumerate(paths)]
        writers = [Writer("embedding", name=name) for name in names]
        parts = torch.stack([x.to(start) for _, x in some])
        total = parts.sum(0)
        size = float((start * total).sum() / total.square().sum())
        if _is_close(size * total, start):
            size = 1.0 if _is_close(total, start) else size
            return Stream(writers, size * parts)
        for given, norm in self._norms:
            if _is_close(given.to(total), total) and _is_close(norm(total) + norm.shift, start):
                shift = norm.shift.expand_as(start)[None]
                writers.append(Writer("embedding", name="norm"))
                return Stream(writers, torch.cat([norm(parts), shift]))
        return Stream([Writer("embedding")], start[None])


def _is_close(one: Tensor, other: Tensor) -> bool:
    limit = tolerance(other) * other.abs().amax(-1, keepdim=True)
    return one.shape == other.shape and bool(((one - other).abs() <= limit).all())
