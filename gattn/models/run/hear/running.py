"""Runs a layer that is running once more, on another stream, up to its attention."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from gattn.errors import EditError
from gattn.models.edit.heard import SIDES, Removed
from gattn.models.read.places import Place
from gattn.models.read.seen_call import SeenCall
from gattn.models.stream.adding.streams import RunningLayer
from gattn.models.stream.again.twins import is_cache
from gattn.models.stream.layers import first_of
from gattn.models.stream.rounding import tolerance
from gattn.models.stream.rows import Rows
from gattn.models.watch.contexts import without_contexts
from gattn.models.watch.listening import Sides, first_call
from gattn.normalizers.base import widened


@dataclass(eq=False)
class Running:
    """A running layer that can be run once more."""

    layer: RunningLayer

    @cached_property
    def given(self) -> Tensor | None:
        """The stream that it was given."""
        return first_of((*self.layer.args, *self.layer.kwargs.values()))

    def run_on(self, stream: Tensor) -> Sides | None:
        """Run the layer on another stream, up to its attention."""

        def put(x: Any) -> Any:  # A cache would hold the layer's keys twice.
            return stream if x is self.given else None if is_cache(x) else x

        args = tuple(map(put, self.layer.args))
        kwargs = {name: put(x) for name, x in self.layer.kwargs.items()}
        with without_contexts(), self.layer.autocasting():
            return first_call(lambda: self.layer.module.forward(*args, **kwargs))

    def without(
        self, each: list[list[Removed]], call: SeenCall, rows: Rows, name: str
    ) -> list[Sides]:
        """Run the layer without vectors of its stream: the first that each sequence names, etc."""
        assert self.given is not None
        given, found = widened(rows.of(self.given)), []
        self._check(call, rows, name)
        for n in range(max(map(len, each), default=0)):
            some = [removed[min(n, len(removed) - 1)] if removed else None for removed in each]
            first = some[0]
            if first is not None and all(one is first for one in some):
                vector = first.vector
            else:
                zero = torch.zeros_like(given)
                whole = torch.stack([zero if one is None else one.vector for one in some])
                vector = whole[rows.element, torch.arange(len(given), device=given.device)]
            nested = self.run_on(rows.put(self.given, given - vector))
            assert nested is not None
            found.append(nested)
        return found

    def _check(self, call: SeenCall, rows: Rows, name: str) -> None:
        """Refuse unless the layer, run once more, gives what it gave."""
        assert self.given is not None
        with torch.no_grad():
            again = self.run_on(self.given)
        if again is None or again.query.shape != call.query.shape:
            raise EditError(
                f"{name}: what {call.where} would read of another stream is not known. Expected a "
                "layer of transformers that asks its attention interface (as GPT-2, Llama and BERT "
                "do), without a cache of its own. On other models, use gattn.why, and edits of "
                "attention such as Cut, Scale, Patch and Ablate."
            )
        sides = SIDES if rows.are_whole else ("query",)
        if not all(_are_close(getattr(again, x), getattr(call, x), rows, x) for x in sides):
            raise EditError(
                f"{name}: run again on what its layer was given, {call.where} has other queries, "
                "keys or values. A hook on the layer changes what it is given, or chance does."
            )


def _are_close(one: Tensor, other: Tensor, rows: Rows, side: str) -> bool:
    """Compare the real tokens of the queries, keys or values of two calls."""
    if one.shape[1] != other.shape[1] or one.shape[3] != other.shape[3]:
        return False
    one = rows.of(one.transpose(1, 2))
    place = rows.place
    sides = place.queries if side == "query" else place.keys
    at = [n * other.shape[2] + part.slots.to(other.device) for n, part in enumerate(sides)]
    other = other.transpose(1, 2).flatten(0, 1)[torch.cat(at)]
    one, other = one.detach(), other.detach()
    limit = tolerance(other) * float(other.abs().max()) if other.numel() else 0.0
    return one.shape == other.shape and bool(((one - other).abs() <= limit).all())


def check_call(edit: object, call: SeenCall, place: Place, given: Tensor | None) -> None:
    """Refuse calls whose tokens are not those of the stream, one to one."""
    if given is None:
        raise EditError(f"{edit}: {call.where} is not in a layer that reads the stream.")
    batch, _, slots, _ = call.query.shape
    if place.heads or place.is_adrift or given.shape[:-1] != (batch, slots):
        raise EditError(
            f"{edit}: {call.where} attends over {batch} sequences of {slots} queries, and its "
            f"layer reads a stream {tuple(given.shape)}: expected the same tokens in both. Heads "
            "or windows that attend by themselves are not supported."
        )
