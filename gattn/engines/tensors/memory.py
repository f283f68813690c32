"""Working in pieces: their inputs, their outputs, and what a gradient keeps of them."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple, ParamSpec, cast

import torch
from torch import Tensor
from torch.autograd import Function
from torch.utils.checkpoint import checkpoint

from gattn.weights.base import Tree

P = ParamSpec("P")

_KEPT_BYTES = 30 * 2**20
"""A block that glibc then keeps; it gives blocks of 32 MiB and more back at once."""


def uncompiled(run: Callable[P, Tensor]) -> Callable[P, Tensor]:
    """Keep `torch.compile` out of an engine: it would unroll its loops over blocks."""
    return cast("Callable[P, Tensor]", torch.compiler.disable(run))


class Recomputed:
    """Calls a function, and for a gradient calls it again instead of keeping intermediate results.

    Parameters
    ----------
    many : bool
        Whether there is much to compute; the results of little may be kept.
    """

    def __init__(self, many: bool = True) -> None:
        self._many = many
        self._draws: bool | None = None

    def __call__(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call the function."""
        if not self._many or not torch.is_grad_enabled():
            return function(*arguments)
        # The generator's state is kept only if the first call drew from it: small objects that
        # stay between large temporaries would fragment the heap.
        before = torch.get_rng_state() if self._draws is None else None
        found = checkpoint(
            function,
            *arguments,
            use_reentrant=False,
            preserve_rng_state=self._draws is not False,
            determinism_check="none",
        )
        if before is not None:
            on_device = torch.cuda.is_available() and torch.cuda.is_initialized()
            self._draws = on_device or not torch.equal(before, torch.get_rng_state())
        return found


@cache
def keep_freed_memory() -> None:
    """Let the C library keep freed memory for the next piece instead of giving it back.

    Otherwise each piece may get its memory from the system again, page by page. glibc keeps blocks
    up to the size of the largest that was freed, so one is freed here, once; it is never touched.
    """
    torch.empty(_KEPT_BYTES, dtype=torch.uint8, device="cpu")


def return_freed_memory() -> None:
    """Make glibc return freed memory, which it otherwise keeps in gaps that add up."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)


class Pasted:
    """Writes parts into a whole that was allocated before them.

    Small parts kept between large temporaries would fragment the heap.
    """

    def __init__(self, whole: Tensor) -> None:
        self.whole = whole

    def add(self, place: tuple[Any, ...], part: Tensor) -> None:
        """Write a part to its place, which no other has."""
        if part.requires_grad or self.whole.requires_grad:
            put: Tensor = _Put.apply(self.whole, part, place)  # type: ignore[no-untyped-call]
            self.whole = put
        else:
            self.whole[place].copy_(part)


class _Put(Function):
    """Writes a part into a whole in place; torch's own way copies the whole gradient each time."""

    @staticmethod
    def forward(ctx: Any, whole: Tensor, part: Tensor, place: tuple[Any, ...]) -> Tensor:
        ctx.place, ctx.dtype = place, part.dtype
        ctx.mark_dirty(whole)
        whole[place].copy_(part)
        return whole

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        return gradient, gradient[ctx.place].to(ctx.dtype), None


class Runs(NamedTuple):
    """Overlapping runs of tokens, each `step` after the one before it."""

    start: int
    step: int
    number: int
    width: int


def take(tree: Tree, index: slice | Tensor | Runs) -> tuple[Tree, Tree]:
    """Take tokens of (B, H, N, .); also give the tree to take the next ones from.

    Runs come as (B, H, runs, width, .), without a copy.
    """
    if tree is None:
        return None, None
    if isinstance(tree, tuple):
        taken = [take(branch, index) for branch in tree]
        return tuple(some for some, _ in taken), tuple(rest for _, rest in taken)
    if isinstance(index, slice) and index.start == 0 and index.stop == tree.shape[2]:
        return tree, tree
    if not tree.requires_grad:
        return selected(tree, index), tree
    return cast("tuple[Tensor, Tensor]", _Take.apply(tree, index))  # type: ignore[no-untyped-call]


def with_dtypes_of(other: Tree, tree: Tree) -> Tree:
    """Cast tensors to the dtypes of others: float32 was for the sums of their gradients."""
    if isinstance(tree, tuple) and isinstance(other, tuple):
        return tuple(with_dtypes_of(*branches) for branches in zip(other, tree, strict=True))
    if isinstance(tree, Tensor) and isinstance(other, Tensor) and tree.dtype != other.dtype:
        return tree.to(other.dtype)
    return tree


class _Take(Function):
    """Takes tokens and is handed from block to block, so that all add to one gradient in place."""

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, index: slice | Tensor | Runs) -> tuple[Tensor, Tensor]:
        ctx.index, ctx.shape, ctx.tokens_first = index, tokens.shape, _is_tokens_first(tokens)
        ctx.set_materialize_grads(False)
        return selected(tokens, index), tokens.view_as(tokens)

    @staticmethod
    def backward(ctx: Any, some: Tensor | None, rest: Tensor | None) -> tuple[Tensor | None, None]:
        if some is None:
            return rest, None
        if rest is None:
            batch, heads, tokens, dim = ctx.shape
            if ctx.tokens_first:
                rest = some.new_zeros(tokens, batch, heads, dim).permute(1, 2, 0, 3)
            else:
                rest = some.new_zeros(ctx.shape)
        elif torch.is_grad_enabled():  # A gradient of this gradient is wanted.
            rest = rest.clone()
        add_to(rest, ctx.index, some)
        return rest, None


def add_to(tokens: Tensor, index: slice | Tensor | Runs, some: Tensor) -> None:
    """Add numbers to the tokens (B, H, N, .) that they were taken from, in place."""
    if isinstance(index, slice):
        tokens[:, :, index].add_(some)
    elif isinstance(index, Runs):
        _add_runs(tokens, index, some)
    else:
        tokens.permute(2, 0, 1, 3).index_add_(0, index, some.permute(2, 0, 1, 3))


def _add_runs(tokens: Tensor, runs: Runs, some: Tensor) -> None:
    """Add runs to where they came from, one step's width at a time, which do not overlap."""
    for first in range(0, runs.width, runs.step):
        part = some[:, :, :, first : first + runs.step]
        target = tokens[:, :, runs.start + first :].unfold(2, part.shape[3], runs.step)
        target[:, :, : runs.number].transpose(3, 4).add_(part)


def selected(tokens: Tensor, index: slice | Tensor | Runs) -> Tensor:
    """Take tokens of (B, H, N, .), without a gradient of its own."""
    if isinstance(index, slice):
        return tokens[:, :, index]
    if isinstance(index, Runs):
        runs = tokens[:, :, index.start :].unfold(2, index.width, index.step)
        return runs[:, :, : index.number].transpose(3, 4)
    if _is_tokens_first(tokens):
        # Rows of a matrix are what torch selects fastest.
        rows = tokens.permute(2, 0, 1, 3)
        some = rows.reshape(len(rows), -1).index_select(0, index)
        return some.view(len(index), *rows.shape[1:]).permute(1, 2, 0, 3)
    return tokens.index_select(2, index)


def gather_into(target: Tensor, tokens: Tensor, index: slice | Tensor) -> None:
    """Write tokens of (B, H, N, .) into a tensor that `selected` has made of others."""
    if isinstance(index, Tensor) and _is_tokens_first(tokens) and _is_tokens_first(target):
        rows, some = tokens.detach().permute(2, 0, 1, 3), target.permute(2, 0, 1, 3)
        torch.index_select(rows.flatten(1), 0, index, out=some.flatten(1))
    else:
        target.copy_(selected(tokens.detach(), index))


def _is_tokens_first(tokens: Tensor) -> bool:
    return tokens.permute(2, 0, 1, 3).is_contiguous()
