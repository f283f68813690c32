"""Says what the leading dimensions of an attention call's tensors are: sequences, or heads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from torch import Tensor

from gattn.caching import cached_property
from gattn.models.read.token_maps import TokenMap


@dataclass(frozen=True)
class Layout:
    """How tensors (..., rows, columns) are (elements, heads, rows, columns).

    Parameters
    ----------
    split : tuple of int
        The sizes of the leading dimensions, if some of these are several folded into one.
    heads : tuple of int
        Which of the leading dimensions, once split, are heads; the others are elements.
    tokens : TokenMap, optional
        Which tokens the slots are, where that was proved.
    """

    split: tuple[int, ...] = ()
    heads: tuple[int, ...] = ()
    tokens: TokenMap | None = None

    @cached_property
    def is_of_whole_texts(self) -> bool:
        """Whether it is self-attention, in which each element is a text, all of whose slots are."""
        tokens = self.tokens
        return tokens is not None and tokens.are_whole_texts

    def num_heads(self, lead: Sequence[int]) -> int:
        """Return how many heads tensors with the leading sizes `lead` have."""
        full = self._sizes(lead)
        return prod(full[n] for n in self.heads)

    def fold(self, x: Tensor, lead: Sequence[int], *, is_mask: bool = False) -> Tensor:
        """View a tensor, whose leading sizes are `lead` or 1, as (elements, heads, ...).

        A mask that all elements share keeps one.
        """
        full = self._sizes(lead)
        if self.heads == (1,) and x.dim() == 4 and len(full) == 2 and not self.split:
            is_whole = is_mask or x.shape[0] == full[0]
            return x.view(x.shape) if is_whole else x.expand(full[0], -1, -1, -1)
        x = self._unfolded(x, lead)
        elements = self._elements(len(full))
        sizes = list(x.shape[:-2])
        if len(elements) > 1 or not is_mask:
            for n in elements:
                sizes[n] = full[n]
        if len(self.heads) > 1:
            for n in self.heads:
                sizes[n] = full[n]
        x = x.expand(*sizes, *x.shape[-2:]).permute(*elements, *self.heads, -2, -1)
        first, second = (prod(sizes[n] for n in some) for some in (elements, self.heads))
        return x.reshape(first, second, *x.shape[-2:])

    def unfold(self, x: Tensor, lead: Sequence[int]) -> Tensor:
        """Give (elements, heads, rows, columns) the leading sizes `lead` again."""
        full = self._sizes(lead)
        order = (*self._elements(len(full)), *self.heads)
        x = x.reshape(*(full[n] for n in order), *x.shape[-2:])
        back = [order.index(n) for n in range(len(full))]
        return x.permute(*back, -2, -1).reshape(*lead, *x.shape[-2:])

    def of_step(self, rows: Sequence[int]) -> Layout:
        """Return the layout of a step whose queries read the keys of some elements again.

        `rows` are these elements, one for each of the step's; each is a sequence by itself.
        """
        known = self.tokens
        assert known is not None
        split, count = list(self.split), len(rows)
        for n in self._elements(len(split)):
            split[n] = count if split[n] == len(known.sequences) else split[n]
        keys = None if known.keys is None else known.keys[list(rows)]
        tokens = replace(
            known, sequences=tuple(range(count)), queries=None, keys=keys, num_queries=1
        )
        return replace(self, split=tuple(split), tokens=tokens)

    def _sizes(self, lead: Sequence[int]) -> tuple[int, ...]:
        return self.split or tuple(lead)

    def _elements(self, count: int) -> tuple[int, ...]:
        return tuple(n for n in range(count) if n not in self.heads)

    def _unfolded(self, x: Tensor, lead: Sequence[int]) -> Tensor:
        count = len(lead)
        x = x[(None,) * (count + 2 - x.dim())] if x.dim() < count + 2 else x
        if not self.split:
            return x
        is_one = prod(x.shape[:-2]) == 1
        sizes = (1,) * len(self.split) if is_one else self.split
        x = x if is_one else x.expand(*lead, *x.shape[-2:])
        return x.reshape(*sizes, *x.shape[-2:])


def usual(lead: Sequence[int], heads: int | None = None) -> Layout:
    """Guess the layout by the number of leading dimensions, the last of which are usually heads.

    Where the number of `heads` is known, a single leading dimension holds elements and heads.
    """
    if len(lead) == 1 and heads is not None:
        return Layout((lead[0] // heads, heads), (1,))
    return Layout(heads=(len(lead) - 1,) if len(lead) > 1 else ())
