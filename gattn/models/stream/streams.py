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
        is_of_layer = output.shape[-1] == width and given.shape[-1] in widths
        if is_of_layer and all(x.numel() == slots * x.shape[-1] for x in (given, output)):
            before, later = (x.reshape(slots, -1).clone() for x in (given, output))
            self.events.append(Event(module, before, later, is_alone))

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
                "effect, estimate and circuit need none."
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
            "reads their sum. The model scales or gates the stream, or adds to it in another way"
            + (f", or rounding to {lost} hides it: try model.float()." if is_half(branch) else ".")
        )
    norms = [event.norm() for event in alike if torch.equal(event.given, after)]
    ends = [event for event in alike if torch.equal(widened(event.output), part.end)]
    added = size * widened(branch).to(part.residual.dtype)
    found = replace(
        part,
        factor=part.factor * size,
        bias=part.bias * size,
        after=part.residual + added,
        is_parallel=is_parallel,
    )
    if not is_parallel:
        norm = next((norm for norm in norms if norm is not None), None)
        found = replace(found, norm=norm)
        for event in ends:
            if (last := event.norm()) is not None:
                given = widened(event.given).to(found.end.dtype)
                return replace(found, end_norm=last, before_end=given), added
    return found, added


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
