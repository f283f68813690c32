"""Hands an attention call that a door has seen to the open contexts, which take part in it."""

from __future__ import annotations

from contextlib import suppress
from typing import NoReturn

import torch
from torch import Tensor, nn

from gattn.errors import CaptureError, EditError
from gattn.models.doors.functions.calling.altered import changed
from gattn.models.doors.functions.calling.beside import note_edited
from gattn.models.doors.functions.calling.custom_backward import refuse_gradients
from gattn.models.doors.functions.calling.forms import FORMS, Form
from gattn.models.doors.functions.calling.owners import innermost
from gattn.models.doors.functions.calling.raw_call import RawCall, is_observed, named, observer
from gattn.models.read.layouts import Layout, usual
from gattn.models.read.seen_call import SeenCall
from gattn.models.read.track.runs import runs
from gattn.models.read.track.tracking import Tracker
from gattn.models.watch.calls import Calls
from gattn.models.watch.contexts import present
from gattn.models.watch.parts_and_wholes import numbered_twice, trackers_of
from gattn.models.watch.taking_part import begin, take_part

_is_batched = torch._C._functorch.is_batchedtensor


def handed(call: RawCall) -> SeenCall | None:
    """Let the open contexts take part in a call; None if nothing of it changes."""
    observe = observer()
    if observe is not None:
        _check_dims(call)
        observe(call)
        return None
    tracker = _tracker(call)
    if call.layout is None and not _is_read(call, tracker):
        return None
    layout = call.layout = call.layout or _layout(call, tracker)
    if call.begun is not None and call.begun.is_edited:
        for one in call.begun.places:
            one.check_met(call.module, call.ordinal)
    before: list[SeenCall] = []

    def seen(name: str) -> SeenCall:
        before.append(call.seen(name, layout))
        return before[0]

    plain = call.output
    try:
        found = take_part(call.module, call.value, seen, begun=call.begun)
    except CaptureError:
        if tracker.proves:
            raise
        return None  # Beside transformers' interface; when the context closes, a warning names it.
    if found is None:
        return None
    if found.is_edited:
        note_edited(call)
    if _is_changed(found.output, plain):
        with_gradients = any(calls.takes_gradients for calls, _ in present())
        refuse_gradients(named(call.module), with_gradients)
        call.output = layout.unfold(found.output.transpose(1, 2), call.lead)
    weights = found.weights
    if weights is not None and call.weights is not None:
        weights = layout.unfold(weights, call.weights.shape[:-2])
    call.weights = weights
    return found


def edited_early(call: RawCall) -> bool:
    """Let the open contexts edit the attention of a call before its values are known.

    Returns whether they do.
    """
    tracker = _tracker(call)
    if not _is_read(call, tracker):
        return False
    layout = call.layout = _layout(call, tracker)
    call.begun = begin(call.module, lambda name: call.seen(name, layout))
    if call.begun is None or not call.is_edited_early:
        return False
    weights = call.begun.call.weights
    assert weights is not None
    assert call.weights is not None
    call.weights = layout.unfold(weights, call.weights.shape[:-2])
    return True


def early_form(
    module: nn.Module, number: int, scores: Tensor, *, with_gradients: bool
) -> Form | None:
    """Return the form of a softmax with which a call begins; None if it begins later.

    What reads it then reads what is edited. `number` counts the softmaxes of one run of the module.
    Where no gradients are taken, edits are written into memory later if nothing was read before.
    """
    found = [(calls.tracker, context) for calls, context in present() if calls.owns(module)]
    if not any(context.edits_attention for _, context in found):
        return None
    if any(context.hears_parts for _, context in found):
        return None
    early = {tracker: tracker.early(module, number) for tracker, _ in found}
    calls = {one for one in early.values() if one is not None}
    if len(calls) != 1 or None in early.values():
        return None
    (call,) = calls
    if call.ordinal != runs.count(module) or not (call.is_read or with_gradients):
        return None
    form = FORMS[call.form]
    shape = form.rows(scores).shape
    are_begun = all(one.begins_texts(module, call.ordinal, shape) for one in early)
    return form if are_begun else None


def is_edited_by_user(module: nn.Module) -> bool:
    """Return whether a context may edit the attention of a module in a call that runs now."""
    return any(
        context.edits_attention and calls.tracker.is_calling
        for calls, context in present()
        if calls.owns(module)
    )


def refuse_early(module: nn.Module, number: int) -> NoReturn:
    """Refuse attention that was edited early, but changes before it meets the values.

    `number` counts the softmaxes of one run of the module.
    """
    for calls, _ in present():
        if calls.owns(module):
            calls.tracker.forget_early(module, number)
    raise EditError(
        f"{named(module)} changes its attention between its softmax and its values, which it did "
        "not when the model was proved on such inputs, so that an edit was put in too early. "
        "Nothing more was edited. Call it again, and the edit waits for the values."
    )


def _tracker(call: RawCall) -> Tracker:
    return _calls(call).tracker


def _calls(call: RawCall) -> Calls:
    """Return the calls of the first model that proves a call, or else of the first that holds it.

    Contexts on a model of transformers that holds it are shown what proves it, too.
    """
    found = [calls for calls, _ in present() if calls.owns(call.module)]
    return next((calls for calls in found if calls.tracker.proves), found[0])


def _is_read(call: RawCall, tracker: Tracker) -> bool:
    """Return whether a call is one of attention that is read here; refuse what cannot be read."""
    calls = _calls(call)
    if call.module is calls.model and not calls.depth and innermost() is not calls.model:
        return False  # Another model runs inside its `generate`, such as an assistant.
    if not tracker.reads(call.module, call.lead, over_last=call.over_last):
        return False
    if tracker.leaves_out(call.module, call.ordinal):
        return False
    if call.altered:
        raise CaptureError(
            f"In {named(call.module)} the attention is {changed(call.altered)}. Nothing was "
            "captured or edited."
        )
    if call.output.is_complex():
        raise CaptureError(
            f"{named(call.module)} attends to complex values ({call.output.dtype}); expected real "
            "ones: hold their real and imaginary parts side by side, as torch.view_as_real gives "
            "them. Nothing was captured or edited."
        )
    return True


def _layout(call: RawCall, tracker: Tracker) -> Layout:
    """Say what the leading dimensions of a call's tensors are."""
    _check_dims(call)
    if tracker.proves and not tracker.is_calling:
        tracker.layers.again(tracker.modules.name(call.module))  # Only a part that runs again may.
    proved = tracker.layout(call.module, call.ordinal, call.lead)
    _check_parts(call, proved, tracker)
    return proved or usual(call.lead, None if call.running is None else call.running.heads)


def _check_dims(call: RawCall) -> None:
    """Refuse tensors some of whose dimensions are hidden."""
    if _is_batched(call.value) or _is_batched(call.output):
        raise CaptureError(
            f"{named(call.module)} attends inside torch.vmap, which hides dimensions of its "
            "tensors: run it on a batch instead; products of matrices, einsum and "
            "scaled_dot_product_attention take leading dimensions."
        )


def _check_parts(call: RawCall, layout: Layout | None, first: Tracker) -> None:
    """Refuse contexts on a model and a part of it to which a call's slots are other tokens."""
    known = None if layout is None else layout.tokens
    is_alone = len({id(calls) for calls, _ in present()}) == 1
    for tracker in trackers_of(call.module) if known and not is_alone else ():
        found = None
        if tracker is not first:
            with suppress(CaptureError):  # What is not proved has no numbers of its own.
                found = tracker.layout(call.module, call.ordinal, call.lead)
        if known and found and found.tokens and not known.are_those_of(found.tokens):
            raise numbered_twice(named(call.module), "tokens")


def _is_changed(now: Tensor, before: Tensor) -> bool:
    return now.untyped_storage().data_ptr() != before.untyped_storage().data_ptr()


def comes_again(module: nn.Module, number: int) -> int | None:
    """Return the number of a softmax that meets the values, where a module takes it twice."""
    if is_observed():
        return None
    found = (
        calls.tracker.comes_again(module, number) for calls, _ in present() if calls.owns(module)
    )
    return next((one for one in found if one is not None), None)


def alteration(module: nn.Module, number: int) -> str:
    """Return how a softmax is altered before it meets the values: "scaled", "mixed" or not ("").

    `number` counts the softmaxes of one run of the module.
    """
    if is_observed():
        return ""
    found = (calls.tracker for calls, _ in present() if calls.owns(module))
    return next((how for tracker in found if (how := tracker.alteration(module, number))), "")
