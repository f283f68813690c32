"""Finds the output projection of attention modules while they run, and what it makes of values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn, Protocol
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from gattn.errors import CaptureError
from gattn.normalizers.base import widened

if TYPE_CHECKING:
    from gattn.models.reading import Reading
    from gattn.models.routing import Context, RoutedCall
    from gattn.models.tracking import Tracker


_PROVED, _TOLERANCE = 4, 1e-4
_INSTEAD = 'Pass contributions="value" for the lengths ||A_ij v_j|| before any projection.'


class Layer(Protocol):
    """What takes the norms of a sequence's keys."""

    def add_norms(self, norms: Tensor, first: int) -> None:
        """Take (heads, keys), from the position `first` on."""


@dataclass(eq=False)
class _Expected:
    """Of one call of a model: what waits for its projection, and what was projected last."""

    waiting: list[tuple[RoutedCall, Reading, Sequence[Layer]]] = field(default_factory=list)
    running: nn.Module | None = None
    done: tuple[str, Tensor] | None = None
    is_probing: bool = False

    @property
    def rows(self) -> Tensor:
        """The output of the attention that waits, heads side by side."""
        calls = {id(call): call for call, _, _ in self.waiting}.values()
        return torch.cat([call.output for call in calls], dim=1).flatten(2).flatten(0, 1)

    def forget(self) -> None:
        """Expect nothing more."""
        self.waiting, self.running, self.done = [], None, None


class Projections:
    r"""The output projections of a model's attention, verified each time they run.

    The projection W_O is the outermost module that takes a call's output, heads side by side, as it
    is, and nothing else: a linear module, or what is wrapped around one, such as an adapter. Then
    :math:`\|W_O^h v_j\| = \sqrt{v_j^\top (W_O^{h\top} W_O^h) v_j}`, and nothing of the size of the
    model is stored for a head.

    References
    ----------
    Kobayashi et al. (2020), Attention is not only a weight.
    """

    def __init__(self, owner: Context) -> None:
        self._owner = owner
        self._linear: tuple[type[nn.Module], ...] = ()
        # Of each thread, and of calls within calls.
        self._of_call: WeakKeyDictionary[Tracker, _Expected] = WeakKeyDictionary()
        self._maps: dict[int, LinearMap] = {}
        self._products: dict[int, Tensor] = {}

    @contextmanager
    def open(self, model: nn.Module, is_wanted: bool) -> Iterator[None]:
        """Watch a model's modules."""
        if not is_wanted:
            yield
            return
        self._linear = linear_modules()
        handles: list[Any] = []
        for module in model.modules():
            handles.append(module.register_forward_pre_hook(self._enter, with_kwargs=True))
            handles.append(module.register_forward_hook(self._leave, with_kwargs=True))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
            self._of_call.clear()
            self._maps.clear()
            self._products.clear()

    def forget(self, tracker: Tracker) -> None:
        """Expect nothing more in a call."""
        self._of_call.pop(tracker, None)

    def expect(
        self, tracker: Tracker, call: RoutedCall, reading: Reading, layers: Sequence[Layer]
    ) -> None:
        """Expect the output of a call's attention to be projected next."""
        self._of_call.setdefault(tracker, _Expected()).waiting.append((call, reading, layers))

    def _present(self) -> _Expected | None:
        """Find what the present call expects, if anything."""
        from gattn.models.routing import takes_part, tracker_of

        if not self._of_call or not takes_part(self._owner):
            return None
        now = self._of_call.get(tracker_of(self._owner))
        return None if now is None or now.is_probing or not (now.waiting or now.done) else now

    # While a hook goes, torch may call it in another thread without the arguments by name.

    def _enter(self, module: nn.Module, args: tuple[Any, ...], *named: Mapping[str, Any]) -> None:
        now = self._present()
        if now is None or now.running is not None:
            return
        given = tensors_of(args, *named)
        if not given:
            return
        if not now.waiting:
            self._refuse_another(now, module, given[0])
        elif takes(given[0], now.rows):
            if len(given) == 1:
                now.running = module
        elif isinstance(module, self._linear):
            self._refuse(now, f"{type(module).__name__} with other input, that of a gate, say")

    def _refuse_another(self, now: _Expected, module: nn.Module, given: Tensor) -> None:
        """Refuse what is projected twice: by an adapter beside the projection, say."""
        assert now.done is not None
        name, rows = now.done
        if isinstance(module, self._linear) and takes(given, rows):
            now.forget()
            raise CaptureError(
                f"The output of {name} is projected twice, once more by a {type(module).__name__}, "
                f"so the contributions are not known. {_INSTEAD}"
            )

    def _leave(self, module: nn.Module, args: tuple[Any, ...], *more: Any) -> None:
        now = self._present()
        if now is None or now.running is not module:
            return
        now.running = None
        rows, found = now.rows, None
        *named, result = more
        given = tensors_of(args, *named)
        with torch.no_grad():
            if isinstance(result, Tensor) and given and takes(given[0], rows):
                found = self._map(now, module, rows, result.reshape(len(rows), -1))
            if found is None:
                self._refuse(now, f"a {type(module).__name__}, which is no linear map")
            waiting, now.waiting = now.waiting, []
            now.done = waiting[0][0].name, rows
            for _, reading, layers in waiting:
                value = reading.attention.value
                assert value is not None
                product = self._product(module, found, reading.heads).to(value.dtype)
                squares = ((value @ product) * value).sum(-1)
                for layer, norms in zip(layers, squares.clamp_min(0).sqrt(), strict=True):
                    layer.add_norms(norms, reading.keys.first)

    def _map(
        self, now: _Expected, module: nn.Module, given: Tensor, output: Tensor
    ) -> LinearMap | None:
        known = self._maps.get(id(module))
        if known is not None and known.gives(given, output):
            return known
        self._products.pop(id(module), None)
        now.is_probing = True
        try:
            found = linear_map(module, given, output)
        finally:
            now.is_probing = False
        if found is not None:
            self._maps[id(module)] = found
        return found

    def _product(self, module: nn.Module, found: LinearMap, heads: int) -> Tensor:
        """Give W_O^T W_O of each head: (heads, value dim, value dim)."""
        if id(module) not in self._products:
            parts = found.heads(heads)
            self._products[id(module)] = parts.transpose(1, 2) @ parts
        return self._products[id(module)]

    def check(self, tracker: Tracker, attention: nn.Module | None = None) -> None:
        """Refuse calls whose output was not projected, but by the module of further attention.

        Raises
        ------
        CaptureError
            Where there are any.
        """
        now = self._of_call.get(tracker)
        if now is not None and now.waiting and now.waiting[0][0].module is not attention:
            self._refuse(now, "no linear module: a gate or norm stands between, say")

    def _refuse(self, now: _Expected, what: str) -> NoReturn:
        name = now.waiting[0][0].name
        now.forget()
        raise CaptureError(
            f"The output of {name} is not projected as it is: what follows is {what}, so the "
            f"contributions are not known. {_INSTEAD}"
        )


def linear_modules() -> tuple[type[nn.Module], ...]:
    """Give the classes of linear modules."""
    from transformers.pytorch_utils import Conv1D

    return nn.Linear, Conv1D


@dataclass(frozen=True, eq=False)
class LinearMap:
    """What a module makes of its rows: a weight (outputs, inputs), and a bias (outputs,)."""

    weight: Tensor
    bias: Tensor

    def gives(self, given: Tensor, output: Tensor) -> bool:
        """Say whether it makes the outputs (rows, outputs) of some rows (rows, inputs)."""
        if len(self.weight) != output.shape[-1] or self.weight.shape[1] != given.shape[-1]:
            return False
        rows = torch.linspace(0, len(given) - 1, min(_PROVED, len(given))).long()
        wanted, numbers = widened(output[rows.to(output.device)]), given[rows.to(given.device)]
        found = numbers.to(self.weight) @ self.weight.T + self.bias
        limit = max(_TOLERANCE, 2 * torch.finfo(output.dtype).eps)
        size = wanted.abs().amax().clamp_min(torch.finfo(wanted.dtype).tiny)
        return bool(((found - wanted).abs() <= limit * size).all())

    def heads(self, count: int) -> Tensor:
        """Give the part of it that takes each head: (heads, outputs, value dim)."""
        parts: Tensor = self.weight.unflatten(1, (count, -1)).transpose(0, 1)
        return parts


def linear_map(module: nn.Module, given: Tensor, output: Tensor) -> LinearMap | None:
    """Find the linear map that a module is, or None where it is not linear.

    That is the module's own weight where this gives some rows of its output, and else what the
    module makes of each unit vector, where that does: adapters, quantized weights.

    Parameters
    ----------
    module : nn.Module
        The module.
    given, output : Tensor (rows, ...)
        What it was given when it ran, and what it gave.
    """
    with torch.no_grad():
        for found in (_own_map(module), _probed_map(module, given)):
            if found is not None and found.gives(given, output):
                return found
    return None


def _own_map(module: nn.Module) -> LinearMap | None:
    weight = getattr(module, "weight", None)
    if not isinstance(module, linear_modules()) or not isinstance(weight, Tensor):
        return None
    if weight.dim() != 2 or weight.is_meta or not weight.is_floating_point():
        return None
    weight = widened(weight.detach())
    weight = weight if isinstance(module, nn.Linear) else weight.T
    bias = getattr(module, "bias", None)
    return LinearMap(weight, weight.new_zeros(len(weight)) if bias is None else bias.to(weight))


def _probed_map(module: nn.Module, given: Tensor) -> LinearMap | None:
    width = given.shape[-1]
    units = torch.eye(width, dtype=given.dtype, device=given.device)
    try:
        answers = module.forward(torch.cat([units.new_zeros(1, width), units])[None])
    except (TypeError, ValueError, RuntimeError, IndexError):
        return None
    if not isinstance(answers, Tensor) or answers.shape[:2] != (1, width + 1):
        return None
    bias, *_ = answers = widened(answers[0])
    return LinearMap((answers[1:] - bias).T, bias)


def tensors_of(args: tuple[Any, ...], *named: Mapping[str, Any]) -> list[Tensor]:
    """List the tensors of numbers among a call's arguments."""
    some = (*args, *(x for kwargs in named for x in kwargs.values()))
    return [x for x in some if isinstance(x, Tensor) and x.is_floating_point()]


def takes(given: Tensor, rows: Tensor) -> bool:
    """Say whether a module was given these rows (tokens, width), in whatever shape."""
    if given.shape[-1] != rows.shape[-1] or given.numel() != rows.numel():
        return False
    return torch.equal(given.reshape(rows.shape), rows)


def value_norms(reading: Reading) -> Tensor:
    """Give the lengths of the values: (elements, heads, keys)."""
    assert reading.attention.value is not None
    norms: Tensor = torch.linalg.vector_norm(reading.attention.value, dim=-1)
    return norms
