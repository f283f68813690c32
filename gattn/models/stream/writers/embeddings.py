"""The stream before the first layer as a sum of embeddings."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gattn.models.stream.norms import FixedNorm
from gattn.models.stream.probing import forward_of
from gattn.models.stream.rounding import tolerance
from gattn.models.stream.writers.parts import Stream, Writer
from gattn.normalizers.base import widened


class Embedded:
    """What embeddings gave since a run began, and norms of what followed."""

    def __init__(self) -> None:
        self._found: list[tuple[str, Tensor]] = []
        self._norms: list[tuple[Tensor, FixedNorm]] = []

    def note(self, name: str, module: nn.Module, given: Tensor | None, result: Tensor) -> None:
        """Note what a module without modules in it gave, outside of all layers."""
        if isinstance(module, nn.Embedding):
            self._found.append((name, result.clone()))
        elif self._found and given is not None and given.shape == result.shape:
            if result.dim() != 3 or torch.equal(given, result):
                return
            before, after = given.flatten(0, 1), result.flatten(0, 1)
            norm = FixedNorm.of(forward_of(module), before, after)
            if norm is not None:
                self._norms.append((before.clone(), norm))

    def stream(self, start: Tensor) -> Stream:
        """Take the stream (sequences, slots, dim) apart, as far as it is a sum of embeddings.

        The parts are (writers, sequences * slots, dim), at least in single precision.
        """
        limit, width = tolerance(start), start.shape[-1]
        some = [(name, x) for name, x in self._found if _fits(x, start)]
        start_rows = widened(start).reshape(-1, width)
        if not some:
            return Stream([Writer("embedding")], start_rows[None])
        paths = [name for name, _ in some]
        names = [path.rpartition(".")[2] for path in paths]
        names = names if len(set(names)) == len(names) else paths
        if len(set(names)) < len(names):  # One module that looks several ids up.
            names = [f"{path} {n}" for n, path in enumerate(paths)]
        writers = [Writer("embedding", name=name) for name in names]
        parts = torch.stack([x.to(start_rows).expand_as(start).reshape(-1, width) for _, x in some])
        total = parts.sum(0)
        size = float((start_rows * total).detach().sum() / total.detach().square().sum())
        if _is_close(size * total, start_rows, limit):
            size = 1.0 if _is_close(total, start_rows, limit) else size
            return Stream(writers, size * parts)
        for given, norm in self._norms:
            is_of_sum = given.shape == total.shape and _is_close(given.to(total), total, limit)
            if is_of_sum and _is_close(norm(total) + norm.shift, start_rows, limit):
                shift = norm.shift.expand_as(start_rows)[None]
                writers.append(Writer("embedding", name="norm"))
                return Stream(writers, torch.cat([norm(parts), shift]))
        return Stream([Writer("embedding")], start_rows[None])


def _fits(x: Tensor, start: Tensor) -> bool:
    """Return whether an embedding can be added to the stream, in each sequence alike or not."""
    return x.shape[-2:] == start.shape[-2:] and x.shape[:-2] in ((), (1,), start.shape[:-2])


def _is_close(one: Tensor, other: Tensor, limit: float) -> bool:
    return bool(((one - other).abs() <= limit * other.abs().amax(-1, keepdim=True)).all())
