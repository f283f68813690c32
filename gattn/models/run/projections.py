"""Finds the output projection of attention modules while they run, and what it makes of values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from gattn.errors import CaptureError
from gattn.models.watch.hooks import Hook
from gattn.normalizers.base import widened

if TYPE_CHECKING:
    from gattn.models.read.reading import Reading
    from gattn.models.read.seen_call import SeenCall
    from gattn.models.read.tracking import Tracker
    from gattn.models.watch.contexts import Context


_PROVED, _TOLERANCE, _ROUNDING = 4, 1e-4, 1e-6
_INSTEAD = 'Pass contributions="value" for the lengths ||A_ij v_j|| before any projection.'


class Layer(Protocol):
    """What takes the norms of a sequence's keys."""

    def add_norms(self, norms: Tensor, first: int) -> None:
        """Take (heads, keys), from the position `first` on."""


@dataclass(eq=False)
class _Expected:
    """Of one call of a model: what waits for its projection, and what was projected last.

    `rows` is the output of the attention that waits, heads side by side, as it was computed: what
    is changed in place before its projection is not projected as it is.
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
    """Of a projection: W_O^T W_O of each head, and its map where no weight tells it."""

    state: object
    product: Tensor
    probed: LinearMap | None


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
        handles: list[Any] = []
        for module in model.modules():
            enter, leave = Hook(module, self._enter), Hook(module, self._leave)
            handles.append(module.register_forward_pre_hook(enter, with_kwargs=True))
            handles.append(module.register_forward_hook(leave, with_kwargs=True))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
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
        from gattn.models.watch.contexts import takes_part

        tracker = takes_part(self._owner)
        now = None if tracker is None else self._of_call.get(tracker)
        return None if now is None or now.is_probing or not (now.waiting or now.done) else now

    # While a hook goes, torch may call it in another thread without the arguments by name.

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
            self._refuse(now, f"{type(module).__name__} with other input, that of a gate, say")

    def _refuse_another(self, now: _Expected, module: nn.Module, given: Tensor) -> None:
        """Refuse what is projected twice: by an adapter beside the projection, say."""
        assert now.done is not None
        name, rows = now.done
        if isinstance(module, self._linear) and takes(given, rows):
            self._forget(now)
            raise CaptureError(
                f"The output of {name} is projected twice, once more by a {type(module).__name__}, "
                f"so the contributions are not known. {_INSTEAD}"
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
                self._refuse(now, f"a {type(module).__name__}, which is no linear map")
            waiting = now.waiting
            self._forget(now)
            now.done = waiting[0][0].name, rows
            for _, reading, layers in waiting:
                value = reading.attention.value
                assert value is not None
                squares = ((value @ found.to(value.dtype)) * value).sum(-1)
                for layer, norms in zip(layers, squares.clamp_min(0).sqrt(), strict=True):
                    layer.add_norms(norms, reading.keys.first)

    def _product(
        self, now: _Expected, module: nn.Module, given: Tensor, output: Tensor, heads: int
    ) -> Tensor | None:
        """Give W_O^T W_O of each head, (heads, value dim, value dim), of what ran just now."""
        known, state = self._known.get(id(module)), _state(module)
        now.is_probing = True
        try:
            if known is not None and known.state == state and known.product.shape[0] == heads:
                if known.probed is None and _runs_its_weight(module):
                    return known.product if _is_unaltered(module, given, output) else None
                if known.probed is not None and known.probed.gives(given, output):
                    return known.product if _is_unaltered(module, given, output) else None
            found = linear_map(module, given, output)
        finally:
            now.is_probing = False
        if found is None:
            return None
        probed = None if _runs_its_weight(module) else found
        self._known[id(module)] = _Known(state, found.products(heads), probed)
        return self._known[id(module)].product

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
        if attention is None:
            self.forget(tracker)

    def _refuse(self, now: _Expected, what: str) -> NoReturn:
        name = now.waiting[0][0].name
        self._forget(now)
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
        weight = widened(self.weight)
        found = numbers.to(weight) @ weight.T + self.bias.to(weight)
        limit = max(_TOLERANCE, 2 * torch.finfo(output.dtype).eps)
        size = wanted.abs().amax().clamp_min(torch.finfo(wanted.dtype).tiny)
        return bool(((found - wanted).abs() <= limit * size).all())

    def heads(self, count: int) -> Tensor:
        """Give the part of it that takes each head: (heads, outputs, value dim)."""
        parts: Tensor = widened(self.weight).unflatten(1, (count, -1)).transpose(0, 1)
        return parts

    def products(self, count: int) -> Tensor:
        """Give W^T W of the part of each head: (heads, value dim, value dim)."""
        parts = (widened(part) for part in self.weight.chunk(count, dim=1))
        return torch.stack([part.T @ part for part in parts])


def linear_map(module: nn.Module, given: Tensor, output: Tensor) -> LinearMap | None:
    """Find the linear map that a module is, or None where it is not linear.

    That is the module's own weight where nothing else runs, and else what the module makes of each
    unit vector: adapters, quantized weights. Either must give some rows of its output.

    Parameters
    ----------
    module : nn.Module
        The module.
    given, output : Tensor (rows, ...)
        What it was given when it ran, and what it gave.
    """
    with torch.no_grad():
        found = _own_map(module) if _runs_its_weight(module) else _probed_map(module, given)
        if found is None or not found.gives(given, output):
            return None
        return found if _is_unaltered(module, given, output) else None


def _runs_its_weight(module: nn.Module) -> bool:
    """Say whether a module gives its weight times its input, and does nothing else."""
    plain = [kind.forward for kind in linear_modules()]
    if type(module).forward not in plain or "forward" in vars(module):
        return False
    weight: Any = module.weight
    is_plain = type(weight) in (Tensor, nn.Parameter) and weight.is_floating_point()
    return is_plain and weight.dim() == 2 and not weight.is_meta


def _own_map(module: nn.Module) -> LinearMap:
    weight, bias = cast("Tensor", module.weight), module.bias
    weight = weight.detach() if isinstance(module, nn.Linear) else weight.detach().T
    bias = bias.detach() if isinstance(bias, Tensor) else weight.new_zeros(len(weight))
    return LinearMap(weight, bias)


def _is_unaltered(module: nn.Module, given: Tensor, output: Tensor) -> bool:
    """Say whether a module itself gave an output, and no hook on it changed that since."""
    every = (*module._forward_hooks.values(), *torch_module._global_forward_hooks.values())
    if all(isinstance(hook, Hook) for hook in every):
        return True
    alone = _forward(module, given)
    if alone is None or alone.shape != output.shape:
        return False
    wanted, found = widened(output), widened(alone)
    limit = max(_ROUNDING, torch.finfo(output.dtype).eps / 8)
    return bool(torch.linalg.norm(found - wanted) <= limit * torch.linalg.norm(wanted))


def _state(module: nn.Module) -> list[tuple[int, int]]:
    """Tell a module's numbers from what they were before."""
    return [
        (
            x.data_ptr() if type(x) in (Tensor, nn.Parameter) else 0,
            0 if x.is_inference() else x._version,
        )
        for x in (*module.parameters(), *module.buffers())
    ]


def _forward(module: nn.Module, rows: Tensor) -> Tensor | None:
    """Give what a module makes of rows, or None where it takes none."""
    try:
        answers = module.forward(rows[None])
    except (TypeError, ValueError, RuntimeError, IndexError):
        return None
    is_alike = isinstance(answers, Tensor) and answers.shape[:2] == (1, len(rows))
    return answers[0] if is_alike else None


def _probed_map(module: nn.Module, given: Tensor) -> LinearMap | None:
    width = given.shape[-1]
    units = torch.eye(width, dtype=given.dtype, device=given.device)
    answers = _forward(module, torch.cat([units.new_zeros(1, width), units]))
    if answers is None:
        return None
    bias, *_ = answers = widened(answers)
    return LinearMap((answers[1:] - bias).T, bias)


def tensors_of(args: tuple[Any, ...], *named: Mapping[str, Any]) -> list[Tensor]:
    """List the tensors of numbers among a call's arguments."""
    some = (*args, *(x for kwargs in named for x in kwargs.values()))
    return [x for x in some if isinstance(x, Tensor) and x.is_floating_point()]


def takes(given: Tensor, rows: Tensor) -> bool:
    """Say whether a module was given these rows (tokens, width), in whatever shape."""
    if given.shape[-1] != rows.shape[-1] or given.numel() != rows.numel():
        return False
    given = given.reshape(rows.shape)
    # Most differ in the first row.
    return torch.equal(given[:1], rows[:1]) and (len(rows) == 1 or torch.equal(given, rows))


def value_norms(reading: Reading) -> Tensor:
    """Give the lengths of the values: (elements, heads, keys)."""
    assert reading.attention.value is not None
    norms: Tensor = torch.linalg.vector_norm(reading.attention.value, dim=-1)
    return norms
