"""Follows the attention of edges to where its messages are summed up: at its queries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from weakref import ref

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from gattn.errors import CaptureError
from gattn.models.doors.functions.calling.dropouts import dropped_by
from gattn.models.doors.functions.mode import watches
from gattn.models.doors.functions.softmaxes.follow.known import Following
from gattn.models.doors.functions.softmaxes.follow.operands import WITHOUT_NUMBERS, operands
from gattn.models.doors.graphs.frames import plain
from gattn.models.doors.graphs.landed import Wanted
from gattn.models.doors.graphs.observing import observer
from gattn.models.watch.taking_part import dropped

SUMS = frozenset(
    name + end for name in ("index_add", "scatter_add", "scatter_reduce") for end in ("", "_")
)
_ARGUMENTS = "input", "dim", "index", "source"
"""What functions that sum take, in order; scatter_add and scatter_reduce call the last src."""
DIVIDES = frozenset(("div", "div_", "divide", "true_divide", "__truediv__", "__itruediv__"))
_MULTIPLIES = frozenset(("mul", "multiply", "__mul__", "__rmul__", "mul_", "__imul__", "einsum"))


@dataclass(frozen=True, eq=False)
class Travel:
    """What is made of the attention of a module's edges, whose queries are `index`.

    If an index put it in another `order`, it has the numbers of these edges, in this order. It
    `is_listed` if only its sums tell where values go, and `is_shown` if some context looks at
    it. It `has_met` values if it was multiplied with other numbers, so that it may be messages,
    which `have_landed` once they were summed up. Where lengths of messages are `wanted`, these are
    the `messages` as they were when the attention met the values.
    """

    name: str
    index: Tensor
    is_listed: bool
    is_shown: bool
    has_met: bool = False
    have_landed: bool = False
    order: Tensor | None = None
    wanted: Wanted | None = None
    messages: Tensor | None = None

    @property
    def targets(self) -> Tensor:
        """The query of each of its edges, in the order that they have now."""
        return self.index if self.order is None else self.index[self.order]

    def reordered(self, by: Tensor) -> Travel:
        """Put its edges in the order of an index."""
        return replace(self, order=by if self.order is None else self.order[by])


_messages: Following[tuple[ref[Tensor], Travel]] = Following()


def follow(attention: Tensor, travel: Travel) -> None:
    """Follow the attention of edges, or what was made of it."""
    name, where = id(attention), _messages.known

    def forget(gone: ref[Tensor]) -> None:
        if name in where and where[name][0] is gone:
            del where[name]

    where[name] = ref(attention, forget), travel


def _see(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> Any:
    """Follow what a function made of attention, and check where it sums messages up."""
    _look(func, args, kwargs, result)
    return result


def _look(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> None:
    if not isinstance(result, Tensor) or func in WITHOUT_NUMBERS:
        return
    given = [x for x in operands(args, kwargs) if isinstance(x, Tensor)]
    found = next((travel for x in given if (travel := travel_of(x)) is not None), None)
    if found is None:
        return
    name = getattr(func, "__name__", "")
    if found.have_landed:
        if name in DIVIDES:
            _check_divisors(found, [x for x in given if travel_of(x) is None])
        return
    if found.is_shown and not found.has_met and (p := dropped_by(func, args, kwargs)):
        raise dropped("", found.name, p)
    if name in SUMS:
        if found.has_met and found.is_listed:
            _check(found, args, kwargs)
            if found.wanted is not None and (into := summed_by(args, kwargs)) is not None:
                found.wanted.land(into.summed, found.messages, found.order)
            follow(result, replace(found, have_landed=True, messages=None))
    elif result.is_floating_point() and len(found.index) in result.shape:
        has_met = name in _MULTIPLIES and sum(x.is_floating_point() for x in given) > 1
        with _disable_current_modes():  # These orders are none of the model's.
            if has_met and found.is_listed and (see := observer.get()) is not None:
                see.values(found.index, [x for x in given if travel_of(x) is None], found.order)
            if has_met and not found.has_met and found.wanted is not None:
                messages = found.wanted.met(func, args, kwargs, result, found.order)
                found = replace(found, messages=messages)
            by = _order(found, name, args)
            found = found if by is None else found.reordered(by)
        follow(result, replace(found, has_met=found.has_met or has_met))


def _order(travel: Travel, name: str, args: tuple[Any, ...]) -> Tensor | None:
    """Return the index that puts the edges of attention, or of messages, in another order."""
    if name == "__getitem__" and len(args) == 2:
        by = args[1]
    elif name == "index_select" and len(args) == 3 and args[1] == 0:
        by = args[2]
    else:
        return None
    count = len(travel.index)
    if not isinstance(by, Tensor) or by.dtype != torch.long or by.shape != (count,):
        return None
    # Along which dimension edges lie is known if only one has as many entries.
    are_edges = [size == count for size in args[0].shape] == [n == 0 for n in range(args[0].dim())]
    by = plain(by)
    is_each = are_edges and torch.equal(by.sort().values, torch.arange(count, device=by.device))
    return by.clone() if is_each else None


def _check_divisors(travel: Travel, some: Sequence[Tensor]) -> None:
    """Refuse messages that are divided by the number of their node's edges."""
    degree = travel.index.bincount()
    for x in some:
        if x.dim() and len(x) >= len(degree) and x.shape[1:].numel() == 1:
            counts = x.detach().flatten()[: len(degree)]
            if torch.equal(counts, degree.clamp(min=1).to(x.dtype)) and bool((degree > 1).any()):
                raise _no_sum(travel)


def _no_sum(travel: Travel) -> CaptureError:
    return CaptureError(
        f"The attention of {travel.name} cannot be read: its messages are not added up at each "
        "node, but averaged, or the largest is taken, so that an edge without attention still "
        "counts, and no edit is the removal of an edge. Add the messages up."
    )


@dataclass(frozen=True, eq=False)
class SummedBy:
    """What is summed up, along which dimension, and the node of each of its slices there.

    The nodes are None if each column has its own.
    """

    summed: Any
    dim: int
    nodes: Tensor | None


def summed_by(args: Sequence[Any], kwargs: Mapping[str, Any]) -> SummedBy | None:
    """Read the arguments of a sum by an index; None if they are no such."""
    named = {**dict(zip(_ARGUMENTS, args, strict=False)), **kwargs}
    out, dim, index = (named.get(name) for name in _ARGUMENTS[:3])
    summed = named.get("source", named.get("src"))
    if not isinstance(index, Tensor) or not isinstance(dim, int) or not isinstance(out, Tensor):
        return None
    dim, nodes = dim % max(out.dim(), 1), plain(index)
    if nodes.dim() < 2:
        return SummedBy(summed, dim, nodes)
    columns = nodes.movedim(dim, 0).flatten(1)
    first = columns[:, :1]
    are_alike = torch.equal(columns, first.expand_as(columns))
    return SummedBy(summed, dim, first.flatten() if are_alike else None)


def travel_of(x: Tensor) -> Travel | None:
    """Return what is known of the attention that a tensor was made of; None if nothing is."""
    entry = _messages.known.get(id(x))
    return entry[1] if entry is not None and entry[0]() is x else None


def _check(travel: Travel, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Refuse messages that are summed up elsewhere than at the queries of their attention."""
    reduces = kwargs.get("reduce", args[4] if len(args) > 4 else "sum")
    if reduces != "sum" and isinstance(reduces, str):
        raise _no_sum(travel)
    by = summed_by(args, kwargs)
    if by is None or (by.nodes is not None and by.nodes.shape != travel.index.shape):
        return
    if by.nodes is None or not torch.equal(by.nodes, travel.targets):
        raise CaptureError(
            f"The attention of {travel.name} cannot be read: its softmax is over the edges of one "
            "node, and the messages along these edges are summed up at others, so that no node "
            "shares its attention out over the nodes it reads; or the edges were put in another "
            "order, and not by an index. Take the softmax over the edges into each node at which "
            "messages are summed up, and reorder edges by an index of their rows, as in "
            "alpha[order]."
        )


watches[_messages] = _see
