"""Working in pieces: their inputs, their outputs, and what a gradient keeps of them."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
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


def keep_freed_memory() -> None:
    """Let the C library keep freed memory for the next piece instead of giving it back.

    Otherwise each piece may get its memory from the system again, page by page. glibc keeps blocks
    up to the size of the largest that was freed, so one is freed here; it is never touched.
    """
    torch.empty(_KEPT_BYTES, dtype=torch.uint8, device="cpu")


def return_freed_memory() -> None:
    """Make glibc return freed memory, which it otherwise keeps in gaps that add up."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)


class Pasted:
    """Writes parts one after another into a whole that was allocated before them.

    Small parts kept between large temporaries would fragment the heap.
    """

    def __init__(self, whole: Tensor, dim: int) -> None:
        self.whole = whole
        self._dim, self._filled = dim, 0

    def add(self, part: Tensor) -> None:
        """Write the next part."""
        size = part.shape[self._dim]
        if part.requires_grad or self.whole.requires_grad:
            put: Tensor = _Put.apply(self.whole, part, self._dim, self._filled)  # type: ignore[no-untyped-call]
            self.whole = put
        else:
            self.whole.narrow(self._dim, self._filled, size).copy_(part)
        self._filled += size


class _Put(Function):
    """Writes a part into a whole in place; torch's own way copies the whole gradient each time."""

    @staticmethod
    def forward(ctx: Any, whole: Tensor, part: Tensor, dim: int, start: int) -> Tensor:
        ctx.span, ctx.dtype = (dim, start, part.shape[dim]), part.dtype
        ctx.mark_dirty(whole)
        whole.narrow(*ctx.span).copy_(part)
        return whole

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None, None]:
        return gradient, gradient.narrow(*ctx.span).to(ctx.dtype), None, None


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
    if not tree.requires_grad:
        return _selected(tree, index), tree
    return cast("tuple[Tensor, Tensor]", _Take.apply(tree, index))  # type: ignore[no-untyped-call]


def with_dtypes_of(other: Tree, tree: Tree) -> Tree:
    """Cast tensors to the dtypes of others: float32 was for the sums of their gradients."""
    if isinstance(tree, tuple) and isinstance(other, tuple):
        return tuple(with_dtypes_of(*branches) for branches in zip(other, tree, strict=True))
    if isinstance(tree, Tensor) and isinstance(other, Tensor):
        return tree.to(other.dtype)
    return tree


class _Take(Function):
    """Takes tokens and is handed from block to block, so that all add to one gradient in place."""

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, index: slice | Tensor | Runs) -> tuple[Tensor, Tensor]:
        ctx.index, ctx.shape, ctx.tokens_first = index, tokens.shape, _is_tokens_first(tokens)
        ctx.set_materialize_grads(False)
        return _selected(tokens, index), tokens.view_as(tokens)

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
        if isinstance(ctx.index, slice):
            rest[:, :, ctx.index].add_(some)
        elif isinstance(ctx.index, Runs):
            _add_runs(rest, ctx.index, some)
        else:
            rest.permute(2, 0, 1, 3).index_add_(0, ctx.index, some.permute(2, 0, 1, 3))
        return rest, None


def _add_runs(tokens: Tensor, runs: Runs, some: Tensor) -> None:
    """Add runs to where they came from, one step's width at a time, which do not overlap."""
    for first in range(0, runs.width, runs.step):
        part = some[:, :, :, first : first + runs.step]
        target = tokens[:, :, runs.start + first :].unfold(2, part.shape[3], runs.step)
        target[:, :, : runs.number].transpose(3, 4).add_(part)


def _selected(tokens: Tensor, index: slice | Tensor | Runs) -> Tensor:
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


def _is_tokens_first(tokens: Tensor) -> bool:
    return tokens.permute(2, 0, 1, 3).is_contiguous()
