"""Finds what a layer's attention adds to the residual stream, from what its modules did.

`gattn.models.decompose.decomposing` says how.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from gattn.errors import CaptureError
from gattn.models.edit.applying import parts
from gattn.models.stream.layers import other_tokens
from gattn.models.stream.linear_maps import live_map, takes, weight_map
from gattn.models.stream.rounding import factor_of, is_half, tolerance
from gattn.models.stream.rows import Rows
from gattn.models.stream.sublayers import Branch, FixedNorm, HeadOutputs, Sublayer
from gattn.normalizers.base import widened

if TYPE_CHECKING:
    from gattn.models.read.places import Place
    from gattn.models.read.reading import Reading
    from gattn.models.read.seen_call import SeenCall


_FEW = 4
"""Of how many tokens sums are compared first: most are no sums, and need no look at all tokens."""


class Event(NamedTuple):
    """A module's first input and its output, as (tokens, width)."""

    module: nn.Module
    given: Tensor
    output: Tensor
    is_alone: bool

    def norm(self) -> FixedNorm | None:
        """Read the module as a norm or a scale, if it can be one."""
        is_leaf = not any(True for _ in self.module.children())
        is_like = self.given.shape == self.output.shape
        if not self.is_alone or not is_leaf or not is_like or torch.equal(self.given, self.output):
            return None
        return FixedNorm.of(self.module, self.given, self.output)


@dataclass(eq=False)
class RunningLayer:
    """A running layer: its input, its attention, and what ran since.

    Without a reading of its attention it is taken apart by what its heads gave. `attending` are all
    stacks that attend in it, and whether that is cross-attention.
    """

    module: nn.Module
    given: Tensor | None
    seen: tuple[SeenCall, Place, Reading | None] | None = None
    events: list[Event] = field(default_factory=list)
    attending: dict[str, bool] = field(default_factory=dict)

    def note(self, module: nn.Module, given: Tensor, output: Tensor, is_alone: bool) -> None:
        """Copy what a module did to the layer's tokens; later modules may change it in place."""
        if self.seen is None or self.given is None:
            return
        call, width = self.seen[0], self.given.shape[-1]
        slots = _slots(call)
        widths = (width, call.output.shape[2] * call.output.shape[3])
        if output.shape[-1] != width or output.numel() != slots * width:
            return
        # What comes from hidden features, as of an MLP, matters for what it gives.
        is_known = given.shape[-1] in widths and given.numel() == slots * given.shape[-1]
        before = given.reshape(slots, -1).clone() if is_known else given.new_empty(slots, 0)
        self.events.append(Event(module, before, output.reshape(slots, -1).clone(), is_alone))

    def taken_apart(self, output: Tensor | None) -> Branch:
        """Find the parts of the layer's attention, and verify that they sum to its output."""
        assert self.seen is not None
        assert self.given is not None
        call, place, _ = self.seen
        width, slots = self.given.shape[-1], _slots(call)
        for one in (self.given, output):
            if one is None or one.numel() != slots * one.shape[-1]:
                raise other_tokens(call.name, self.given, slots)
        assert output is not None
        if output.shape[-1] != width:
            raise CaptureError(
                f"The layer around {call.name} takes {width} features of each token and gives "
                f"{output.shape[-1]}: expected a residual stream, to which its attention adds. "
                "Use effect, estimate or circuit, which need no residual stream."
            )
        given, end = (x.reshape(slots, width) for x in (self.given, output))
        real = Rows(place, call.query.shape[2], given.device).at
        events = [x._replace(given=x.given[real], output=x.output[real]) for x in self.events]
        part, later = _projected(self.seen, real, given[real], end[real], events)
        part, branch = _after_norms(part, later)
        part, added = _summed(part, given[real], branch, later)
        _check_factor(self.module, part)
        return _verified(part, added, branch)


def _slots(call: SeenCall) -> int:
    """Count the slots of all sequences of a call."""
    return call.query.shape[0] * call.query.shape[2]


def _projected(
    seen: tuple[SeenCall, Place, Reading | None],
    real: Tensor,
    given: Tensor,
    end: Tensor,
    events: list[Event],
) -> tuple[Branch, list[Event]]:
    """Find the output projection: the sublayer up to it, and what ran from it on."""
    call, place, reading = seen
    outputs = call.output.flatten(0, 1)[real]
    rows = outputs.flatten(1)
    # The outermost that takes them ends last: an adapter wraps the module that it adapts.
    found = [n for n, event in enumerate(events) if event.is_alone and takes(event.given, rows)]
    last = events[found[-1]] if found else None
    projection = None if last is None else live_map(last.module, last.given, last.output)
    if not found and call.projection is not None:
        found = [n for n, event in enumerate(events) if event.module is call.module]
        projection = weight_map(call.projection, rows, events[found[-1]].output) if found else None
    if projection is None:
        raise CaptureError(
            f"The output of {call.name} is not projected unchanged; there may be a gate or norm in "
            "between: what its edges add is unknown."
        )
    residual = widened(given).to(widened(outputs).dtype)
    fields: Any = {
        "stack": place.stack,
        "layer": place.layer,
        "name": call.name,
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


def _after_norms(part: Branch, events: list[Event]) -> tuple[Branch, Tensor]:
    """Follow norms and scales after the projection; also give what is added to the stream."""
    branch = events[0].output
    for event in events[1:]:
        norm = event.norm() if takes(event.given, branch) else None
        if norm is not None:
            folded = replace(part, norm=norm).normed()
            part = replace(folded, residual=part.residual, after=part.after)
            branch = event.output
    return part, branch


def _summed(
    part: Branch, given: Tensor, branch: Tensor, events: list[Event]
) -> tuple[Branch, Tensor]:
    """Find the sum of residual and branch, and the norm that reads it; also give what was added."""
    alike = [event for event in events if event.given.shape == given.shape]
    known = [x for event in events for x in (event.given, event.output) if x.shape == given.shape]
    sums = ((x, [given]) for x in known)
    with_mlp = ((part.end, [given, event.output]) for event in alike)
    after, size, is_parallel = None, None, False
    for total, others in chain(sums, with_mlp):
        size = factor_of(branch, total, others)
        if size is not None:
            after, is_parallel = total, len(others) > 1
            break
    if size is None or after is None:
        lost = f"{branch.dtype}".removeprefix("torch.")
        raise CaptureError(
            f"What {part.name} adds to the residual stream was not found: no module of its layer "
            "reads their sum. The layer has no residual stream, scales or gates it, or adds to "
            "it in another way"
            + (f", or rounding to {lost} hides it: try model.float()." if is_half(branch) else ".")
        )
    added = size * widened(branch).to(part.residual.dtype)
    found = replace(
        part,
        factor=part.factor * size,
        bias=part.bias * size,
        after=part.residual + added,
        is_parallel=is_parallel,
    )
    return (found if is_parallel else _with_norms(found, after, events)), added


def _with_norms(part: Branch, after: Tensor, events: list[Event]) -> Branch:
    """Find the norm that reads the sum, whether it gives the stream, and the norm of the end."""
    readers = [(event, event.norm()) for event in events if torch.equal(event.given, after)]
    goes_on = torch.equal(widened(after), part.end) or _goes_on(after, part.end, events)
    stream, norms = after, [norm for _, norm in readers if norm is not None]
    part = replace(part, norm=next(iter(norms), None))
    for event, norm in [] if goes_on else readers:
        is_end = torch.equal(widened(event.output), part.end)
        # What an MLP gives may end a layer, too, where nothing is added to it.
        is_stream = (norm is not None) if is_end else _goes_on(event.output, part.end, events)
        if is_stream:
            stream, part = event.output, replace(part, norm=norm, is_post_norm=True)
            break
    for event in events:
        if event.output is stream or not torch.equal(widened(event.output), part.end):
            continue
        if (last := event.norm()) is not None:
            given = widened(event.given).to(part.end.dtype)
            part = replace(part, end_norm=last, before_end=given)
            # Where the stream goes after the sum is not known: it may be through the norm or not.
            is_known = goes_on or part.is_post_norm
            return part if is_known else replace(part, norm=None, is_post_norm=True)
        is_sum = _is_sum(stream, event.given, events)
        if is_sum and not _is_sum(event.given, part.end, events):
            part = replace(part, is_changed_last=not torch.equal(event.given, event.output))
    return part


def _goes_on(stream: Tensor, end: Tensor, events: list[Event]) -> bool:
    """Return whether what a module gives is added to a tensor, and read or given as the sum."""
    return any(_is_sum(stream, one, events) for one in (end, *(x.given for x in events)))


def _is_sum(stream: Tensor, total: Tensor, events: list[Event]) -> bool:
    """Return whether a tensor is another, to which was added what a module gives."""
    if total.shape != stream.shape or torch.equal(total, stream):
        return False
    return any(
        all(
            factor_of(event.output[rows], total[rows], [stream[rows]]) is not None
            for rows in (slice(_FEW), slice(None))
        )
        for event in reversed(events)
        if event.output is not stream and event.output is not total
    )


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
