"""Runs a layer again, where what its modules gave is held: what is left shows where sums go."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from gattn.errors import CaptureError
from gattn.models.doors.proof.copying.copies import copied
from gattn.models.doors.proof.probing.failing import is_out_of_memory
from gattn.models.doors.proof.probing.one_run.hooks import KINDS, held_by, is_users, keep_acting
from gattn.models.doors.proof.probing.one_run.inputs import detached, mapped
from gattn.models.doors.proof.probing.one_run.state import State
from gattn.models.stream.again.events import Event, Key
from gattn.models.stream.again.held_runs import HeldRun, Spot, is_of, rows_of, with_rows
from gattn.models.stream.again.moves import Moved, numbers_at
from gattn.models.stream.layers import first_of
from gattn.models.stream.linear_maps import takes
from gattn.models.stream.rounding import tolerance
from gattn.models.watch.contexts import without_contexts
from gattn.models.watch.hooks import Uncopied
from gattn.normalizers.base import widened

if TYPE_CHECKING:
    from gattn.models.stream.adding.streams import RunningLayer


class Twin:
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
        Whether those of the user's hooks run, too, that change something.
    """

    def __init__(
        self, layer: RunningLayer, real: Tensor, projection: Event, *, with_hooks: bool
    ) -> None:
        assert layer.seen is not None
        assert layer.given is not None
        self._layer, self._real = layer, real
        self._copy = copied(layer.module, with_hooks=with_hooks)
        self._state: State | None = None
        if with_hooks:
            keep_acting(self._copy, "", self._plainly)
            self._state = State(self._copy, held_by(_users_hooks(self._copy)))
        # torch's own encoder layer calls its modules one by one only if there are hooks.
        self._copy.register_forward_hook(lambda *_: None)
        names = {module: name for name, module in layer.module.named_modules()}
        parts = dict(self._copy.named_modules())
        self._parts = [module for name, module in parts.items() if name]
        call = layer.seen[0]
        self._attention: dict[Key, Any] = {}
        if names.get(call.module) and _is_held(layer, projection, real):
            self._attention = {(parts[names[call.module]], 0): layer.answer}
        module, number = projection.key
        put = {(parts[names[module]], number): projection.output} if module in names else {}
        self._wholes = {x for x in self._parts if _may_be_norm(x)}
        first = self._run(put, self._attention)
        others = {x.key[0] for x in first.events if x.key[0] in self._wholes and x.norm is None}
        if others:
            self._wholes -= others
            first = self._run(put, self._attention)
        self._held, self.events = self._attention | first.results, first.events
        self.places = {key: widened(x) for key, x in first.seen.items()}
        self.given = widened(rows_of(layer.given, layer.given)[real])

    @property
    def end(self) -> Tensor:
        """What the layer gives: (tokens, dim)."""
        return self.places[None]

    @classmethod
    def of(cls, layer: RunningLayer, real: Tensor, projection: Event, end: Tensor) -> Twin | None:
        """Make a copy that gives what the layer gave, (tokens, dim); None if there is none."""
        for with_hooks in (False, True) if _users_hooks(layer.module) else (False,):
            try:
                found = cls(layer, real, projection, with_hooks=with_hooks)
            except Exception as error:  # The user's code may raise anything.
                if is_out_of_memory(error):
                    raise
                continue
            limit = tolerance(end) * end.abs().amax(-1, keepdim=True)
            if bool(((found.end - end).abs() <= limit).all()):
                return found
        return None

    @property
    def is_trained(self) -> bool:
        """Whether gradients to its parameters are taken."""
        return torch.is_grad_enabled() and any(x.requires_grad for x in self._copy.parameters())

    def branch(self, output: Tensor) -> frozenset[Key]:
        """List the calls that give a branch, (tokens, dim)."""
        return frozenset(one.key for one in self.events if takes(one.output, output))

    def at(self, place: Spot, put: Mapping[Key, Tensor], given: Tensor | None = None) -> Tensor:
        """Return what a place has, where some calls give other rows, or the layer is given them."""
        return widened(numbers_at(self._run(put, self._held, given).seen, place))

    def moved(
        self,
        keys: Collection[Key],
        output: Tensor,
        factor: float = 1.0,
        *,
        is_held: bool = True,
    ) -> Moved:
        """Move what some calls give, which is multiplied by a factor before it is added.

        Unless all else `is_held`, only the attention is.
        """
        noise = self.noise(0)
        put = dict.fromkeys(keys, widened(output) + noise / factor)
        return self._change(noise, self._run(put, self._held if is_held else self._attention))

    def moved_with_stream(
        self, keys: Collection[Key], output: Tensor, factor: float, start: Event | None, size: float
    ) -> Moved:
        """Move what some calls give, and otherwise the stream to which that is added.

        The stream is what a norm gives, or what the layer is given, multiplied by a number.
        """
        noise, other, given = self.noise(0), self.noise(1), self.given
        put = dict.fromkeys(keys, widened(output) + noise / factor)
        if start is None:
            given = given + other
        else:
            put[start.key] = widened(start.output) + other
        return self._change(noise + size * other, self._run(put, self._held, given))

    def moved_given(self) -> Moved:
        """Move the stream before the layer, all else held."""
        noise = self.noise(0)
        return self._change(noise, self._run({}, self._held, self.given + noise))

    def reads_earlier(self, keys: Collection[Key], place: Spot) -> bool:
        """Return whether some calls depend on what earlier ones add to a place."""
        first = next(n for n, one in enumerate(self.events) if one.key in keys)
        earlier = [x for x in self.events[:first] if x.key in self._held and x.key not in keys]
        put = {x.key: widened(x.output) + self.noise(0) for x in earlier}
        adding = {
            key: rows
            for key, rows in put.items()
            if bool((self.at(place, {key: rows}) != self.places[place]).any())
        }
        if not adding:
            return False
        plain, other = (
            [x.output for x in self._run(some, {}).events if x.key in keys] for some in ({}, adding)
        )
        return len(plain) != len(other) or not all(map(torch.equal, plain, other))

    def without_others(self, keys: Collection[Key], output: Tensor, place: Spot) -> Tensor:
        """Return what a place has where of all that is held only some calls do not give zeros."""
        others = [x for x in self.events if x.key in self._held and x.key not in keys]
        put = {x.key: torch.zeros_like(x.output) for x in others} | dict.fromkeys(keys, output)
        return self.at(place, put)

    def noise(self, number: int) -> Tensor:
        """Draw numbers as large as the stream's, always the same."""
        generator = torch.Generator("cpu").manual_seed(number)
        drawn = torch.randn(self.end.shape, generator=generator, device="cpu").to(self.end)
        size = torch.maximum(self.end.abs(), self.given.abs()).amax(-1, keepdim=True)
        return drawn * torch.where(size > 0, size, 1)

    def _change(self, noise: Tensor, run: HeldRun) -> Moved:
        changes = {
            key: widened(run.seen[key]) - one
            for key, one in self.places.items()
            if key in run.seen and one.shape == noise.shape
        }
        largest = torch.maximum(self.end.abs(), noise.abs()).amax(-1, keepdim=True)
        error = tolerance(run.seen[None])
        return Moved(noise, changes, error * largest, error)

    def _run(
        self, put: Mapping[Key, Tensor], held: Mapping[Key, Any], given: Tensor | None = None
    ) -> HeldRun:
        stream = self._layer.given
        assert stream is not None
        start = stream.clone() if given is None else with_rows(stream, stream, self._real, given)
        run = HeldRun(self._parts, self._wholes, stream, self._real, held, put)
        try:
            with run.opened():
                output = self._plainly(start)
        except Exception as error:
            if is_out_of_memory(error):
                raise
            raise CaptureError(
                f"A copy of the layer does not run on other numbers: {type(error).__name__}: "
                f"{error}"
            ) from error
        finally:
            if self._state is not None:
                self._state.restore()
        if output is None or output.numel() != start.numel():
            raise CaptureError("The copy of a layer gives another stream.")
        run.seen[None] = rows_of(output, start)[self._real]
        return run

    def _plainly(self, start: Tensor | None = None) -> Tensor | None:
        """Run the copy on a stream, and on copies of all else that the layer was given."""
        layer = self._layer
        assert layer.given is not None
        start = layer.given.clone() if start is None else start
        old = first_of((*layer.args, *layer.kwargs.values()))

        def again(x: Any) -> Any:
            if x is old:
                return start
            return detached(x) if isinstance(x, Tensor) else x

        # A cache has the layer's keys already.
        given = tree_map(
            lambda x: None if is_cache(x) else x, (layer.args, layer.kwargs), is_leaf=is_cache
        )
        args, kwargs = mapped(again, given)
        with torch.no_grad(), without_contexts(), layer.autocasting():
            return first_of(self._copy(*args, **kwargs))


def _is_held(layer: RunningLayer, projection: Event, real: Tensor) -> bool:
    """Return whether an attention module only gives its heads' output, or this projected."""
    assert layer.seen is not None
    assert layer.given is not None
    answer, heads = first_of(layer.answer), layer.seen[0].output
    if answer is None:
        return False
    if takes(answer, heads.flatten(0, 1).flatten(1)):
        return True
    return is_of(answer, layer.given) and torch.equal(
        rows_of(answer, layer.given)[real], projection.output
    )


def _may_be_norm(module: nn.Module) -> bool:
    """Return whether a module has others in it, such as transposes, and no matrix."""
    has_parts = any(True for _ in module.children())
    return has_parts and all(x.dim() < 2 for x in module.parameters())


def _users_hooks(module: nn.Module) -> list[Any]:
    """List hooks of the user's that may change what a module, or its parts, take and give."""
    every = (x for one in module.modules() for kind in KINDS for x in getattr(one, kind).values())
    return [hook for hook in every if is_users(hook) and not isinstance(hook, Uncopied)]


def is_cache(x: Any) -> bool:
    """Return whether something is a cache of transformers."""
    return any(kind.__name__ == "Cache" for kind in type(x).__mro__)
