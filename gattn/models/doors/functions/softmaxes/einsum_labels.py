"""Gives the dimensions of an einsum letters, and says other products as einsums."""

from __future__ import annotations

from collections.abc import Mapping
from string import ascii_lowercase, ascii_uppercase
from typing import Any

import torch
from torch import Tensor

_INNER = frozenset((torch.inner, Tensor.inner))
_VECTORS = frozenset((torch.mv, Tensor.mv))
_DOTS = frozenset((torch.dot, Tensor.dot, torch.vdot, Tensor.vdot))
_OF_VECTORS = {(1, 1): "i,i->", (1, 2): "i,ij->j", (2, 1): "ij,j->i"}
_MATMULS = frozenset((torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.linalg.matmul))
_CHAINS = frozenset((torch.linalg.multi_dot, torch.chain_matmul))


def equation_of(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
    """Say a product of two tensors, which sums over one dimension, as an einsum; None if none."""
    if func in _CHAINS:
        given = args[0] if len(args) == 1 and isinstance(args[0], (list, tuple)) else args
        return "ij,jk->ik" if [x.dim() for x in given] == [2, 2] else None
    if func in _VECTORS:
        return "ij,j->i"
    if func in _DOTS:
        return "i,i->"
    if func in _MATMULS and len(args) == 2:
        return _OF_VECTORS.get((args[0].dim(), args[1].dim()))
    if func in _INNER:
        return _over(args, -1, -1)
    if func is not torch.tensordot or kwargs.get("out") is not None:
        return None
    dims = args[2] if len(args) > 2 else kwargs.get("dims", 2)
    if isinstance(dims, (list, tuple)) and len(dims) == 2:
        one, other = dims
        return _over(args, one[0], other[0]) if len(one) == len(other) == 1 else None
    return _over(args, -1, 0) if dims == 1 else None


def _over(given: tuple[Any, ...], one: int, other: int) -> str | None:
    if len(given) < 2 or 0 in (given[0].dim(), given[1].dim()):
        return None
    first, second = (
        list(letters[: x.dim()])
        for letters, x in zip((ascii_lowercase, ascii_uppercase), given, strict=False)
    )
    second[other] = first[one]
    out = [n for n in first + second if n != first[one]]
    return f"{''.join(first)},{''.join(second)}->{''.join(out)}"


def labels_of(equation: str, one: Tensor, other: Tensor) -> tuple[str, str, str] | None:
    """Give each dimension of an einsum's two operands and its result a letter."""
    left, arrow, out = equation.replace(" ", "").partition("->")
    given = left.split(",")
    if len(given) != 2:
        return None
    if not arrow:  # The letters that come once, in order, are kept.
        letters = left.replace("...", "").replace(",", "")
        out = "..." * ("..." in left) + "".join(n for n in sorted(letters) if letters.count(n) == 1)
    unused = [chr(n) for n in range(0x391, 0x3A9) if n != 0x3A2]
    most = 0
    found = []
    for labels, x in zip(given, (one, other), strict=True):
        more = x.dim() - len(labels.replace("...", ""))
        most = max(most, more if "..." in labels else 0)
        found.append(labels.replace("...", "".join(unused[:more][::-1])))
    found.append(out.replace("...", "".join(unused[:most][::-1])))
    if any(len(set(labels)) != len(labels) for labels in found):
        return None
    return found[0], found[1], found[2]
