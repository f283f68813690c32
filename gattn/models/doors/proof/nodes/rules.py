"""The kernels that keep the rows of what they take: row n of a result comes from rows n alone."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gattn.models.doors.proof.probing.one_run.picking import tensors_in
from gattn.models.doors.proof.probing.one_run.state import place_of

Rows = tuple[Tensor, ...]
_POINTWISE = frozenset(
    ("clone", "_to_copy", "copy_", "detach", "alias", "lift_fresh", "contiguous")
)
_POINTWISE |= {"native_dropout", "bernoulli", "_prelu_kernel", "detach_"}
_VIEWS = frozenset(("view", "_unsafe_view", "_reshape_alias", "unsqueeze", "squeeze"))
_PARTS = frozenset(("split", "split_with_sizes", "unbind", "select"))
_NORMS = frozenset(("native_batch_norm", "native_group_norm", "cudnn_batch_norm"))
_NORMS |= {"_native_batch_norm_legit", "_native_batch_norm_legit_no_training"}
_REDUCES = frozenset(("sum", "mean", "amax", "amin", "max", "min", "argmax", "argmin", "any"))
_REDUCES |= {"all", "_softmax", "_log_softmax", "glu", "logsumexp"}
_ALONG = {"flip": (1, None), "roll": (2, None), "index_select": (1, None), "sort": (1, -1)}
_ALONG |= {"topk": (2, -1)}
"""What moves numbers along dimensions: which argument says so, and which they are otherwise."""
_RANDOM = frozenset(("randperm", "randint"))


class Rules:
    """Says of which rows a result has those of what a kernel took.

    Parameters
    ----------
    constants : collection of int
        Where the memory of the model's parameters and buffers begins.
    of : callable
        Returns of what it depends that a tensor's rows are nodes; None if it is not known.
    """

    def __init__(self, constants: Collection[int], of: Callable[[Tensor], Rows | None]) -> None:
        self._constants, self._of = constants, of

    def rows(
        self, func: Any, kernel: str, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any
    ) -> Rows | None:
        """Return of what it depends that the rows of a result are nodes; None if not known."""
        given = tensors_in((args, kwargs))
        if not given or kernel.startswith("new_") or kernel.endswith("_like"):
            return None if kernel in _RANDOM else ()
        first, shape = given[0], _shape(result)
        if not shape:
            return None
        if kernel in _POINTWISE or torch.Tag.pointwise in getattr(func, "tags", ()):
            return self._all(given, shape)
        if kernel in ("mm", "addmm"):
            *others, left, right = given
            are_constant = all(place_of(x) in self._constants for x in (*others, right))
            return self._of(left) if are_constant else None
        if kernel == "embedding":
            return self._of(given[1]) if place_of(first) in self._constants else None
        if kernel in ("cat", "stack"):
            dim = args[1] if len(args) > 1 else kwargs.get("dim", 0)
            return self._all(given, first.shape) if dim % len(shape) else None
        if kernel in ("scatter", "scatter_", "gather"):
            return self._all(given, shape) if args[1] % len(shape) else None
        return self._of(first) if _keeps(kernel, first, args, kwargs, shape) else None

    def _all(self, given: Sequence[Tensor], shape: Sequence[int]) -> Rows | None:
        """Join what is known of all that has as many rows; what is repeated for each has none."""
        found: Rows = ()
        for x in given:
            if x.dim() < len(shape):
                continue
            own = () if len(x) == 1 < shape[0] or self._is_constant(x) else self._of(x)
            if own is None:
                return None
            found += own
        return tuple(dict.fromkeys(found))

    def _is_constant(self, x: Tensor) -> bool:
        return place_of(x) in self._constants

    @staticmethod
    def has_rows(x: Tensor, kernel: str, found: Sequence[Tensor]) -> bool:
        """Return whether one of a kernel's results has rows: not what a norm tells of columns."""
        return x.dim() > 0 and (not _is_norm(kernel) or x is found[0])


def _shape(result: Any) -> tuple[int, ...]:
    found = tensors_in((result,))
    return tuple(found[0].shape) if found else ()


def _is_norm(kernel: str) -> bool:
    return kernel in _NORMS or kernel == "native_layer_norm"


def _keeps(
    kernel: str,
    x: Tensor,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    shape: Sequence[int],
) -> bool:
    """Return whether a kernel leaves the first dimension of a tensor as it is."""
    rank, count = x.dim(), len(x) if x.dim() else 0

    def is_other(dim: Any) -> bool:
        some = dim if isinstance(dim, (list, tuple)) else [dim]
        numbers = [isinstance(one, int) and not isinstance(one, bool) for one in some]
        return bool(some) and all(numbers) and all(one % rank for one in some)

    if not rank or (shape[0] != count and kernel != "slice"):
        return False
    if kernel in _VIEWS or _is_norm(kernel):
        is_layer = kernel == "native_layer_norm"
        return not is_layer or len(args[1]) < rank
    if kernel == "expand":
        return len(shape) == rank
    if kernel in ("t", "transpose"):
        return rank == 1 or (kernel == "transpose" and is_other(list(args[1:3])))
    if kernel == "permute":
        return bool(args[1][0] % rank == 0)
    if kernel == "slice":
        dim, start, _, step = (*args[1:], *(0, None, None, 1)[len(args) - 1 :])[:4]
        return is_other(dim) or (not start and step == 1)
    if kernel in _PARTS:
        number = 1 if kernel in ("select", "unbind") else 2
        return is_other(args[number] if len(args) > number else kwargs.get("dim", 0))
    if kernel in _ALONG:
        number, default = _ALONG[kernel]
        return is_other(kwargs.get("dim", args[number] if len(args) > number else default))
    if kernel == "index":
        return args[1][0] is None and sum(one is not None for one in args[1]) == 1
    if kernel == "constant_pad_nd":
        return len(args[1]) < 2 * rank
    if kernel in _REDUCES or kernel == "linalg_vector_norm":
        number = 2 if kernel == "linalg_vector_norm" else 1
        default = -1 if kernel == "glu" else None
        return is_other(args[number] if len(args) > number else kwargs.get("dim", default))
    return False
