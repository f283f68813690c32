"""Runs a layer again, where what its modules gave is held: what is left shows where sums go."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from gattn.errors import CaptureError
from gattn.models.doors.proof.copying.copies import copied
from gattn.models.stream.events import Event, Key
from gattn.models.stream.held_runs import HeldRun, Spot, is_of, rows_of, with_rows
from gattn.models.stream.layers import first_of
from gattn.models.stream.linear_maps import takes
from gattn.models.stream.rounding import tolerance
from gattn.models.watch.contexts import without_contexts
from gattn.normalizers.base import widened

if TYPE_CHECKING:
    from gattn.models.stream.streams import RunningLayer

_FAILURES = (CaptureError, RuntimeError, ValueError, TypeError, AttributeError, LookupError)
"""What copies raise that cannot run again."""


@dataclass(frozen=True, eq=False)
class Moved:
    """What changes where some calls give other numbers, all else held.

    Parameters
    ----------
    noise : Tensor (tokens, dim)
        By how much what they add to the stream changes.
    changes : dict of Tensor (tokens, dim)
        What else changes, by its place.
    limit : Tensor (tokens, 1)
        How much of a change may be rounding.
    """

    noise: Tensor
    changes: dict[Spot, Tensor]
    limit: Tensor

    def share(self, place: Spot) -> float | None:
        """Return by which number a change is the noise's; None if it is not just multiplied."""
        change = self.changes.get(place)
        if change is None:
            return None
        change, noise = change.detach(), self.noise.detach()
        size = float((change * noise).sum() / noise.square().sum())
        if bool(((change - size * noise).abs() > self.limit).any()):
            return None
        told = tolerance(noise)
        return next((float(x) for x in (0, 1) if abs(size - x) <= told), size)


class Replay:
    """A layer that runs again: a copy that shares its parameters.

    Modules without modules in them, products and norms give what they gave before, and the
    attention module what it gave in the model's run, edits included. Then only sums and what else
    the layer's own code does are computed.

    Parameters
    ----------
    layer : RunningLayer
        The layer that ran.
    real : Tensor (tokens,)
        The slots of its tokens.
    projection : Event
        The output projection of its attention.
    with_hooks : bool
        Whether the user's hooks run, too.
    """

    def __init__(
        self, layer: RunningLayer, real: Tensor, projection: Event, *, with_hooks: bool
    ) -> None:
        assert layer.seen is not None
        self._layer, self._real = layer, real
        self._twin = copied(layer.module, with_hooks=with_hooks)
        # torch's own encoder layer calls its modules one by one only if there are hooks.
        self._twin.register_forward_hook(lambda *_: None)
        names = {module: name for name, module in layer.module.named_modules()}
        parts = dict(self._twin.named_modules())
        self._running: HeldRun | None = None
        for name, module in parts.items():
            if name:
                module.forward = partial(self._called, module, module.forward)
        call = layer.seen[0]
        self._attention: dict[Key, Any] = {}
        answer = first_of(layer.answer)
        if names.get(call.module) and answer is not None and _is_held(layer, projection, real):
            self._attention = {(parts[names[call.module]], 0): layer.answer}
        module, number = projection.key
        put = {(parts[names[module]], number): projection.output} if module in names else {}
        self._held = self._attention
        first = self._run(put)
        self._held, self.events = first.results, first.events
        self.places = {key: widened(x) for key, x in first.seen.items()}

    @property
    def end(self) -> Tensor:
        """What the layer gives: (tokens, dim)."""
        return self.places[None]

    @classmethod
    def of(cls, layer: RunningLayer, real: Tensor, projection: Event, end: Tensor) -> Replay | None:
        """Make a copy that gives what the layer gave, (tokens, dim); None if there is none."""
        for with_hooks in (False, True):
            with suppress(*_FAILURES):
                found = cls(layer, real, projection, with_hooks=with_hooks)
                limit = tolerance(end) * end.abs().amax(-1, keepdim=True)
                if bool(((found.end - end).abs() <= limit).all()):
                    return found
        return None

    @property
    def is_trained(self) -> bool:
        """Whether gradients to its parameters are taken."""
        return torch.is_grad_enabled() and any(x.requires_grad for x in self._twin.parameters())

    def branch(self, output: Tensor) -> frozenset[Key]:
        """List the calls that give a branch, (tokens, dim)."""
        return frozenset(one.key for one in self.events if takes(one.output, output))

    def with_output(self, keys: Collection[Key], output: Tensor) -> dict[Spot, Tensor]:
        """Return what each place has, where some calls give other rows."""
        run = self._run(dict.fromkeys(keys, output))
        return {key: widened(x) for key, x in run.seen.items()}

    def moved(
        self, keys: Collection[Key], output: Tensor, factor: float = 1.0, *, is_held: bool = True
    ) -> Moved:
        """Move what some calls give, which is multiplied by a factor before it is added.

        Unless all else `is_held`, only the attention is.
        """
        output = widened(output)
        noise = _noise(output, self.end)
        put = dict.fromkeys(keys, output + noise / factor)
        return self._change(noise, self._run(put, held=None if is_held else self._attention))

    def moved_given(self) -> Moved:
        """Move the stream before the layer, all else held."""
        assert self._layer.given is not None
        given = widened(rows_of(self._layer.given, self._layer.given)[self._real])
        noise = _noise(given, self.end)
        return self._change(noise, self._run({}, given=given + noise))

    def _change(self, noise: Tensor, run: HeldRun) -> Moved:
        changes = {
            key: widened(run.seen[key]) - one
            for key, one in self.places.items()
            if key in run.seen and one.shape == noise.shape
        }
        largest = torch.maximum(self.end.abs(), noise.abs()).amax(-1, keepdim=True)
        return Moved(noise, changes, tolerance(run.seen[None]) * largest)

    def _run(
        self,
        put: Mapping[Key, Tensor],
        *,
        held: Mapping[Key, Any] | None = None,
        given: Tensor | None = None,
    ) -> HeldRun:
        layer = self._layer
        assert layer.given is not None
        start = layer.given.clone()
        start = start if given is None else with_rows(start, start, self._real, given)
        old = first_of((*layer.args, *layer.kwargs.values()))
        args, kwargs = (_with(start, old, x) for x in (layer.args, layer.kwargs))
        run = HeldRun(layer.given, self._real, put, self._held if held is None else held)
        self._running = run
        try:
            with torch.no_grad(), without_contexts(), layer.autocasting(), run:
                output = first_of(self._twin(*args, **kwargs))
        finally:
            self._running = None
        if output is None or output.numel() != start.numel():
            raise CaptureError("The copy of a layer gives another stream.")
        run.seen[None] = rows_of(output, start)[self._real]
        return run

    def _called(
        self, module: nn.Module, forward: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        run = self._running
        if run is None or run.is_within:
            return forward(*args, **kwargs)
        is_leaf = not any(True for _ in module.children())
        return run.call(module, forward, args, kwargs, is_leaf)


def _is_held(layer: RunningLayer, projection: Event, real: Tensor) -> bool:
    """Return whether an attention module only gives its heads' output, or this projected."""
    assert layer.seen is not None
    assert layer.given is not None
    answer, heads = first_of(layer.answer), layer.seen[0].output
    assert answer is not None
    if takes(answer, heads.flatten(0, 1).flatten(1)):
        return True
    return is_of(answer, layer.given) and torch.equal(
        rows_of(answer, layer.given)[real], projection.output
    )


def _with(start: Tensor, old: Tensor | None, given: Any) -> Any:
    """Put a stream in arguments in place of the old one; caches would be written to again."""
    if given is old:
        return start
    if type(given) in (tuple, list):
        return type(given)(_with(start, old, x) for x in given)
    if type(given) is dict:
        return {name: _with(start, old, x) for name, x in given.items()}
    return None if is_cache(given) else given


def is_cache(x: Any) -> bool:
    """Return whether something is a cache of transformers."""
    return any(kind.__name__ == "Cache" for kind in type(x).__mro__)


def _noise(numbers: Tensor, stream: Tensor) -> Tensor:
    """Draw numbers as large as a stream's, always the same."""
    generator = torch.Generator("cpu").manual_seed(0)
    drawn = torch.randn(numbers.shape, generator=generator, device="cpu").to(numbers)
    size = torch.maximum(stream.abs(), numbers.abs()).amax(-1, keepdim=True)
    return drawn * torch.where(size > 0, size, 1)
