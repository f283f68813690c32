"""One run of a copy of a layer, in which calls give what they gave before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeAlias

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from gattn.models.stream.again.events import Event, Key, own
from gattn.models.stream.layers import first_of, with_first

_HELD = {"linear", "matmul", "__matmul__", "__rmatmul__", "mm", "bmm", "mv", "einsum", "tensordot"}
_HELD |= {"bilinear", "conv1d", "conv2d", "layer_norm", "rms_norm", "group_norm", "batch_norm"}
_HELD |= {"instance_norm", "normalize"}
"""Functions that are held like modules: none of them only adds to a stream."""

Spot: TypeAlias = Key | None
"""A call, for what it is given, or None for what the layer gives."""


class HeldRun(TorchFunctionMode):
    """One run of a copy, while it is open.

    Modules, products and norms are its calls. Those without modules in them are noted in `results`,
    to be held in the next run.

    Parameters
    ----------
    parts : sequence of Module
        All modules within the copy.
    wholes : collection of Module
        Those that count as modules without modules in them, such as a norm between transposes.
    stream : Tensor (..., dim)
        What the layer is given.
    real : Tensor (tokens,)
        The slots of its tokens.
    held : mapping
        What calls give, instead of running.
    put : mapping
        The rows of tokens that calls give, in place of their own.
    """

    def __init__(
        self,
        parts: Sequence[nn.Module],
        wholes: Collection[nn.Module],
        stream: Tensor,
        real: Tensor,
        held: Mapping[Key, Any],
        put: Mapping[Key, Tensor],
    ) -> None:
        super().__init__()
        self._parts, self._wholes = parts, wholes
        self._stream, self._real = stream, real
        self._held, self._put = held, put
        self._counts: Counter[Any] = Counter()
        self._is_within = False
        self.seen: dict[Spot, Tensor] = {}
        self.results: dict[Key, Any] = {}
        self.events: list[Event] = []

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Watch the calls; no module refers to the run once it is over."""
        before = [(vars(one), vars(one).get("forward")) for one in self._parts]
        for one in self._parts:
            vars(one)["forward"] = partial(self._of_module, one, one.forward)
        try:
            with self:
                yield
        finally:
            for attributes, forward in before:
                del attributes["forward"]
                if forward is not None:
                    attributes["forward"] = forward

    def _of_module(
        self, module: nn.Module, forward: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        if self._is_within:
            return forward(*args, **kwargs)
        is_leaf = not any(True for _ in module.children())
        is_whole = module in self._wholes and len(args) + len(kwargs) == 1
        return self._call(module, forward, args, kwargs, is_leaf or is_whole)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Take products and norms that are no modules for calls, too."""
        name, named = getattr(func, "__name__", ""), kwargs or {}
        if self._is_within or name not in _HELD:
            return func(*args, **named)
        return self._call(name, func, args, named, is_leaf=True)

    def _call(
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
        if key in self._held:
            result = own(self._held[key])
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
        # What passes on what it is given may give the stream itself.
        if key not in self._held and is_leaf and (event is None or not event.passes):
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
        self._is_within = True
        try:
            yield
        finally:
            self._is_within = False


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
