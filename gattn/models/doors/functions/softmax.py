"""The door to attention that a model writes out: a softmax of scores, and its product with values.

A softmax is followed through functions that keep its numbers to the product that consumes it. Only
then is it known to be attention, with its values and its output.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any
from weakref import ref

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from gattn.errors import EditError
from gattn.models.doors.functions.carrying import carried
from gattn.models.doors.functions.following import (
    WITHOUT_NUMBERS,
    Followed,
    Source,
    all_found_in,
    forget_scores,
    found_in,
    known,
    note,
    with_edits,
)
from gattn.models.doors.functions.multihead import running
from gattn.models.doors.functions.products import Product, product
from gattn.models.doors.functions.raw_call import RawCall, alteration, handed, named, owner
from gattn.models.doors.functions.sums import spread, summed
from gattn.models.read.track.runs import runs
from gattn.models.watch.inside import inside


def see(
    mode: TorchFunctionMode, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Remember a softmax that a module of a watched model computes."""
    with inside():
        attention = func(*args, **kwargs)
    module = owner()
    scores = args[0] if args else kwargs.get("input")
    dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
    if module is None or not isinstance(scores, Tensor) or not isinstance(dim, int):
        return attention
    if scores.dim() < 2 or not isinstance(attention, Tensor):
        return attention
    number, key = runs.next_softmax(module), dim % scores.dim()
    source = Source(module, number, ref(attention), scores, key, running())
    if how := alteration(module, number):
        with inside():
            return _alone(source, attention, how)
    note(attention, Followed(source, scores, key))
    return attention


_ALTERED = {
    "scaled": "multiplies its attention with other numbers",
    "mixed": "mixes the attention of heads, or of several softmaxes,",
}


def _alone(source: Source, attention: Tensor, how: str) -> Tensor:
    """Show a softmax whose numbers are changed before they meet the values."""
    call = RawCall(
        source.module,
        "softmax",
        attention.new_zeros(*attention.shape[:-2], attention.shape[-1], 0),
        attention[..., :0],
        scores=source.scores,
        weights=attention,
        running=source.running,
    )
    found = handed(call)
    if found is None:
        return attention
    warnings.warn(
        f"{named(source.module)} {_ALTERED[how]} before it meets the values: what is shown and "
        "edited are the softmaxes.",
        stacklevel=4,
    )
    return attention if call.weights is None else call.weights


def follow(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Run a function, and see whether it takes a softmax's attention to its values."""
    place, followed = found_in(args, kwargs)
    if followed is None:
        return func(*args, **kwargs)
    are_edited = [one.source.is_edited for one in all_found_in(args, kwargs)]
    edited = with_edits(args, kwargs) if any(are_edited) else None
    if edited is not None or all(are_edited):
        args, kwargs = edited or (args, kwargs)
        return func(*args, **kwargs)
    with inside():
        others = all_found_in(args, kwargs)  # Before it may write into them.
        result = func(*args, **kwargs)
        if not isinstance(result, Tensor) or func in WITHOUT_NUMBERS:
            return result
        found = product(func, args, kwargs, place, followed, result)
        if found is None and (ended := summed(func, args, kwargs, followed, result)):
            return _seen(*ended, result, kind="sum")
        if found is None:
            made = len(others) == 1 and spread(func, args, followed, result)
            made = made or carried(func, args, kwargs, followed, result)
            note(result, made.with_others(others) if len(others) > 1 else made)
            return result
        return _seen(followed, found, result)


def _seen(followed: Followed, found: Product, result: Tensor, kind: str = "softmax") -> Tensor:
    source = followed.source
    is_torn = bool(source.met) and not source.met & {followed.columns, None}
    source.met.add(followed.columns)
    if is_torn:
        source.is_consumed = True
        handed(_torn(source, found))
        return result
    if isinstance(found.other, nn.Parameter):
        note(result, followed.altered_by("a product with a parameter", result))
        return result
    if source.is_consumed:
        return result
    source.is_consumed = True
    if followed.altered:
        for one in sorted((source, *followed.others), key=lambda one: one.number):
            handed(_altered(one, found, followed))
        return result
    call = RawCall(
        source.module,
        kind,
        found.value,
        found.output,
        scores=found.scores,
        weights=found.weights,
        dropout=followed.dropout,
        running=source.running,
        dropped=found.dropped,
        over_last=source.key == source.scores.dim() - 1,
    )
    changed = handed(call)
    forget_scores(source)
    if changed is None or call.output is found.output:
        return result
    source.is_edited = True
    if source.read_by:
        raise EditError(
            f"{named(source.module)} reads its attention by {source.read_by} before it "
            "meets the values, where an edit does not reach. Nothing was edited."
        )
    if call.weights is not None:
        followed.write(found, call.weights)
    return found.restored(call.output)


def _torn(source: Source, found: Product) -> RawCall:
    return RawCall(
        source.module,
        "softmax",
        found.value,
        found.output,
        scores=found.weights,
        running=source.running,
        altered="slices, which meet values in several products,",
    )


def _altered(source: Source, found: Product, followed: Followed) -> RawCall:
    scores = source.scores
    is_last = source.key == scores.dim() - 1
    is_alike = is_last and scores.shape[:-2] == found.output.shape[:-2]
    return RawCall(
        source.module,
        "softmax",
        found.value,
        found.output,
        scores=scores if is_alike else found.scores,
        running=source.running,
        altered=followed.altered,
        is_scaled=followed.is_scaled and not followed.others,
        number=source.number if is_alike and followed.is_mixture else None,
    )


def awaits_product() -> bool:
    """Return whether any softmax has not met its values yet."""
    return bool(known())
