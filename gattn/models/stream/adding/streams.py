"""Finds what a layer's attention adds to the residual stream, from what its modules did.

`gattn.models.decompose.decomposing` says how.
"""

from __future__ import annotations

from collections import Counter
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from gattn.errors import CaptureError
from gattn.models.doors.proof.copying.random_numbers import random_numbers_kept
from gattn.models.edit.applying import parts
from gattn.models.stream.adding.sum_search import SumSearch
from gattn.models.stream.adding.sums import Added
from gattn.models.stream.again.events import Event
from gattn.models.stream.again.twins import Twin
from gattn.models.stream.layers import first_of, other_tokens, with_first
from gattn.models.stream.linear_maps import live_map, takes, weight_map
from gattn.models.stream.rounding import tolerance
from gattn.models.stream.rows import Rows
from gattn.models.stream.sublayers import Branch, HeadOutputs, Sublayer
from gattn.normalizers.base import widened

if TYPE_CHECKING:
    from gattn.models.read.places import Place
    from gattn.models.read.reading import Reading
    from gattn.models.read.seen_call import SeenCall


@dataclass(eq=False)
class RunningLayer:
    """A running layer: its arguments and input, its attention, and what ran since.

    Without a reading of its attention it is taken apart by what its heads gave. `attending` are all
    stacks that attend in it, and whether that is cross-attention; `answer` is what its attention
    module gave. `inner_width` is that to which a module within projects it.
    """

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    given: Tensor | None = field(init=False)
    seen: tuple[SeenCall, Place, Reading | None] | None = None
    events: list[Event] = field(default_factory=list)
    attending: dict[str, bool] = field(default_factory=dict)
    answer: Any = None
    inner_width: int | None = None
    _counts: Counter[nn.Module] = field(default_factory=Counter)
    _autocast: tuple[str, bool, torch.dtype] = field(init=False)

    def __post_init__(self) -> None:
        given = first_of((*self.args, *self.kwargs.values()))
        # It may be changed in place.
        self.given = None if given is None else given.clone()
        device = "cpu" if given is None else given.device.type
        is_on, dtype = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
        self._autocast = device, is_on, dtype

    def autocasting(self) -> AbstractContextManager[Any]:
        """Run something under the autocast under which the layer runs."""
        device, is_on, dtype = self._autocast
        return torch.autocast(device, dtype=dtype, enabled=is_on)

    def note(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> None:
        """Copy what a module did to the layer's tokens; later modules may change it in place."""
        number = self._counts[module]
        self._counts[module] += 1
        if self.seen is None or self.given is None or module is self.module:
            return
        call, width = self.seen[0], self.given.shape[-1]
        given, output = first_of((*args, *kwargs.values())), first_of(result)
        slots = _slots(call)
        widths = (width, call.output.shape[2] * call.output.shape[3])
        if given is None or output is None:
            return
        if module is call.module:
            self.answer = with_first(result, output.clone())
        if output.shape[-1] != width or output.numel() != slots * width:
            if given.shape[-1] == widths[1] and takes(given, call.output.flatten(0, 1).flatten(1)):
                self.inner_width = output.shape[-1]
            return
        # What comes from hidden features, as of an MLP, matters for what it gives.
        is_known = given.shape[-1] in widths and given.numel() == slots * given.shape[-1]
        before = given.reshape(slots, -1).clone() if is_known else given.new_empty(slots, 0)
        after, is_alone = output.reshape(slots, -1).clone(), len(args) + len(kwargs) == 1
        self.events.append(Event.of_module((module, number), before, after, is_alone))

    def taken_apart(self, output: Tensor | None) -> Branch:
        """Find the parts of the layer's attention, and verify that they sum to its output."""
        assert self.seen is not None
        assert self.given is not None
        call, place, _ = self.seen
        width, slots = self.given.shape[-1], _slots(call)
        if output is None:
            raise CaptureError(
                f"The layer around {call.where} gives no tensor, alone or in a tuple, list or "
                "dictionary: expected the residual stream. Use effect, estimate or circuit, which "
                "need none."
            )
        for one in (self.given, output):
            if one.numel() != slots * one.shape[-1]:
                raise other_tokens(call.name, self.given, slots)
        if output.shape[-1] != width:
            raise CaptureError(
                f"The layer around {call.where} takes {width} features of each token and gives "
                f"{output.shape[-1]}: expected a residual stream, to which its attention adds. "
                "Use effect, estimate or circuit, which need no residual stream."
            )
        given, end = (x.reshape(slots, width) for x in (self.given, output))
        real = Rows(place, call.query.shape[2], given.device).at
        events = self.events
        if len(real) < slots or bool((real.diff() != 1).any()):
            events = [replace(x, given=x.given[real], output=x.output[real]) for x in events]
            given, end = given[real], end[real]
        part, later = _projected(self.seen, real, given, end, events, self.inner_width)
        again = cache(lambda: Twin.of(self, real, later[0], part.end))
        added = Added(part, given, [later[0].output], again).after_norms(later[1:])
        attended = next((x.given for x in events if x.key[0] is call.module), None)
        with random_numbers_kept(self.module):
            found = SumSearch(added, later, attended).find()
            part = found.followed()
        _check_factor(self.module, part)
        return _verified(part, found.added, added.branch)


def _slots(call: SeenCall) -> int:
    """Count the slots of all sequences of a call."""
    return call.query.shape[0] * call.query.shape[2]


def _projected(
    seen: tuple[SeenCall, Place, Reading | None],
    real: Tensor,
    given: Tensor,
    end: Tensor,
    events: list[Event],
    inner_width: int | None,
) -> tuple[Branch, list[Event]]:
    """Find the output projection: the sublayer up to it, and what ran from it on."""
    call, place, reading = seen
    outputs = call.output.flatten(0, 1)[real]
    rows = outputs.flatten(1)
    # The outermost that takes them ends last: an adapter wraps the module that it adapts.
    found = [n for n, event in enumerate(events) if event.is_alone and takes(event.given, rows)]
    last = events[found[-1]] if found else None
    projection = None if last is None else live_map(last.key[0], last.given, last.output)
    if not found and call.projection is not None:
        found = [n for n, event in enumerate(events) if event.key[0] is call.module]
        projection = weight_map(call.projection, rows, events[found[-1]].output) if found else None
    if projection is None and inner_width is not None:
        raise CaptureError(
            f"The layer of {call.where} is given {given.shape[-1]} features of each token, and its "
            f"attention is projected to {inner_width}, a stream of its own as in MobileBERT's "
            "bottlenecks: what becomes of it in the layer's stream is not known. Use effect, "
            "estimate or circuit, which need no residual stream."
        )
    if projection is None:
        raise CaptureError(
            f"The output of {call.where} is not projected unchanged; there may be a gate or norm "
            "in between: what its edges add is unknown."
        )
    residual = widened(given).to(widened(outputs).dtype)
    fields: Any = {
        "stack": place.stack,
        "layer": place.layer,
        "name": call.name,
        "start": residual,
        "residual": residual,
        "weights": projection.heads(outputs.shape[1]).to(residual.dtype).transpose(1, 2),
        "factor": torch.ones_like(residual[:, 0]),
        "bias": torch.zeros_like(residual) + projection.bias.to(residual),
        "after": residual,
        "end": widened(end).to(residual.dtype),
    }
    part: Branch
    if reading is None:
        part = HeadOutputs(given=widened(outputs).transpose(0, 1), **fields)
    else:
        part = Sublayer(reading=reading, values=_values(reading)[0], **fields)
    return part, events[found[-1] :]


def _values(reading: Reading) -> Tensor:
    """Return the values, edited, of all heads: (1, heads, keys, dim)."""
    value = reading.attention.value
    assert value is not None
    if not reading.edits:
        return value
    value = value.clone()
    for part in parts(reading):
        assert part.attention.value is not None
        value[:, part.heads] = part.attention.value[:, part.own]
    return value


def _check_factor(module: nn.Module, part: Branch) -> None:
    """Refuse gradients to a number that branches are multiplied by, which is only measured."""
    if torch.is_grad_enabled() and any(
        x.numel() == 1 and x.requires_grad for x in module.parameters()
    ):
        raise CaptureError(
            f"The layer of {part.name} has a parameter of one number, which may multiply what it "
            "adds, and gradients to it are not known: run the model under torch.no_grad(), or "
            "freeze it."
        )


def _verified(part: Branch, added: Tensor, precision: Tensor) -> Branch:
    """Verify that the vectors and the bias sum to what was added to the stream."""
    added = added.detach()
    missing = (part.added().detach() + part.bias.detach() - added).abs()
    error = float(missing.max() / added.abs().max().clamp_min(torch.finfo(added.dtype).tiny))
    if bool((missing > tolerance(precision) * added.abs().amax(-1, keepdim=True)).any()):
        raise CaptureError(
            f"The vectors that the edges of {part.name} add, and the bias, do not sum to what it "
            f"adds to the residual stream: the relative error is {error:.1e}."
        )
    return replace(part, error=error)
