"""Shows softmaxes that meet their values, and puts in what edits make of them."""

from __future__ import annotations

from torch import Tensor

from gattn.errors import CaptureError, EditError
from gattn.models.doors.functions.calling.handing import (
    handed,
    is_edited_by_user,
)
from gattn.models.doors.functions.calling.memory import laid_as, share, version_of
from gattn.models.doors.functions.calling.passing import passes_by_scores
from gattn.models.doors.functions.calling.raw_call import RawCall, named
from gattn.models.doors.functions.softmaxes.beside import note_met
from gattn.models.doors.functions.softmaxes.early import (
    early_of,
    has_copies,
    refuse_changed,
    unedited,
)
from gattn.models.doors.functions.softmaxes.follow.following import (
    Followed,
    forget_scores,
    note,
)
from gattn.models.doors.functions.softmaxes.follow.learned import is_learned
from gattn.models.doors.functions.softmaxes.follow.source import Source
from gattn.models.doors.functions.softmaxes.products import Product
from gattn.models.doors.functions.softmaxes.unreached import note_late


def meet(followed: Followed, found: Product, result: Tensor, kind: str = "softmax") -> Tensor:
    """Show a softmax that meets values, and return what the model gets of their product."""
    source = followed.source
    is_torn = bool(source.met) and not source.met & {followed.columns, None}
    source.met.add(followed.columns)
    if is_torn or (not source.was_consumed and source.is_torn):
        source.is_consumed = True
        handed(_torn(source, found))
        return result
    if is_learned(found.other):
        note(result, followed.altered_by("a product with a parameter", result))
        return result
    if source.was_consumed:
        return result
    if followed.altered:
        return _mixed(followed, found, result, kind)
    source.take()
    if (
        source.begun is None
        and found.dropped is None
        and passes_by_scores(source.module, found.output, found.value, found.scores)
    ):
        forget_scores(source)
        return result
    is_early = source.is_edited_early
    if is_early:
        refuse_changed(followed, found)
    weights, output = (
        unedited(found, followed.dropout) if is_early else (found.weights, found.output)
    )
    is_read = source.is_read or has_copies(followed, found) or followed.dropout > 0
    call = RawCall(
        source.module,
        kind,
        found.value,
        output,
        scores=found.scores,
        weights=weights,
        dropout=followed.dropout,
        running=source.running,
        dropped=found.dropped,
        over_last=source.key == source.scores.dim() - 1,
        is_written=source.is_written,
        ranking=followed.ranked,
        early=early_of(followed, found),
        is_read=is_read,
        first=source.begun,
    )
    note_met(call, [source])
    version = version_of(output)
    changed = handed(call)
    is_done = is_early and bool(followed.dropout) and source.is_edited_for_good
    forget_scores(source)
    source.begun = None
    if call.output is output and (version_of(output) == version or share(output, result)):
        return result
    restored = laid_as(found.restored(call.output), result)
    if changed is None:  # A proof puts other numbers there.
        return restored
    if is_early:
        return result if is_done else restored
    source.is_edited = not changed.keeps_attention
    if source.read_by and source.is_edited:
        raise _read_before(source)
    if call.weights is not None and source.is_edited:
        written = followed.write(found, call.weights)
        if is_edited_by_user(source.module):
            note_late(source, written)
    return restored


def _read_before(source: Source) -> EditError:
    """Say that attention was read where what is put in at its product with values misses it."""
    where = f"{named(source.module)} reads its attention by {source.read_by} before it meets the "
    if is_edited_by_user(source.module):
        return EditError(f"{where}values, where an edit does not reach. Nothing was edited.")
    return EditError(
        f"{where}values. Gradients are taken where it meets them, so an estimate would miss what "
        "the answer may owe to that: measure cuts one by one with gattn.effect."
    )


def _mixed(followed: Followed, found: Product, result: Tensor, kind: str) -> Tensor:
    """Show the softmaxes that attention was made of; slices that are mixed are one softmax."""
    sources = (followed.source, *followed.others)
    wholes = dict.fromkeys(one.root if followed.is_mixture else one for one in sources)
    if any(one not in sources and not one.is_whole for one in wholes):
        wholes = dict.fromkeys(sources)
    if (earlier := next((one for one in wholes if one.scores.is_meta), None)) is not None:
        raise CaptureError(
            f"the attention of {named(earlier.module)} is mixed into another's, as a mean of both, "
            "after it met its own values: which of the two a number is, is not known"
        )
    for one in (*wholes, *sources):
        one.take()
    for one in sorted(wholes, key=lambda one: one.number):
        call = _altered(one, found, followed, kind) if one in sources else _whole(one, followed)
        note_met(call, [one])
        handed(call)
        if one in sources:
            continue
        if not bool((call.output == 1).all()):  # A proof puts other numbers there.
            rows = call.output.flatten(0, -3).amax(0)
            found.output.copy_(rows.where(rows.isnan(), 0).expand_as(found.output))
            result = laid_as(found.restored(found.output), result)
    return result


def _whole(source: Source, followed: Followed) -> RawCall:
    """Make the call of a softmax whose slices are mixed, which has other dimensions than these."""
    scores = source.scores
    return RawCall(
        source.module,
        "softmax",
        scores.new_zeros(*scores.shape[:-2], scores.shape[-1], 0),
        scores.new_ones(*scores.shape[:-1], 1),
        scores=scores,
        running=source.running,
        altered=followed.altered,
        is_across=followed.is_across,
        number=source.number,
    )


def _torn(source: Source, found: Product) -> RawCall:
    return RawCall(
        source.module,
        "softmax",
        found.value,
        found.output,
        scores=found.weights,
        running=source.running,
        altered="slices, which meet values in several products,",
        is_written=source.is_written,
    )


def _altered(source: Source, found: Product, followed: Followed, kind: str) -> RawCall:
    scores = source.scores
    is_last = source.key == scores.dim() - 1
    is_alike = is_last and scores.shape[:-2] == found.output.shape[:-2]
    return RawCall(
        source.module,
        kind,
        found.value,
        found.output,
        scores=scores if is_alike else found.scores,
        running=source.running,
        altered=followed.altered,
        is_scaled=followed.is_scaled and not followed.others,
        is_across=followed.is_across,
        number=source.number if is_alike and followed.is_mixture and source.is_plain else None,
        is_written=source.is_written,
    )
