"""Finds the output projection of attention modules while they run, and the lengths ||W_O v_j||."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn, Protocol
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor, nn

from gattn.errors import CaptureError
from gattn.models.stream.linear_maps import (
    LinearMap,
    is_unaltered,
    linear_map,
    linear_modules,
    runs_its_weight,
    state_of,
    takes,
)
from gattn.models.watch.contexts import takes_part
from gattn.models.watch.hooks import hooks_on

if TYPE_CHECKING:
    from gattn.models.read.reading import Reading
    from gattn.models.read.seen_call import SeenCall
    from gattn.models.read.track.tracking import Tracker
    from gattn.models.watch.contexts import Context


_INSTEAD = 'Pass contributions="value" for the lengths ||A_ij v_j|| before any projection.'


class Layer(Protocol):
    """Takes the norms of a sequence's keys."""

    def add_norms(self, norms: Tensor, first: int) -> None:
        """Take (heads, keys), from the position `first` on."""


@dataclass(eq=False)
class _Expected:
    """In one call of a model, the attention that waits for its projection, and the last projected.

    `rows` is the waiting attention's output as it was computed, heads side by side: if it is
    changed in place before the projection, it no longer matches.
    """

    waiting: list[tuple[SeenCall, Reading, Sequence[Layer]]] = field(default_factory=list)
    parts: list[Tensor] = field(default_factory=list)
    rows: Tensor | None = None
    running: nn.Module | None = None
    done: tuple[str, Tensor] | None = None
    is_probing: bool = False

    def add(self, call: SeenCall, reading: Reading, layers: Sequence[Layer]) -> None:
        """Expect one more."""
        if not any(known is call for known, _, _ in self.waiting):
            self.parts.append(call.output.detach())
            self.rows = torch.cat(self.parts, dim=1).flatten(2).flatten(0, 1)
        self.waiting.append((call, reading, layers))

    def forget(self) -> None:
        """Expect nothing more."""
        self.waiting, self.parts, self.rows, self.running, self.done = [], [], None, None, None


@dataclass(frozen=True, eq=False)
class _Known:
    """A known projection: W_O^T W_O of each head, and its map if that is not its own weight."""

    state: object
    product: Tensor
    probed: LinearMap | None


class Projections:
    r"""The output projections of a model's attention, verified each time they run.

    The projection W_O is the outermost module that takes just a call's unchanged output, heads side
    by side: a linear module, or a wrapper around one, such as an adapter. Then
    :math:`\|W_O^h v_j\| = \sqrt{v_j^\top (W_O^{h\top} W_O^h) v_j}`, and no vectors of the model's
    dimension are stored per head.

    References
    ----------
    Kobayashi et al. (2020), Attention is not only a weight.
    """

    def __init__(self, owner: Context) -> None:
        self._owner = ref(owner)  # Which holds it: what was recorded would outlive its traces.
        self._linear: tuple[type[nn.Module], ...] = ()
        # Of each thread, and of calls within calls.
        self._of_call: WeakKeyDictionary[Tracker, _Expected] = WeakKeyDictionary()
        # Of all threads: hooks have nothing to do where these are empty.
        self._waiting: set[_Expected] = set()
        self._running: list[nn.Module] = []
        self._known: dict[int, _Known] = {}

    @contextmanager
    def open(self, model: nn.Module, is_wanted: bool) -> Iterator[None]:
        """Watch a model's modules."""
        if not is_wanted:
            yield
            return
        self._linear = linear_modules()
        try:
            with hooks_on(model.modules(), self._enter, self._leave):
                yield
        finally:
            self._of_call.clear()
            self._waiting.clear()
            self._running.clear()
            self._known.clear()

    def forget(self, tracker: Tracker) -> None:
        """Expect nothing more in a call."""
        now = self._of_call.pop(tracker, None)
        if now is not None:
            self._forget(now)

    def _forget(self, now: _Expected) -> None:
        self._waiting.discard(now)
        if now.running is not None:
            self._running.remove(now.running)
        now.forget()

    def expect(
        self, tracker: Tracker, call: SeenCall, reading: Reading, layers: Sequence[Layer]
    ) -> None:
        """Expect the output of a call's attention to be projected next."""
        now = self._of_call.setdefault(tracker, _Expected())
        now.add(call, reading, layers)
        self._waiting.add(now)

    def _present(self) -> _Expected | None:
        """Find what the present call expects, if anything."""
        tracker = None if (owner := self._owner()) is None else takes_part(owner)
        now = None if tracker is None else self._of_call.get(tracker)
        return None if now is None or now.is_probing or not (now.waiting or now.done) else now

    # While a hook is being removed, torch may call it in another thread without named arguments.

    def _enter(self, module: nn.Module, args: tuple[Any, ...], *named: Mapping[str, Any]) -> None:
        is_linear = isinstance(module, self._linear)
        if not self._waiting and not (is_linear and self._of_call):
            return
        now = self._present()
        if now is None or now.running is not None:
            return
        given = tensors_of(args, *named)
        if not given:
            return
        if not now.waiting:
            self._refuse_another(now, module, given[0])
        elif now.rows is not None and takes(given[0], now.rows):
            if len(given) == 1:
                now.running = module
                self._running.append(module)
        elif is_linear:
            self._refuse(now, f"{type(module).__name__} with another input, such as a gate's")

    def _refuse_another(self, now: _Expected, module: nn.Module, given: Tensor) -> None:
        """Refuse what is projected twice: by an adapter beside the projection, say."""
        assert now.done is not None
        name, rows = now.done
        if isinstance(module, self._linear) and takes(given, rows):
            self._forget(now)
            raise CaptureError(
                f"The output of {name} is projected twice, the second time by a "
                f"{type(module).__name__}, so the contributions are not known. {_INSTEAD}"
            )

    def _leave(self, module: nn.Module, args: tuple[Any, ...], *more: Any) -> None:
        if module not in self._running:
            return
        now = self._present()
        if now is None or now.running is not module:
            return
        self._running.remove(module)
        now.running = None
        rows, found = now.rows, None
        assert rows is not None
        *named, result = more
        given = tensors_of(args, *named)
        with torch.no_grad():
            if isinstance(result, Tensor) and given and takes(given[0], rows):
                heads = now.waiting[0][1].heads
                found = self._product(now, module, rows, result.reshape(len(rows), -1), heads)
            if found is None:
                self._refuse(now, f"a {type(module).__name__}, which is not a linear map")
            waiting = now.waiting
            self._forget(now)
            now.done = waiting[0][0].name, rows
            for _, reading, layers in waiting:
                for layer, norms in zip(layers, _lengths(reading, found), strict=True):
                    layer.add_norms(norms, reading.keys.first)

    def _product(
        self, now: _Expected, module: nn.Module, given: Tensor, output: Tensor, heads: int
    ) -> Tensor | None:
        """Return W_O^T W_O of each head, (heads, value dim, value dim), of what has just run."""
        known, state = self._known.get(id(module)), state_of(module)
        now.is_probing = True
        try:
            if known is not None and known.state == state and known.product.shape[0] == heads:
                if known.probed is None:
                    holds = runs_its_weight(module)
                else:
                    holds = known.probed.gives(given, output)
                if holds:
                    return known.product if is_unaltered(module, given, output) else None
            found = linear_map(module, given, output)
        finally:
            now.is_probing = False
        if found is None:
            return None
        probed = None if runs_its_weight(module) else found
        self._known[id(module)] = _Known(state, found.products(heads), probed)
        return self._known[id(module)].product

    def check(self, tracker: Tracker, attention: nn.Module | None = None) -> None:
        """Refuse calls whose output was not projected before another module attends."""
        now = self._of_call.get(tracker)
        if now is not None and now.waiting and now.waiting[0][0].module is not attention:
            self._refuse(now, "not a linear module; there may be a gate or norm in between")
        if attention is None:
            self.forget(tracker)

    def _refuse(self, now: _Expected, what: str) -> NoReturn:
        name = now.waiting[0][0].name
        self._forget(now)
        raise CaptureError(
            f"The output of {name} is not projected unchanged: it is followed by {what}, so the "
            f"contributions are not known. {_INSTEAD}"
        )


def tensors_of(args: tuple[Any, ...], *named: Mapping[str, Any]) -> list[Tensor]:
    """List the floating-point tensors among a call's arguments."""
    some = (*args, *(x for kwargs in named for x in kwargs.values()))
    return [x for x in some if isinstance(x, Tensor) and x.is_floating_point()]


def value_norms(reading: Reading, projection: Tensor | None = None) -> Tensor:
    """Return the lengths of the values, or of W_O v_j: (elements, heads, keys).

    `projection` is W_O, (channels, heads * value dim).
    """
    assert reading.attention.value is not None
    if projection is not None:
        bias = projection.new_zeros(len(projection))
        return _lengths(reading, LinearMap(projection.detach(), bias).products(reading.heads))
    norms: Tensor = torch.linalg.vector_norm(reading.attention.value, dim=-1)
    return norms


def _lengths(reading: Reading, products: Tensor) -> Tensor:
    """Return the lengths of W_O v_j, from W_O^T W_O of each head."""
    value = reading.attention.value
    assert value is not None
    squares = ((value @ products.to(value.dtype)) * value).sum(-1)
    return squares.clamp_min(0).sqrt()
