"""The door to attention that a model writes out: a softmax of scores, and its product with values.

A softmax is followed through functions that keep its numbers to the product that consumes it. Only
then is it known to be attention, with its values and its output.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from weakref import ref

from torch import Tensor, strided
from torch.overrides import TorchFunctionMode

from gattn.errors import CaptureError, EditError
from gattn.models.doors.functions.calling.handing import (
    alteration,
    handed,
    is_edited_by_user,
)
from gattn.models.doors.functions.calling.memory import laid_as
from gattn.models.doors.functions.calling.multihead import running
from gattn.models.doors.functions.calling.owners import owner
from gattn.models.doors.functions.calling.passing import passes_by_scores
from gattn.models.doors.functions.calling.raw_call import RawCall, named
from gattn.models.doors.functions.softmaxes.beside import Same, note_met, note_softmax
from gattn.models.doors.functions.softmaxes.carrying import SHRINKS, carried, masked, zeros_put
from gattn.models.doors.functions.softmaxes.early import (
    as_first,
    begun_early,
    early_of,
    first_of,
    has_copies,
    refuse_changed,
    unedited,
    without_values,
)
from gattn.models.doors.functions.softmaxes.following import (
    OF_THE_FIRST,
    WITHOUT_NUMBERS,
    Followed,
    all_found_in,
    asks_of_form,
    forget_scores,
    found_in,
    is_followed,
    is_learned,
    note,
    note_learned,
    note_reading,
    operands,
    version_of,
    with_edits,
)
from gattn.models.doors.functions.softmaxes.products import Product, product
from gattn.models.doors.functions.softmaxes.ranks import largest, of_largest, of_values, put_back
from gattn.models.doors.functions.softmaxes.renormalized import (
    follow_totals,
    is_total,
    note_total,
    renormalized,
)
from gattn.models.doors.functions.softmaxes.slicing import pieces, sliced
from gattn.models.doors.functions.softmaxes.source import Source
from gattn.models.doors.functions.softmaxes.sums import SUMS, spread, summed, weighed
from gattn.models.doors.functions.softmaxes.unreached import note_late
from gattn.models.doors.functions.softmaxes.written import made_of
from gattn.models.read.track.runs import runs
from gattn.models.watch.inside import by_model, inside

_PICKS = frozenset(("topk", "max", "min", "sort", "kthvalue", "median", "mode", "cummax"))


def see(
    mode: TorchFunctionMode, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Remember a softmax that a module of a watched model computes."""
    scores, out = args[0] if args else kwargs.get("input"), kwargs.get("out")
    with inside():
        if isinstance(out, Tensor) and isinstance(scores, Tensor) and _share(out, scores):
            scores = scores.clone()  # It writes into them.
        attention = func(*args, **kwargs)
    module = owner()
    dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
    if module is None or not isinstance(scores, Tensor) or not isinstance(dim, int):
        return attention
    if scores.dim() < 2 or not isinstance(attention, Tensor) or not attention.numel():
        return attention
    number, key = runs.next_softmax(module), dim % scores.dim()
    source = Source(module, number, ref(attention), scores, key, running())
    if alteration(module, number):
        with inside():
            return _put_out(kwargs, _alone(source, attention))
    if (found := largest(scores)) is not None:
        source.scores, source.ranking = found
    same = Same.of(scores, attention, key)
    with inside():
        if (first := first_of(source, same)) is not None:
            source, attention = first.source, as_first(first, attention)
        else:
            attention = begun_early(source, attention, same)
        attention = _put_out(kwargs, attention)
    source.attention = ref(attention)
    note(attention, Followed(source, source.scores, key))
    note_softmax(source, scores, attention, same)
    return attention


def _share(one: Tensor, other: Tensor) -> bool:
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


def _alone(source: Source, attention: Tensor) -> Tensor:
    """Show a softmax whose numbers are changed before they meet the values."""
    call = without_values(source, attention)
    if handed(call) is None:
        return attention
    return attention if call.weights is None else call.weights


def follow(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Run a function, and see whether it takes a softmax's attention to its values."""
    return _put_out(kwargs, _follow(func, args, kwargs))


def _put_out(kwargs: Mapping[str, Any], result: Any) -> Any:
    """Put an edited result into the tensor that the model gave for it (`out=`)."""
    out = kwargs.get("out")
    if not isinstance(out, Tensor) or result is out:
        return result
    with inside():
        return out.copy_(result)


def _follow(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    if asks_of_form(func):
        for one in all_found_in(args, kwargs) if func is Tensor.untyped_storage else ():
            one.source.root.give_out(func, args)
        return func(*args, **kwargs)
    place, followed = found_in(args, kwargs)
    if followed is None:
        result = func(*args, **kwargs)
        note_learned(func, args, kwargs, result)
        follow_totals(args, kwargs, result)
        return result
    are_edited = [one.source.is_edited for one in all_found_in(args, kwargs)]
    edited = with_edits(args, kwargs) if any(are_edited) else None
    if edited is not None or all(are_edited):
        args, kwargs = edited or (args, kwargs)
        return note_reading(func, func(*args, **kwargs), all_found_in(args, kwargs))
    with inside():
        if (put := zeros_put(func, args, followed)) is not None:
            func, args = Tensor.masked_fill_, put
        others = all_found_in(args, kwargs)  # Before it may write into them.
        with by_model():
            result = func(*args, **kwargs)
        if func in WITHOUT_NUMBERS or (func in OF_THE_FIRST and place):
            return result
        if func is Tensor.new_tensor and not is_followed(kwargs.get("data", args[-1])):
            return result
        if not followed.unnormalized and is_total(func, args, kwargs, followed):
            note_total(result, followed.source)
            return result
        if not isinstance(result, Tensor):
            return _in_pieces(func, args, kwargs, followed, result)
        if followed.unnormalized:
            is_dense = result.layout is strided
            made = made_of(func, args, kwargs, place, followed, result) if is_dense else None
            if isinstance(made, tuple):
                return _seen(*made, result)
            if made is not None:
                note(result, made)
            if made is not None or followed.source.is_written or func in SUMS:
                return result
            if followed.took is None:
                before = operands(args, kwargs)[place]
                followed = followed.altered_by(followed.unnormalized, before)
            followed = replace(followed, unnormalized="", dropped=followed.took, took=None)
        found = product(func, args, kwargs, place, followed, result)
        if found is None and followed.otherwise is not None:
            found = product(func, args, kwargs, place, followed.otherwise, result)
            followed = followed if found is None else followed.otherwise
        if sum(one.source is followed.source for one in others) > 1:
            found = None  # With itself, or what a router weighed, in scores of tokens.
        if found is None and (ended := summed(func, args, kwargs, followed, result)):
            return _seen(*ended, result, kind="sum")
        has_weighed = followed.is_picked and followed.spread is not None
        if found is None and (has_weighed or (followed.altered and not result.numel())):
            return result  # Each number weighed its own vector, or none is left.
        if found is None:
            if again := renormalized(func, args, kwargs, place, followed, result):
                note(result, again)
                return result
            follow_totals(args, kwargs, result)
            now = weighed(func, args, place, followed, result)
            now = now or put_back(func, followed, result)
            if now is None and (left := masked(func, args, kwargs, followed, result)):
                now = of_largest(left, followed, operands(args, kwargs)[place], result)
                if now is left:
                    mask = operands(args, kwargs)
                    now = of_values(left, followed, mask, shrinks=func in SHRINKS)
            if now is None and len(others) == 1:
                now = spread(func, args, place, followed, result)
            now = now or carried(func, args, kwargs, followed, result)
            note_reading(func, result, others)
            note(result, now.with_others(others) if len(others) > 1 else now)
            return result
        weighs = followed.is_picked and found.output.shape[-2] == 1
        seen = _seen(followed, found, result, kind="sum" if weighs else "softmax")
        for one in others:  # Its values may be another softmax, which meets values later.
            if one.source is not followed.source and not one.source.is_consumed:
                note(seen, one.altered_by("a product with another softmax", seen))
        return seen


def _in_pieces(
    func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], followed: Followed, result: Any
) -> Any:
    """Follow each piece of a softmax that is split, as head by head, or what is picked of it."""
    is_iterator = func is Tensor.__iter__
    some = list(result) if is_iterator or isinstance(result, (tuple, list)) else []
    are_tensors = bool(some) and all(isinstance(x, Tensor) for x in some)
    if not are_tensors:  # Code may keep such numbers.
        followed.source.root.give_out(func, args)
    if followed.altered or not are_tensors:
        return iter(some) if is_iterator else result
    indices = None if followed.unnormalized else pieces(func, args, kwargs, some)
    name = getattr(func, "__name__", str(func))
    is_picked = name in _PICKS
    for n, piece in enumerate(some):
        if is_picked and not piece.is_floating_point():
            continue
        found = None if indices is None else sliced(indices[n], followed, piece)
        altered = replace(followed.altered_by(name, piece), is_picked=is_picked, whole=followed)
        note(piece, found or altered)
    return iter(some) if is_iterator else result


def _seen(followed: Followed, found: Product, result: Tensor, kind: str = "softmax") -> Tensor:
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
        ranking=source.ranking,
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
    if call.output is output and (version_of(output) == version or _share(output, result)):
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
