"""The products that take attention to its values, in one form: (..., queries, keys) @ values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

from gattn.models.doors.functions.calling.arranging import is_turned
from gattn.models.doors.functions.softmaxes.einsum_labels import equation_of, labels_of
from gattn.models.doors.functions.softmaxes.follow.following import Followed
from gattn.models.doors.functions.softmaxes.follow.learned import is_learned
from gattn.models.doors.functions.softmaxes.follow.operands import operands

_F = nn.functional
_ADDS = frozenset(
    getattr(of, name)
    for of in (torch, Tensor)
    for name in ("addmm", "baddbmm", "addmm_", "baddbmm_")
    if hasattr(of, name)
)
_MATMULS = frozenset(
    (
        torch.matmul,
        torch.bmm,
        torch.mm,
        torch.linalg.matmul,
        Tensor.matmul,
        Tensor.bmm,
        Tensor.mm,
        Tensor.__matmul__,
    )
)


@dataclass(eq=False)
class Product:
    """A product of attention and values.

    `weights` and `scores` are (..., queries, keys), `value` (..., keys, dim), and `output` (...,
    queries, dim); `operand` and `other` are the tensors that the function was given. `dropped` are
    the scores (..., queries, n) of slots that took part in the softmax, and bring no value.
    """

    operand: Tensor
    other: Tensor
    scores: Tensor
    weights: Tensor
    value: Tensor
    output: Tensor
    restored: Callable[[Tensor], Tensor]
    as_operand: Callable[[Tensor], Tensor]
    dropped: Tensor | None = None


def product(
    func: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    place: int,
    followed: Followed,
    result: Tensor,
) -> Product | None:
    """Read a function as the product of attention and values, if it is one."""
    given = operands(args, kwargs)
    if followed.altered:  # Its scores may have another shape, and nobody reads them.
        key = summed_dim(func, given, place)
        if followed.is_mixture and (followed.folded or key != followed.key):
            return None
        followed = replace(followed, scores=given[place], key=key, dropped=None)
    if func in _MATMULS and len(given) > 1 and min(x.dim() for x in given[:2]) > 1:
        return _matmul(given[0], given[1], place, followed, result)
    if func is torch.einsum and isinstance(given[0], str) and len(given) == 3:
        return einsum_product(given[0], given[place], given[3 - place], place, followed, result)
    if func is torch.einsum and isinstance(given[0], str) and not followed.altered:
        return _of_several(given[0], given[1:], place - 1, followed, result)
    if (equation := equation_of(func, args, kwargs)) is not None:
        ends = given[place], given[1 - place]
        return einsum_product(equation, *ends, place + 1, followed, result)
    if func in _ADDS and place > 0 and not func.__name__.endswith("_"):
        return _added(args, kwargs, place, followed, result)
    if func is _F.linear and place < 2:
        return _linear(args, kwargs, place, followed, result)
    return None


def _added(
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    place: int,
    followed: Followed,
    result: Tensor,
) -> Product | None:
    """Read a product that is scaled, and added to something, such as the residual stream."""
    names = ("input", "batch1", "batch2", "mat1", "mat2", "beta", "alpha")
    if len(args) != 3 or not set(kwargs) <= set(names):
        return None
    beta, alpha = (kwargs.get(name, 1) for name in ("beta", "alpha"))
    if alpha == 0:
        return None
    bare = result if beta == 0 else result - beta * args[0]
    found = _matmul(args[1], args[2], place - 1, followed, bare / alpha)
    if found is None:
        return None
    before, turned = found.output, found.restored

    def restored(x: Tensor) -> Tensor:
        now = turned(x) * alpha
        now = now if beta == 0 else now + beta * args[0]
        same = result.detach() + (now - now.detach()) if now.requires_grad else result
        return torch.where(turned(x == before), same, now)  # What is not edited stays as it is.

    return replace(found, restored=restored)


def _of_several(
    equation: str, given: list[Any], place: int, followed: Followed, result: Tensor
) -> Product | None:
    """Read an einsum of attention and several others, whose product are the values."""
    left, arrow, out = equation.replace(" ", "").partition("->")
    labels, others = left.split(","), [x for n, x in enumerate(given) if n != place]
    is_plain = arrow and "..." not in equation and len(labels) == len(given)
    if not is_plain or all(is_learned(x) for x in others):
        return None
    mine = labels.pop(place)
    kept = "".join(n for n in dict.fromkeys("".join(labels)) if n in mine + out)
    with _disable_current_modes():  # What follows is no part of the model.
        value = torch.einsum(f"{','.join(labels)}->{kept}", *others)
    return einsum_product(f"{mine},{kept}->{out}", given[place], value, 1, followed, result)


def _linear(
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    place: int,
    followed: Followed,
    result: Tensor,
) -> Product | None:
    """Read a linear function whose weight is no parameter as the product that it is."""
    if len(args) != 2 or kwargs or is_learned(args[1]) or args[1].dim() < 2:
        return None
    if place == 0:
        found = _matmul(args[0], args[1].mT, 0, followed, result)
        return None if found is None else replace(found, other=args[1])
    dropped = None if followed.dropped is None else followed.dropped.mT
    dims = followed.scores.dim()
    key = {dims - 1: dims - 2, dims - 2: dims - 1}.get(followed.key, -1)
    turned = replace(followed, scores=followed.scores.mT, key=key, dropped=dropped)
    found = _matmul(args[0], args[1].mT, 1, turned, result)
    if found is None:
        return None
    as_operand = found.as_operand
    return replace(found, operand=args[1], as_operand=lambda x: as_operand(x).mT)


def summed_dim(func: Any, given: list[Any], place: int) -> int:
    """Return the dimension of an operand over which a product sums; -1 if that is not one."""
    if func in _ADDS and place > 0:
        place -= 1
        last = int(given[place + 1].dim()) - 1
        return last if place == 0 else last - 1
    if func is _F.linear and place < 2 and not is_learned(given[1]):
        return int(given[place].dim()) - 1
    if func in _MATMULS:
        last = int(given[place].dim()) - 1
        return last if place == 0 else last - 1
    if (equation := equation_of(func, tuple(given), {})) is not None:
        given, place = [equation, *given], place + 1
    elif func is not torch.einsum or not isinstance(given[0], str) or len(given) != 3:
        return -1
    labels = labels_of(given[0], given[1], given[2])
    if labels is None:
        return -1
    mine, its = (labels[0], labels[1]) if place == 1 else (labels[1], labels[0])
    found = [n for n, one in enumerate(mine) if one in its and one not in labels[2]]
    return found[0] if len(found) == 1 else -1


def _matmul(a: Tensor, b: Tensor, place: int, followed: Followed, result: Tensor) -> Product | None:
    operand, other = (a, b) if place == 0 else (b, a)
    last = operand.dim() - 1
    if followed.key != (last if place == 0 else last - 1) or operand.layout != torch.strided:
        return None

    def turned(x: Tensor) -> Tensor:
        return x if place == 0 else x.mT

    rank = result.dim()

    def padded(x: Tensor) -> Tensor:
        return turned(x)[(None,) * (rank - x.dim())]

    weights, scores, value = (padded(x) for x in (operand, followed.scores, other))
    dropped = None if followed.dropped is None else padded(followed.dropped)

    def as_operand(x: Tensor) -> Tensor:
        return turned(x).reshape(operand.shape)

    output = turned(result)
    found = Product(operand, other, scores, weights, value, output, turned, as_operand, dropped)
    return _with_queries_last(_with_heads(found, followed), followed.source.module)


def _with_heads(found: Product, followed: Followed) -> Product:
    """Unfold rows that the softmax had as heads and queries, as where heads share their keys."""
    before, rows = followed.source.scores.shape, found.weights.shape
    is_last = followed.source.key == len(before) - 1 and not followed.altered
    if not is_last or (*before[:-3], before[-3:-1].numel(), before[-1]) != tuple(rows):
        return found
    if len(before) < 3 or 1 in before[-3:-1]:
        return found
    sizes = before[-3:-1]
    unfolded = _arranged(found, lambda x: x.unflatten(-2, sizes), lambda x: x.flatten(-3, -2))
    return replace(unfolded, value=found.value.unsqueeze(-3))


def _with_queries_last(found: Product, module: nn.Module) -> Product:
    """Exchange rows and a leading dimension in which no values differ, if that has the queries.

    Both may be heads. The one with as many as there are keys are queries; else heads come first,
    unless a proof finds that it is the other way.
    """
    *lead, rows, keys = found.weights.shape
    shared = found.value.shape[:-2]
    some = [n for n, size in enumerate(lead) if size > 1 == shared[n]]
    alike = [n for n in some if lead[n] == keys != rows]
    some = alike if len(alike) == 1 else some
    if rows == 1 or len(some) != 1 or (len(alike) == 1) == is_turned(module):
        return found

    def exchanged(x: Tensor) -> Tensor:
        return x.transpose(some[0], -2)

    return _arranged(found, exchanged, exchanged)


def _arranged(
    found: Product, there: Callable[[Tensor], Tensor], back: Callable[[Tensor], Tensor]
) -> Product:
    """Arrange the rows of a product in another way."""
    restored, as_operand = found.restored, found.as_operand
    return replace(
        found,
        scores=there(found.scores),
        weights=there(found.weights),
        output=there(found.output),
        restored=lambda x: restored(back(x)),
        as_operand=lambda x: as_operand(back(x)),
        dropped=None if found.dropped is None else there(found.dropped),
    )


def _of_all_rows(
    weights: tuple[Sequence[str], Tensor],
    values: tuple[Sequence[str], Tensor],
    given: tuple[Sequence[str], Tensor],
    summed: set[str],
    followed: Followed,
) -> Product | None:
    """Read an einsum that also sums rows or columns up, as where queries are pooled."""
    (mine, operand), (its, other), (out, result) = weights, values, given
    columns = [n for n, one in enumerate(its) if one in summed and one not in mine]
    kept = [one for n, one in enumerate(its) if n not in columns]
    rows = [n for n in mine if n in summed]
    equation = f"{''.join(mine)},{''.join(kept)}->{''.join((*out, *rows))}"
    dims = tuple(range(-len(rows), 0))
    with _disable_current_modes():  # What follows is no part of the model.
        value = other.sum(columns) if columns else other
        if all(operand.shape[mine.index(n)] == 1 for n in rows):
            bare = result[(..., *[None] * len(rows))]
        else:
            bare = torch.einsum(equation, operand, value)
    found = einsum_product(equation, operand, value, 1, followed, bare)
    if found is None:
        return None
    before, back = bare.clone(), found.restored

    def restored(x: Tensor) -> Tensor:
        apart = back(x)
        now = apart.sum(dims) if dims else apart
        same = result.detach() + (now - now.detach()) if now.requires_grad else result
        is_same = apart == before
        return torch.where(is_same.all(dims) if dims else is_same, same, now)

    return replace(found, other=other, restored=restored)


def einsum_product(
    equation: str, operand: Tensor, other: Tensor, place: int, followed: Followed, result: Tensor
) -> Product | None:
    """Read an einsum as the product of attention and values, if it is one."""
    labels = labels_of(equation, *((operand, other) if place == 1 else (other, operand)))
    if labels is None or len(labels[2]) != result.dim():
        return None
    first, second, out = labels
    mine, its = (first, second) if place == 1 else (second, first)
    key = mine[followed.key]
    summed = {n for n in (*mine, *its) if n not in out} - {key}
    if key not in its or key in out or (summed and followed.altered):
        return None
    if summed:
        ends = (mine, operand), (its, other), (out, result)
        return _of_all_rows(*ends, summed, followed)
    rows = [n for n in mine if n in out and n not in its]
    query = rows[-1:]
    lead = [n for n in mine if n != key and n not in query]
    columns = [n for n in its if n in out and n not in mine]
    all_sizes = dict(zip(mine + its, (*operand.shape, *other.shape), strict=True))

    def arranged(x: Tensor, own: str, last: tuple[list[str], list[str]]) -> Tensor:
        order = [n for n in (*lead, *last[0], *last[1]) if n in own]
        sizes = all_sizes | dict(zip(own, x.shape, strict=True))
        x = x.permute(tuple(own.index(n) for n in order))
        shape = [sizes[n] if n in own else 1 for n in lead]
        ends = [torch.Size([sizes[n] for n in some]).numel() for some in last]
        return x.reshape(*shape, *ends)

    def back(x: Tensor, own: str, last: tuple[list[str], list[str]]) -> Tensor:
        order = [*lead, *last[0], *last[1]]
        x = x.reshape(tuple(all_sizes[n] for n in order))
        return x.permute(tuple(order.index(n) for n in own))

    of_weights, of_output = (query, [key]), (query, columns)
    found = Product(
        operand,
        other,
        arranged(followed.scores, mine, of_weights),
        arranged(operand, mine, of_weights),
        arranged(other, its, ([key], columns)),
        arranged(result, out, of_output),
        lambda x: back(x, out, of_output),
        lambda x: back(x, mine, of_weights),
        None if followed.dropped is None else arranged(followed.dropped, mine, of_weights),
    )
    return _with_queries_last(found, followed.source.module)
