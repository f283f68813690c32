"""Lets the open contexts take part in a call of an attention function."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import torch
from torch import Tensor, nn

from gattn.errors import CaptureError, ModelError
from gattn.models.edit.applying import apply
from gattn.models.load.loading import META
from gattn.models.read.places import Place
from gattn.models.read.reading import Reading, read
from gattn.models.read.seen_call import SeenCall
from gattn.models.read.track.tracking import Tracker
from gattn.models.watch.contexts import Context, present, settle
from gattn.models.watch.inside import inside
from gattn.models.watch.parts_and_wholes import check_numbers

if TYPE_CHECKING:
    from gattn.models.edit.base import Edit

TRANSFORMED = (
    "it runs inside torch.func (grad, jvp, vmap ...), which hides the numbers of its tensors; take "
    "gradients by torch.autograd, and run the model on a batch instead of torch.vmap"
)

Edits: TypeAlias = "Sequence[Sequence[Edit]]"


Seen = TypeVar("Seen", bound=SeenCall)


@dataclass(eq=False)
class Begun:
    """A call whose values are not known yet, and its place in the model of each context."""

    call: SeenCall
    places: dict[Tracker, Place]
    is_edited: bool = False
    is_all: bool = False
    """Whether edits change nothing but its attention."""

    def given(self, known: Seen) -> Seen:
        """Return it as it is known with its values, placed as it was."""
        known.is_named, known.is_cross = self.call.is_named, self.call.is_cross
        return known


def _read(call: SeenCall, place: Place, tracker: Tracker, edits: Edits) -> list[Reading]:
    return read(call, place, tracker.mask(call), edits)


def take_part(
    module: nn.Module,
    given: Tensor,
    seen: Callable[[str], Seen],
    read: Callable[[Seen, Place, Tracker, Edits], list[Reading]] = _read,
    apply: Callable[[Seen, Sequence[Reading]], None] = apply,
    begun: Begun | None = None,
) -> Seen | None:
    """Let all open contexts edit a call's output, then look at it.

    `seen` makes the call, given the module's qualified name; it is returned with the output and
    attention that the model continues with, or None if no context takes part. `read` reads it with
    the edits of each element, and `apply` puts edited attention into it. It may have `begun`
    before.
    """
    entries = entries_of(module)
    if not entries:
        return None
    if given.is_meta:
        raise ModelError(META)
    if is_transformed():
        name = entries[0][0].modules.name(module) or type(module).__name__
        raise CaptureError(f"The attention of {name} cannot be read: {TRANSFORMED}.")
    # What gattn computes is not part of the model's autocast.
    with _without_autocast(given.device.type), inside():
        call = seen(entries[0][0].modules.name(module))
        if begun is not None:
            call = begun.given(call)
            for tracker in begun.places:
                tracker.met(call)
        places = {} if begun is None else begun.places
        _place(call, entries, places)
        each = _edits(call, entries, places)
        changes = [edit.changes_attention for some in each for edit in some]
        call.is_edited, call.keeps_attention = any(changes), bool(changes) and not any(changes)
        if begun is not None:
            begun.is_all = not any(edit.gives_values for some in each for edit in some)
        watching = [
            (context, places[tracker])
            for tracker, context in entries
            if tracker.is_calling and context.wants(places[tracker])
        ]
        if not watching and not any(each):
            return call
        for tracker in places:
            tracker.check(call.name)
            tracker.is_edited |= any(each)
        if watching:
            call.is_shown = True
            if call.dropout:
                raise dropped(call.name, type(call.module).__name__, call.dropout)
        tracker = entries[0][0]
        # Without edits no gradient is taken of what gattn computes: a checkpoint that computes the
        # call again would miss the tensors that were saved for it.
        with torch.set_grad_enabled(torch.is_grad_enabled() and any(each)):
            readings = read(call, places[tracker], tracker, each)
            for own, context in entries:
                context.met(readings, own)
            apply(call, readings)
        for context, place in watching:
            context.see(call, place, readings)
        return call


def begin(module: nn.Module, seen: Callable[[str], SeenCall]) -> Begun | None:
    """Let all open contexts edit the attention of a call whose values are not known yet.

    It begins then, and takes part once they are. None if no context takes part.
    """
    entries = entries_of(module)
    if not entries or is_transformed():
        return None
    call = seen(entries[0][0].modules.name(module))
    with _without_autocast(call.value.device.type), inside():
        begun = Begun(call, _place(call, entries, {}))
        editing = [(tracker, context) for tracker, context in entries if context.edits_attention]
        each = [
            [edit for edit in some if edit.changes_attention]
            for some in _edits(call, editing, begun.places)
        ]
        edits = [edit for some in each for edit in some]
        if not edits or any(edit.gives_values for edit in edits):
            return begun
        tracker = entries[0][0]
        tracker.check(call.name)
        apply(call, _read(call, begun.places[tracker], tracker, each))
        begun.is_edited = True
        return begun


Entries: TypeAlias = "Sequence[tuple[Tracker, Context]]"


def _place(call: SeenCall, entries: Entries, places: dict[Tracker, Place]) -> dict[Tracker, Place]:
    """Find where a call is in the model of each context."""
    for tracker, _ in entries:
        if tracker not in places:
            places[tracker] = tracker.place(call)
    check_numbers(call.where, places.values())
    return places


def _edits(call: SeenCall, entries: Entries, places: Mapping[Tracker, Place]) -> list[list[Edit]]:
    """Return the edits of each element of a call's batch."""
    each: list[list[Edit]] = [[] for _ in next(iter(places.values())).sequences]
    for tracker, context in entries:
        edits = context.edits(call, places[tracker], tracker)
        for known, more in zip(each, edits, strict=False):
            known.extend(more)
    return each


def is_transformed() -> bool:
    """Return whether a transform of `torch.func` runs, which hides the numbers of tensors."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def dropped(name: str, kind: str, p: float) -> CaptureError:
    """Say that attention is not shown of which the model drops some at random."""
    where = f"{name} ({kind})" if name and name != kind else kind
    return CaptureError(
        f"{where} drops attention at random (p = {p:.3g}), so what a head attends to is not what "
        "it uses. Expected no dropout while a model is captured: call model.eval() on all of it, "
        "and where its code asks for dropout even then (training=True, dropout_p=), set p to 0."
    )


def _without_autocast(device: str) -> AbstractContextManager[Any]:
    is_on = torch.is_autocast_enabled(device)
    return torch.autocast(device, enabled=False) if is_on else nullcontext()


def entries_of(module: nn.Module) -> list[tuple[Tracker, Context]]:
    """List the contexts of a module's models, with the tracker of the present call of each."""
    found = [(calls, context) for calls, context in present() if calls.owns(module)]
    for calls in {id(calls): calls for calls, _ in found}.values():
        settle(calls)
    return [(calls.tracker, context) for calls, context in found if calls.has(context)]
