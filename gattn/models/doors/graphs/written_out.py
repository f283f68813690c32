"""The door to softmaxes over edges that a layer writes out: exponentials over their sums per node.

Exponentials of scores are followed. Once they were summed up by a list of nodes, whatever is made
of them that equals the softmax over each node's edges is attention over these, seen like
torch-geometric's softmax.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakSet, ref

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.weak import WeakTensorKeyDictionary

from gattn.errors import CaptureError
from gattn.models.doors.functions.calling.memory import version_of
from gattn.models.doors.functions.calling.owners import owner
from gattn.models.doors.functions.mode import starts, watches
from gattn.models.doors.functions.softmaxes.changes.carrying import keeps_numbers
from gattn.models.doors.functions.softmaxes.follow.known import Following
from gattn.models.doors.functions.softmaxes.follow.operands import operands
from gattn.models.doors.functions.softmaxes.written import tolerance
from gattn.models.doors.graphs.landing import (
    DIVIDES,
    SUMS,
    Travel,
    follow,
    summed_by,
    travel_of,
)
from gattn.models.doors.graphs.observing import observer
from gattn.models.doors.graphs.segments import is_running, seen
from gattn.models.watch.calls import Calls
from gattn.models.watch.contexts import present
from gattn.models.watch.inside import inside
from gattn.normalizers.base import widened

_MOST_DIMS = 4


@dataclass(frozen=True, eq=False)
class _Sum:
    """Exponentials summed up: those of each node, which `nodes` lists, of so many."""

    dim: int
    nodes: Tensor
    count: int


@dataclass(frozen=True, eq=False)
class _Shown:
    """Attention that was seen, as the model continues with it; None if no edit changed it.

    A gradient would keep alive what it is made of.
    """

    edited: Tensor | None
    travel: Travel | None
    has_gradient: bool


@dataclass(frozen=True, eq=False)
class _Exponentials:
    """Exponentials of scores, which may be those before a number per node was taken away.

    Once attention was made of them, it is `shown`; a model may compute it again.
    """

    scores: tuple[Tensor, ...]
    version: int
    sums: list[_Sum] = field(default_factory=list)
    shown: list[_Shown] = field(default_factory=list)


_known: Following[tuple[ref[Tensor], _Exponentials]] = Following()
_shifted: Any = WeakTensorKeyDictionary()
_attending: WeakSet[nn.Module] = WeakSet()
"""The modules that were seen to attend so: NaN is like any softmax, and shows none by itself."""


def carry(before: Tensor, after: Tensor) -> None:
    """Follow a copy of a tensor, too, in which a proof only replaced NaN."""
    entry = _known.known.get(id(before))
    if entry is not None and entry[0]() is before:
        _note(after, replace(entry[1], version=version_of(after)))


def _note(tensor: Tensor, found: _Exponentials) -> None:
    name, where = id(tensor), _known.known

    def forget(gone: ref[Tensor]) -> None:
        if name in where and where[name][0] is gone:
            del where[name]

    where[name] = ref(tensor, forget), found


def _shift(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> None:
    """Remember the scores from which a number per node is taken away, as their maximum is."""
    if len(args) == 2 and all(isinstance(x, Tensor) for x in args) and isinstance(result, Tensor):
        scores = args[0]
        is_new = result is not scores and result.shape == scores.shape
        if is_new and 0 < scores.dim() <= _MOST_DIMS and scores.is_floating_point():
            _shifted[result] = scores, version_of(scores)


def _exponential(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> None:
    """Follow exponentials of scores."""
    given = args[0] if args else kwargs.get("input")
    if not isinstance(given, Tensor) or not 0 < given.dim() <= _MOST_DIMS:
        return
    if not isinstance(result, Tensor) or is_running() or owner() is None:
        return
    entry = _known.known.get(id(result))
    if entry is not None and entry[0]() is result and entry[1].version == version_of(result):
        return
    before, version = _shifted.get(given, (None, 0))
    scores = given if given is not result else _log(result)
    some = (scores,) if before is None or version_of(before) != version else (before, scores)
    _note(result, _Exponentials(some, version_of(result)))


def _log(exponentials: Tensor) -> Tensor:
    """Find scores again that were overwritten, with their gradients."""
    known = exponentials > 0
    return torch.where(known, torch.where(known, exponentials, 1).log(), -torch.inf)


def _see(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> Any:
    """Look at what a function made of exponentials; return attention, edited, in its place."""
    place, found = _found_in(args, kwargs)
    if found is None or not isinstance(result, Tensor) or not result.is_floating_point():
        return result
    name = getattr(func, "__name__", "")
    given = operands(args, kwargs)[place]
    if name in SUMS:
        by = summed_by(args, kwargs)
        if by is not None and by.summed is given and by.nodes is not None:
            with _disable_current_modes():
                found.sums.append(_Sum(by.dim, by.nodes.clone(), result.shape[by.dim]))
        return result
    if given is not result and keeps_numbers(func, args):
        scores = tuple(func(x, *args[1:], **kwargs) for x in found.scores)
        _note(result, replace(found, scores=scores, version=version_of(result)))
        return result
    if result.shape != found.scores[0].shape or not found.sums:
        return result
    if found.shown and (given is result or version_of(given) != found.version):
        return result  # It became attention itself.
    running = [calls for calls, _ in present() if calls.depth]
    module = owner()
    if not running or module is None:
        return result
    with inside(), _disable_current_modes():
        known = _known_softmax(found, result, is_known=module in _attending)
    if known is not None:
        _attending.add(module)
        if found.shown:
            return _put_in(result, given, _again(found.shown[0], result, module))
        attention = _attended(running, known, result)
        is_edited = attention is not result
        with inside(), _disable_current_modes():
            edited = attention.detach().clone() if is_edited else None
        found.shown.append(_Shown(edited, travel_of(attention), attention.requires_grad))
        return _put_in(result, given, attention)
    if name in DIVIDES and module in _attending and not (found.shown or observer.get()):
        raise CaptureError(
            f"The attention of {type(module).__name__} cannot be read: it divided exponentials of "
            "scores over each node's edges by their sums before, and now by other numbers, such "
            "as sums so small that what is added to them counts. Take the maximum of each node's "
            "scores away from them first."
        )
    return result


def _found_in(
    args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[int, _Exponentials] | tuple[int, None]:
    for place, one in enumerate(operands(args, kwargs)):
        entry = _known.known.get(id(one))
        if entry is not None and entry[0]() is one:
            return place, entry[1]
    return 0, None


def _known_softmax(
    found: _Exponentials, result: Tensor, *, is_known: bool
) -> tuple[Tensor, _Sum] | None:
    """Return the scores whose softmax over the edges of each node a tensor is, and these nodes."""
    now = widened(result.detach())
    for one in found.sums:
        for scores in found.scores:
            wanted = _softmax(widened(scores.detach()), one)
            is_told = wanted.isfinite() & now.isfinite()
            if not (bool(is_told.all()) or is_known):
                continue
            apart = ((wanted - now).abs() / _largest(wanted, one)).where(is_told, 0)
            most = tolerance(result, scores, keys=len(one.nodes))
            if not apart.numel() or float(apart.amax()) <= most:
                return scores, one
    return None


def _softmax(scores: Tensor, by: _Sum) -> Tensor:
    """Compute the softmax over each node's edges, of those whose scores are numbers."""
    scores = torch.where(scores.isnan(), -torch.inf, scores)
    most = _by_node(scores, by, "amax").index_select(by.dim, by.nodes)
    shifted = (scores - torch.where(most.isfinite(), most, 0)).exp()
    return shifted / _by_node(shifted, by, "sum").index_select(by.dim, by.nodes)


def _largest(attention: Tensor, by: _Sum) -> Tensor:
    found = _by_node(attention.nan_to_num(0.0), by, "amax").index_select(by.dim, by.nodes)
    return torch.where(found > 0, found, 1)


def _by_node(values: Tensor, by: _Sum, how: str) -> Tensor:
    shape = list(values.shape)
    shape[by.dim] = by.count
    at = by.nodes.reshape([-1 if n == by.dim else 1 for n in range(values.dim())])
    start = values.new_full(shape, -torch.inf if how == "amax" else 0.0)
    return start.scatter_reduce(by.dim, at.expand(values.shape), values, how)


def _attended(running: list[Calls], known: tuple[Tensor, _Sum], attention: Tensor) -> Tensor:
    scores, by = known
    frame = sys._getframe(1)
    return seen(running, frame, scores, attention, by.nodes, by.count, by.dim)


def _again(shown: _Shown, result: Tensor, module: nn.Module) -> Tensor:
    """Return attention that was seen before, where a model computes it once more."""
    attention = result if shown.edited is None else shown.edited.clone()
    if shown.edited is not None and shown.has_gradient:
        raise CaptureError(
            f"{type(module).__name__} computes its attention twice, and an edit of it has a "
            "gradient, which would reach the first alone: compute it once, and use it twice."
        )
    if shown.travel is not None:
        follow(attention, shown.travel)
    return attention


def _put_in(result: Tensor, given: Tensor, edited: Tensor) -> Tensor:
    """Return edited attention; where exponentials became attention in place, put it there, too."""
    if edited is result or result is not given:
        return edited
    with inside():
        return result.copy_(edited)


def _every(names: tuple[str, ...]) -> Iterator[Any]:
    for of in (torch, Tensor):
        yield from (getattr(of, name) for name in names if hasattr(of, name))


starts.update(dict.fromkeys(_every(("exp", "exp_")), _exponential))
starts.update(dict.fromkeys(_every(("sub", "subtract", "__sub__")), _shift))
watches[_known] = _see
