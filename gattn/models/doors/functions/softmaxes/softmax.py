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

from gattn.models.doors.functions.calling.altered import ANOTHER_SOFTMAX
from gattn.models.doors.functions.calling.handing import (
    alteration,
    handed,
)
from gattn.models.doors.functions.calling.memory import memory_of, share
from gattn.models.doors.functions.calling.multihead import running
from gattn.models.doors.functions.calling.owners import owner
from gattn.models.doors.functions.softmaxes import in_place
from gattn.models.doors.functions.softmaxes.beside import Same, note_softmax
from gattn.models.doors.functions.softmaxes.changes.carrying import carried
from gattn.models.doors.functions.softmaxes.changes.masking import SHRINKS, masked
from gattn.models.doors.functions.softmaxes.changes.padding import padded
from gattn.models.doors.functions.softmaxes.changes.slicing import pieces, sliced
from gattn.models.doors.functions.softmaxes.early import (
    as_first,
    begun_early,
    first_of,
    without_values,
)
from gattn.models.doors.functions.softmaxes.follow.edited import with_edits
from gattn.models.doors.functions.softmaxes.follow.following import (
    Followed,
    all_found_in,
    found_in,
    is_followed,
    note,
    note_reading,
)
from gattn.models.doors.functions.softmaxes.follow.learned import note_learned
from gattn.models.doors.functions.softmaxes.follow.operands import (
    OF_THE_FIRST,
    WITHOUT_NUMBERS,
    asks_of_form,
    operands,
)
from gattn.models.doors.functions.softmaxes.follow.source import Source, not_reading
from gattn.models.doors.functions.softmaxes.meeting import meet
from gattn.models.doors.functions.softmaxes.products import product
from gattn.models.doors.functions.softmaxes.ranks import largest, of_largest, of_values, put_back
from gattn.models.doors.functions.softmaxes.renormalized import (
    follow_totals,
    is_total,
    note_total,
    renormalized,
)
from gattn.models.doors.functions.softmaxes.sums import SUMS, spread, summed, weighed
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
        if isinstance(out, Tensor) and isinstance(scores, Tensor) and share(out, scores):
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
        others = all_found_in(args, kwargs)  # Before it may write into them.
        put = in_place.begin(func, args, kwargs)
        with by_model():
            result = func(*args, **kwargs)
        if put is not None and put():
            return result
        if func in WITHOUT_NUMBERS or (func in OF_THE_FIRST and place):
            return result
        is_view = _is_view(result, operands(args, kwargs)[place])
        if not is_view:
            for one in others:
                one.read_view()
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
                return meet(*made, result)
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
            return meet(*ended, result, kind="sum")
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
            now = now or padded(func, args, kwargs, followed, result)
            with not_reading(followed.source, if_so=is_view):
                now = now or carried(func, args, kwargs, followed, result)
            now = replace(now, viewed=_name(func) if is_view and now.altered else "")
            note_reading(func, result, others)
            note(result, now.with_others(others) if len(others) > 1 else now)
            return result
        weighs = followed.is_picked and found.output.shape[-2] == 1
        seen = meet(followed, found, result, kind="sum" if weighs else "softmax")
        for one in others:  # Its values may be another softmax, which meets values later.
            if one.source is not followed.source and not one.source.is_consumed:
                note(seen, one.altered_by(ANOTHER_SOFTMAX, seen))
        return seen


def _name(func: Any) -> str:
    return getattr(func, "__name__", str(func))


def _is_view(made: Any, of: Any) -> bool:
    """Return whether what a function gave lies in the memory of a tensor that it took."""
    some = made if isinstance(made, (tuple, list)) else (made,)
    memory = memory_of(of)
    are_others = bool(some) and all(isinstance(x, Tensor) and x is not of for x in some)
    return are_others and memory is not None and all(memory_of(x) == memory for x in some)


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
    name = _name(func)
    is_picked = name in _PICKS
    for n, piece in enumerate(some):
        if is_picked and not piece.is_floating_point():
            continue
        found = None if indices is None else sliced(indices[n], followed, piece)
        if found is None:
            is_view = _is_view(piece, operands(args, kwargs)[0])
            with not_reading(followed.source, if_so=is_view):
                altered = followed.altered_by(name, piece)
            viewed = name if is_view else ""
            found = replace(altered, is_picked=is_picked, whole=followed, viewed=viewed)
        note(piece, found)
    return iter(some) if is_iterator else result
