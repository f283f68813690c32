"""Follows softmaxes that a model writes out: exponentials of scores, divided by their sums.

Whatever a model makes of exponentials is attention once it equals the softmax of their scores,
perhaps with a score of zero beside, which adds one to the sum and brings no value; so is attention
of which a mask takes some, once its rows are divided by what is left of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

from gattn.models.doors.functions.calling.multihead import running
from gattn.models.doors.functions.calling.owners import owner
from gattn.models.doors.functions.softmaxes.beside import note_divided, note_softmax
from gattn.models.doors.functions.softmaxes.changes.carrying import keeps_numbers
from gattn.models.doors.functions.softmaxes.changes.masking import left, lost
from gattn.models.doors.functions.softmaxes.follow.following import Followed, Late, note
from gattn.models.doors.functions.softmaxes.follow.operands import operands
from gattn.models.doors.functions.softmaxes.follow.origins import Origin, origin_of, remember
from gattn.models.doors.functions.softmaxes.follow.source import Source
from gattn.models.doors.functions.softmaxes.products import Product, product, summed_dim
from gattn.models.doors.functions.softmaxes.sums import SUMS
from gattn.models.read.track.runs import runs
from gattn.models.watch.inside import inside
from gattn.normalizers.base import widened

_F = nn.functional
Finish = Callable[[Any], None]
Begin = Callable[[tuple[Any, ...], Mapping[str, Any]], Finish | None]


_keys: WeakKeyDictionary[nn.Module, dict[int, int]] = WeakKeyDictionary()
"""Over which dimension each softmax of a module was taken, by its number."""


def _differs(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Finish | None:
    """Remember the scores from which a number per row is taken away, as their maximum is."""
    if len(args) != 2 or not all(isinstance(x, Tensor) for x in args):
        return None
    scores, less = args
    if scores.dim() < 2 or less.numel() >= scores.numel() or not scores.is_floating_point():
        return None
    shape = (1,) * (scores.dim() - less.dim()) + tuple(less.shape)
    one = [n for n, size in enumerate(shape) if size < scores.shape[n]]
    origin = Origin(scores, one[0] if len(one) == 1 else None)
    return lambda result: remember(result, origin)


def _differs_in_place(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Finish | None:
    if _differs(args, kwargs) is None:
        return None
    return _differs((args[0].clone(), *args[1:]), kwargs)


def _logarithm(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Finish | None:
    """Remember the scores of the logarithm of a softmax."""
    scores = args[0] if args else kwargs.get("input")
    dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
    if not isinstance(scores, Tensor) or not isinstance(dim, int) or scores.dim() < 2:
        return None
    origin = Origin(scores, dim % scores.dim())
    return lambda result: remember(result, origin)


def _exponential(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Finish | None:
    """Follow exponentials of scores."""
    given = args[0] if args else kwargs.get("input")
    if not isinstance(given, Tensor) or given.dim() < 2 or not given.is_floating_point():
        return None
    module = owner() if given.numel() and not given.is_meta else None
    if module is None:
        return None
    scores, key = origin_of(given)

    def finish(result: Any) -> None:
        with inside():
            number, most = runs.next_softmax(module), scores.dim() - 1
            source = Source(module, number, ref(result), scores, most, running(), is_written=True)
            note_softmax(source, given, result)
            followed = Followed(source, scores, -1 if key is None else key, unnormalized="exp")
            # Over which dimension NaN would be a softmax cannot be told, nor whether one key's
            # exponential, which is one if it was shifted, is divided by itself yet.
            is_told = scores.shape[-1] > 1 and bool(result.isfinite().all())
            is_told |= key is not None
            shift = _rounding(scores, key) if is_told and given is not scores else 0.0
            known = normalized(followed, result, shift) if is_told else None
            is_one = known is not None and key is None and scores.shape[known.key] == 1
            note(result, followed if known is None or is_one else known)

    return finish


def _exponential_in_place(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Finish | None:
    given = args[0]
    if origin_of(given)[0] is not given:
        return _exponential(args, kwargs)
    return _exponential((given.clone(),), kwargs)


BEGINNINGS: dict[Any, Begin] = {
    **dict.fromkeys((torch.exp, Tensor.exp), _exponential),
    **dict.fromkeys((torch.exp_, Tensor.exp_), _exponential_in_place),
    **dict.fromkeys((torch.sub, torch.subtract, Tensor.sub, Tensor.__sub__), _differs),
    **dict.fromkeys((Tensor.sub_, Tensor.__isub__), _differs_in_place),
    **dict.fromkeys((torch.log_softmax, _F.log_softmax, Tensor.log_softmax), _logarithm),
    torch.special.log_softmax: _logarithm,
}
"""Functions that a softmax is written with: what to do when they begin, and when they end."""


def made_of(
    func: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    place: int,
    followed: Followed,
    result: Tensor,
) -> Followed | tuple[Followed, Product] | None:
    """Say what a function made of numbers that are not divided by their sums yet.

    That may be attention, its product with values, or numbers to be followed further; None if it is
    nothing that can be read as such.
    """
    if followed.late is not None:
        return _ended(followed.late, result)
    if followed.source.is_consumed or followed.scores.is_meta:
        return None
    given = operands(args, kwargs)
    is_exponential = followed.unnormalized == "exp"
    dim = summed_dim(func, given, place)
    if dim >= 0:
        its = replace(followed, key=dim, unnormalized="")
        late = Late(func, args, kwargs, place, its)
        return replace(followed, late=late) if is_exponential else None
    if is_exponential and keeps_numbers(func, args):
        scores = followed.scores
        scores = scores if scores.shape == result.shape else func(scores, *args[1:], **kwargs)
        return replace(followed, scores=scores) if scores.shape == result.shape else None
    if (found := normalized(followed, result)) is not None:
        return found
    before = given[place]
    if before.shape == result.shape and before is not result:
        took = lost(func, [], before.detach(), result.detach())
        if took is not None:
            return left(func, followed, took, result)
    if followed.source.is_written and result.is_floating_point() and func not in SUMS:
        followed.source.read_by = getattr(func, "__name__", str(func))
    return None


def _rounding(scores: Tensor, key: int | None) -> float:
    """Return by how much the logarithms of sums that scores are shifted by may be rounded."""
    if key is None or not scores.shape[key]:
        return 0.0
    with _disable_current_modes():
        sums = widened(scores.detach()).logsumexp(key)
        return torch.finfo(scores.dtype).eps / 2 * float(_largest(sums))


def normalized(followed: Followed, result: Tensor, shift: float = 0.0) -> Followed | None:
    """Return what is known of a tensor if it is the softmax of what is followed.

    Its scores may be off by a `shift`.
    """
    scores = followed.scores
    if result.shape != scores.shape or not result.is_floating_point():
        return None
    with _disable_current_modes():  # What follows is no part of the model.
        return _as_softmax(followed, result, shift)


def _as_softmax(followed: Followed, result: Tensor, shift: float) -> Followed | None:
    scores = followed.scores
    now = widened(result.detach())
    dims = sorted(range(scores.dim()), key=lambda n: (scores.shape[n] > 1, n), reverse=True)
    if followed.key >= 0:
        dims = [followed.key]
    elif not bool(now.isfinite().all()):  # NaN is like any softmax: take that of a plain run.
        known = _keys.get(followed.source.module, {}).get(followed.source.number, dims[0])
        dims = [n for n in dims if n == known]
    for key in dims:
        sinks = None, torch.zeros_like(scores.narrow(key, 0, 1))
        apart = [_distance(_softmax(scores, one, key), now, key) for one in sinks]
        if min(apart) <= shift + tolerance(result, scores, keys=scores.shape[key]):
            sink, source = sinks[apart.index(min(apart))], followed.source
            _keys.setdefault(source.module, {})[source.number] = key
            if source.is_written:
                source.scores, source.key, source.attention = scores, key, ref(result)
                note_divided(source)
            return replace(followed, key=key, unnormalized="", took=None, dropped=sink)
    return None


def _distance(wanted: Tensor, found: Tensor, key: int) -> float:
    """Return how far sums of rows, or their numbers, are apart: a share of the largest number.

    The sums tell whether there is a sink, where the numbers are rounded.
    """
    is_known = wanted.isfinite() & found.isfinite()
    wanted, found = wanted.where(is_known, 0), found.where(is_known, 0)
    if not wanted.numel():
        return 0.0
    most = wanted.amax(key, keepdim=True)
    most = most.where(most > 0, 1)
    apart = ((wanted - found).abs() / most).amax()
    return float(torch.maximum(apart, (wanted.sum(key) - found.sum(key)).abs().amax()))


def _softmax(scores: Tensor, sink: Tensor | None, key: int) -> Tensor:
    """Compute a softmax, perhaps with a score of zero beside, which adds one to the sum."""
    given = widened(scores.detach())
    if sink is None:
        return given.softmax(key)
    return torch.cat((given, widened(sink)), key).softmax(key).narrow(key, 0, scores.shape[key])


def _ended(late: Late, result: Tensor) -> tuple[Followed, Product] | None:
    """Read a division of a product by the sums of its exponentials as attention times values."""
    source = late.followed.source
    if source.is_consumed or late.followed.scores.is_meta or not result.is_floating_point():
        return None
    args = operands(late.args, late.kwargs)
    found = product(late.func, late.args, late.kwargs, late.place, late.followed, result)
    if found is None or result.numel() != found.output.numel():
        return None
    if found.output.shape[-1] != found.value.shape[-1]:  # The sums are a column of the product.
        return None
    with _disable_current_modes():
        attention = found.scores.softmax(-1)
        wanted = widened(attention.detach()) @ widened(found.value.detach())
        if wanted.shape != found.output.shape:  # It was reshaped, not divided.
            return None
        size = attention.detach().to(wanted.dtype) @ widened(found.value.detach()).abs()
        keys = attention.shape[-1]
        least = tolerance(result, args[late.place], keys=keys) * float(_largest(size))
        if not _are_near(wanted, widened(found.output.detach()), least):
            return None
    source.scores, source.key = late.followed.scores, late.followed.key
    source.attention = ref(attention)
    written = replace(found, operand=attention, weights=attention, as_operand=lambda x: x)
    return late.followed, written


def tolerance(*tensors: Tensor, keys: int) -> float:
    """Return how far a softmax may be off: a share of its largest number.

    In half precision, exponentials, sums and quotients are rounded, by half an eps each; else so
    are steps of the sums, and numbers of about 1e-6 may be added to them against zeros.
    """
    most = max(torch.finfo(x.dtype).eps for x in tensors)
    least: float = torch.finfo(torch.float32).eps
    return 2 * most if most > least else least * (16 + keys**0.5)


def _largest(x: Tensor) -> Tensor:
    return x[x.isfinite()].abs().amax() if bool(x.isfinite().any()) else x.new_zeros(())


def _are_near(wanted: Tensor, found: Tensor, least: float) -> bool:
    """Return whether numbers are the same, but where they are not finite."""
    return bool((((wanted - found).abs() <= least) | ~wanted.isfinite() | ~found.isfinite()).all())
