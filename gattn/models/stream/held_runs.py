"""One run of a copy of a layer, in which calls give what they gave before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from gattn.errors import CaptureError
from gattn.models.stream.events import Event, Key, own
from gattn.models.stream.layers import first_of

_HELD = {"linear", "matmul", "__matmul__", "__rmatmul__", "mm", "bmm", "mv", "einsum", "tensordot"}
_HELD |= {"bilinear", "conv1d", "conv2d", "layer_norm", "rms_norm", "group_norm", "batch_norm"}
_HELD |= {"instance_norm", "normalize"}
"""Functions that are held like modules: none of them only adds to a stream."""


Spot: TypeAlias = Key | None
"""A call, for what it is given, or None for what the layer gives."""


class HeldRun(TorchFunctionMode):
    """One run of a copy; `held` is what calls give, of which rows may be `put` in their place."""

    def __init__(
        self, stream: Tensor, real: Tensor, put: Mapping[Key, Tensor], held: Mapping[Key, Any]
    ) -> None:
        super().__init__()
        self._stream, self._real, self._put, self._old = stream, real, put, held
        self._counts: Counter[Any] = Counter()
        self.is_within = False
        self.seen: dict[Spot, Tensor] = {}
        self.results: dict[Key, Any] = {}
        self.events: list[Event] = []

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Take products and norms that are no modules for calls, too."""
        name, named = getattr(func, "__name__", ""), kwargs or {}
        if self.is_within or name not in _HELD:
            return func(*args, **named)
        return self.call(name, func, args, named, is_leaf=True)

    def call(
        self,
        what: Any,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        is_leaf: bool,
    ) -> Any:
        """Run a call, or give what it gave."""
        key = what, self._counts[what]
        self._counts[what] += 1
        given = first_of((*args, *kwargs.values()))
        if given is not None and is_of(given, self._stream):
            self.seen[key] = rows_of(given, self._stream)[self._real].clone()
        if key in self._old:
            result = own(self._old[key])
        elif is_leaf:
            with self._within():
                result = function(*args, **kwargs)
        else:
            result = function(*args, **kwargs)
        output = first_of(result)
        if output is not None and key in self._put:
            output = with_rows(output, self._stream, self._real, self._put[key])
            result = with_first(result, output)
        event = None
        if output is not None and is_of(output, self._stream):
            event = self._event(key, function, args, kwargs, is_leaf, output)
            self.events.append(event)
        # What gives what it is given, as dropout does, may give the stream itself.
        if key in self._old or (is_leaf and (event is None or event.changes)):
            self.results[key] = own(result)
        return result

    def _event(
        self,
        key: Key,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        is_leaf: bool,
        output: Tensor,
    ) -> Event:
        rows = rows_of(output, self._stream)[self._real].clone()
        given = self.seen.get(key, rows[:, :0])
        is_module = isinstance(key[0], nn.Module)
        is_alone = is_module and len(args) + len(kwargs) == 1
        apply: Callable[[Tensor], Any] | None = None
        if is_leaf and (is_alone or not is_module):
            apply = lambda x: function(x, *args[1:], **kwargs)  # noqa: E731
        return Event(key, given, rows, is_alone, apply)

    @contextmanager
    def _within(self) -> Iterator[None]:
        self.is_within = True
        try:
            yield
        finally:
            self.is_within = False


def is_of(numbers: Tensor, stream: Tensor) -> bool:
    """Return whether a tensor has a stream's tokens and features."""
    return numbers.shape[-1:] == stream.shape[-1:] and numbers.numel() == stream.numel()


def rows_of(numbers: Tensor, stream: Tensor) -> Tensor:
    """Return numbers in a stream's width as rows: (slots, dim)."""
    return numbers.reshape(-1, stream.shape[-1])


def with_rows(numbers: Tensor, stream: Tensor, real: Tensor, rows: Tensor) -> Tensor:
    """Put rows of real tokens in place of others."""
    whole = rows_of(numbers, stream).index_copy(0, real, rows.to(numbers.dtype))
    return whole.reshape(numbers.shape)


def with_first(values: Any, first: Tensor) -> Any:
    """Replace the first floating-point tensor, as `first_of` finds it."""
    if isinstance(values, Tensor):
        return first
    if not isinstance(values, (tuple, list)):
        raise CaptureError(f"An attention module gave a {type(values).__name__}.")
    places = [n for n, x in enumerate(values) if isinstance(x, Tensor) and x.is_floating_point()]
    found = list(values)
    found[places[0]] = first
    return tuple(found)
