"""The lengths of the messages along edges, where a layer passes messages: ||A_ij v_ij||."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor, nn

from gattn.errors import CaptureError
from gattn.graph.token_graph import TokenGraph
from gattn.models.doors.graphs.landed import scales
from gattn.models.doors.graphs.segments import scaled
from gattn.models.read.on_graphs.seen_edges import SeenEdges
from gattn.models.watch.contexts import takes_part
from gattn.models.watch.hooks import Uncopied
from gattn.models.watch.inside import inside
from gattn.normalizers.base import widened

if TYPE_CHECKING:
    from gattn.models.read.track.tracking import Tracker
    from gattn.models.watch.contexts import Context


_NOT_WEIGHED = "it does not weigh its messages with it"
_NOT_LANDED = (
    "expected the attention of each edge, multiplied with its value, as in alpha[..., None] * "
    "value[source], and these messages, and nothing else made of them, summed up by an index, as "
    "by index_add, scatter_add or scatter_reduce"
)


class Layer(Protocol):
    """Takes the lengths of a layer's messages."""

    def add_messages(self, graph: TokenGraph, lengths: Tensor) -> None:
        """Take (edges, heads), for the edges of a graph."""


class Messages:
    """The messages of a model's layers, each proved to be its attention times something.

    A message is computed once more with each head's attention times another power of two, which
    loses no digit: then that head's part of the message must be exactly as many times larger.
    """

    def __init__(self, owner: Context) -> None:
        self._owner = ref(owner)  # Which holds it: what was recorded would outlive its traces.
        self._waiting: WeakKeyDictionary[Tracker, tuple[SeenEdges, Layer]] = WeakKeyDictionary()
        self._is_probing = False

    @contextmanager
    def open(self, model: nn.Module, is_wanted: bool) -> Iterator[None]:
        """Watch the messages of a model's layers."""
        handles: list[Any] = []
        library = sys.modules.get("torch_geometric.nn.conv")
        kinds = () if library is None else (library.MessagePassing,)
        try:
            for module in model.modules() if is_wanted else ():
                # gattn's own layers would change their engine, and show values anyway.
                is_own = type(module).__module__.startswith("gattn.")
                if isinstance(module, kinds) and not is_own:
                    handles.append(module.register_message_forward_hook(Uncopied(self._see)))
            yield
        finally:
            for handle in handles:
                handle.remove()
            self._waiting.clear()

    def expect(self, tracker: Tracker, call: SeenEdges, layer: Layer) -> None:
        """Expect the messages of a call next."""
        self.check(tracker)
        self._waiting[tracker] = call, layer
        if call.ends.is_listed:
            call.takes.append(partial(self._landed, ref(tracker)))

    def forget(self, tracker: Tracker) -> None:
        """Expect nothing more in a call of the model."""
        self._waiting.pop(tracker, None)

    def check(self, tracker: Tracker) -> None:
        """Refuse a call whose messages did not follow."""
        waiting = self._waiting.pop(tracker, None)
        if waiting is not None:
            is_listed = waiting[0].ends.is_listed
            raise _unknown(waiting[0], _NOT_LANDED if is_listed else _NOT_WEIGHED)

    def _landed(self, of: ref[Tracker], messages: Tensor) -> None:
        """Take the messages of a layer that sums them up itself."""
        tracker = of()
        waiting = None if tracker is None else self._waiting.pop(tracker, None)
        if waiting is not None:
            call, layer = waiting
            with torch.no_grad():
                layer.add_messages(call.graph, _summed(call, messages))

    def _see(self, module: nn.Module, given: Sequence[Any], message: Any) -> None:
        owner = None if self._is_probing else self._owner()
        tracker = None if owner is None else takes_part(owner)
        waiting = None if tracker is None else self._waiting.get(tracker)
        if tracker is None or waiting is None or waiting[0].ends.module is not module:
            return
        del self._waiting[tracker]
        call, layer = waiting
        self._is_probing = True
        try:
            with torch.no_grad(), inside():
                layer.add_messages(call.graph, _lengths(call, module, given[0], message))
        finally:
            self._is_probing = False


def _lengths(call: SeenEdges, module: Any, given: dict[str, Any], message: Any) -> Tensor:
    """Return the length of each head's message along each edge of the graph: (edges, heads)."""
    edges, heads = call.attention.shape
    if not isinstance(message, Tensor) or message.shape[:1] != (edges,):
        raise _unknown(call, "its messages are not one per edge")
    if message[0].numel() % heads:
        raise _unknown(call, "its messages do not consist of one part per head")
    factors = scales(heads, message)
    before = dict(vars(module))
    try:
        with scaled(factors):
            again = module.message(**{n: _times(x, factors, call) for n, x in given.items()})
    finally:
        vars(module).clear()
        vars(module).update(before)
    parts, larger = (x.reshape(edges, heads, -1) for x in (message, again))
    if not torch.equal(parts * factors[:, None].to(parts.dtype), larger):
        raise _unknown(call, "its messages are not the attention times a value")
    return _summed(call, parts)


def _summed(call: SeenEdges, parts: Tensor) -> Tensor:
    """Return the lengths of the sums of parallel edges' messages (edges, heads, ...)."""
    summed = widened(parts).cpu().new_zeros(call.graph.num_edges, *parts.shape[1:])
    summed = summed.index_add(0, call.places, widened(parts).cpu())
    lengths: Tensor = torch.linalg.vector_norm(summed, dim=-1)
    return lengths


def _times(value: Any, factors: Tensor, call: SeenEdges) -> Any:
    """Scale what a message is given, if it is the call's attention."""
    if not isinstance(value, Tensor) or value.numel() != call.attention.numel():
        return value
    if not torch.equal(value.reshape(call.attention.shape), call.attention):
        return value
    return (value.reshape(call.attention.shape) * factors.to(value.dtype)).reshape(value.shape)


def _unknown(call: SeenEdges, reason: str) -> CaptureError:
    return CaptureError(
        f"The contributions of {call.where} are not known: {reason}. Leave out contributions=."
    )
