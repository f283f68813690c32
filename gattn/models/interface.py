"""Watches the attention of live transformers models.

Every attention module of a routed model asks ``AttentionInterface.get_interface`` which function
to call. While a watch is open, what it answers is wrapped: the function that the user's model
chose still computes the output, with its own arguments and its own mask, and the watcher is shown
the call. Nothing of the model or of its configuration is touched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import wraps
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class RoutedCall:
    """One call of an attention function.

    `query` is (batch, heads, queries, dim), `key` and `value` (batch, key heads, keys, dim or
    value dim), `output` (batch, queries, heads, value dim). `mask` is what the implementation
    takes: None, booleans or an additive term that broadcast to (batch, heads, queries, keys).
    """

    name: str
    module: nn.Module
    implementation: str
    query: Tensor
    key: Tensor
    value: Tensor
    mask: Any
    options: dict[str, Any]
    output: Tensor


Watcher: TypeAlias = Callable[[RoutedCall], None]

_watches: ContextVar[tuple[tuple[dict[int, str], Watcher], ...]] = ContextVar("watches", default=())
_lock = Lock()
_open = 0
_original: Callable[..., Any] | None = None


@contextmanager
def watching(model: PreTrainedModel, watcher: Watcher) -> Iterator[None]:
    """Show `watcher` each call of the model's attention within this context.

    Watches nest, and see only calls of their own thread or task.
    """
    names = {id(module): name for name, module in model.named_modules()}
    token = _watches.set((*_watches.get(), (names, watcher)))
    try:
        _install()
        try:
            yield
        finally:
            _uninstall()
    finally:
        _watches.reset(token)


def _install() -> None:
    from transformers import AttentionInterface

    global _open, _original
    with _lock:
        if _open == 0:
            _original = AttentionInterface.get_interface
            AttentionInterface.get_interface = _watched(_original)  # type: ignore[method-assign]
        _open += 1


def _uninstall() -> None:
    from transformers import AttentionInterface

    global _open
    with _lock:
        _open -= 1
        if _open == 0:
            AttentionInterface.get_interface = _original  # type: ignore[method-assign, assignment]


def _watched(get_interface: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(get_interface)
    def answer(interface: Any, implementation: str, default: Callable[..., Any]) -> Any:
        function = get_interface(interface, implementation, default)
        return _shown(function, implementation) if _watches.get() else function

    return answer


def _shown(function: Callable[..., Any], implementation: str) -> Callable[..., Any]:
    @wraps(function)
    def call(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Any = None,
        **options: Any,
    ) -> Any:
        result = function(module, query, key, value, attention_mask, **options)
        for names, watcher in _watches.get():
            if id(module) in names:
                name = names[id(module)]
                mask = attention_mask
                seen = RoutedCall(
                    name, module, implementation, query, key, value, mask, options, result[0]
                )
                # What the watcher computes is its own affair, not a part of the model.
                with torch.autocast(query.device.type, enabled=False):
                    watcher(seen)
        return result

    return call
