"""Finds what a model is given of tokens, and marks some of them with NaN as it runs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from gattn.models.doors.proof.layouts.batches import Batches
from gattn.models.doors.proof.probing.one_run.walking import Entered, Given, Run
from gattn.models.doors.proof.probing.taints import may_be_mask, replaced, sources, with_nan


class TokenInputs:
    """What a model is given or makes of ids, (elements, tokens, ...) or (tokens, elements, ...).

    If there is none of these, it may be (elements, channels, tokens); if there are as many channels
    as tokens, these or the pixels of an image `may_be_last`. `are_any` says whether there is any.
    Masks, such as adjacency matrices, hold no tokens, unless there is nothing else; nor does what
    is `left_out` of what is given, by its number.
    """

    def __init__(
        self,
        root: Run,
        given: Sequence[Tensor],
        sizes: tuple[int, int],
        batches: Batches,
        *,
        are_last: bool = False,
        left_out: Collection[int] = (),
    ) -> None:
        self._sizes, self._root, self._batches, self._given = sizes, root, batches, given
        self._left_out = left_out
        self._are_last = self._may_be_pixels = are_last
        lookups = [run for run in _inner(root) if run.looks_up]
        self._ids = {run.place: run for run in lookups if self.form(run, _shape(run)) is not None}
        some = self._some(given)
        if not (some or self._ids or are_last):
            self._are_last = True
            some = self._some(given)
        self._has_others = bool(self._ids) or not all(map(may_be_mask, some))
        self.are_any = bool(some) or bool(self._ids)

    @property
    def count(self) -> int:
        """How many tokens a text has."""
        return self._sizes[1]

    @property
    def may_be_last(self) -> bool:
        """Whether tokens may be the last dimensions, of the same size as the one that is taken."""
        return not self._are_last and self.last().are_any

    def last(self) -> TokenInputs:
        """Take what comes after the channels of what the model is given for tokens."""
        return self._other(self._left_out, are_last=True)

    def without(self, some: Collection[int]) -> TokenInputs:
        """Leave out some of what the model is given."""
        return self._other({*self._left_out, *some}, are_last=False)

    @property
    def nothing(self) -> TokenInputs:
        """Leave out all that the model is given."""
        return self.without(range(len(self._given)))

    @property
    def are_pixels(self) -> bool:
        """Whether what is taken for tokens may be channels of images, if of nothing else."""
        some = self._some(self._given)
        return not self._ids and bool(some) and all(x.dim() > 3 for x in some)

    def half(self) -> Entered:
        """Make NaN of half of the pixels of each channel as the model runs."""

        def entered(run: Run, module: nn.Module, given: Given) -> Given | None:
            if run.place != self._root.place:
                return None
            for x in sources(given):
                if x.dim() > 3:
                    columns = torch.arange(x.shape[-1], device=x.device)
                    given = replaced(given, x, with_nan(x, columns < x.shape[-1] // 2))
            return given

        return entered

    def _other(self, left_out: Collection[int], *, are_last: bool) -> TokenInputs:
        root, given, sizes, batches = self._root, self._given, self._sizes, self._batches
        return TokenInputs(root, given, sizes, batches, are_last=are_last, left_out=left_out)

    @property
    def flat(self) -> list[int]:
        """The numbers of what is given without channels, numbers of tokens or masks."""
        some = ((n, x) for n, x in enumerate(self._given) if x.dim() == 2 or may_be_mask(x))
        return [n for n, x in some if self.form(self._root, x.shape, n) is not None]

    def _some(self, given: Sequence[Tensor]) -> list[Tensor]:
        return [x for n, x in enumerate(given) if self.form(self._root, x.shape, n) is not None]

    def form(self, run: Run, shape: tuple[int, ...], number: int = 0) -> tuple[int, ...] | None:
        """Return the shape of marks of tokens in what a run is given; None if it has no tokens.

        Sizes do not tell them from the batch where there are as many elements as tokens.
        """
        elements, count = self._sizes
        if number in self._left_out and run.place == self._root.place:
            return None
        if self._are_last:
            are_pixels = len(shape) == 3 or (len(shape) > 3 and self._may_be_pixels)
            is_last = are_pixels and (shape[0], prod(shape[2:])) == (elements, count)
            return (1, 1, *shape[2:]) if is_last else None
        are_first = tuple(shape[:2]) == (elements, count)
        are_second = tuple(shape[:1]) == (count,)
        are_second &= elements == 1 or tuple(shape[1:2]) == (elements,)
        if are_first and are_second and elements > 1:
            owner = self._batches.owner(run, number)
            are_first = owner is None or owner.dim != 1
        if not (are_first or are_second):
            return None
        dim = 1 if are_first else 0
        return tuple(count if one == dim else 1 for one in range(len(shape)))

    def given_to(self, run: Run) -> Run | None:
        """Return the run that is given tokens here, the model's or an embedding's; None if none."""
        known = self._ids.get(run.place, self._root)
        return known if known.place == run.place else None

    def marking(
        self,
        row: Tensor,
        change: Callable[[Tensor, Tensor], Tensor] = with_nan,
        only: int | None = None,
    ) -> Entered:
        """Make what changes marked tokens as the model runs, to NaN if nothing else is said.

        That is in all that the model is given of them, or `only` in what has this number. Of each
        text, other tokens may be marked.

        A row of a recurrent network that reads both ways holds what each way reads: as far as NaN
        tells, all of the row does.
        """

        def entered(run: Run, module: nn.Module, given: Given) -> Given | None:
            if run.recurs:
                for x in sources(given):
                    given = replaced(given, x, with_nan(x, x.isnan().any(-1, keepdim=True)))
                return given
            known = self.given_to(run)
            if known is None or (only is not None and run.place != self._root.place):
                return None
            for n, x in enumerate(sources(given)):
                if only not in (None, n) or (only is None and self._has_others and may_be_mask(x)):
                    continue
                if (form := self.form(known, x.shape, n)) is not None:
                    given = replaced(given, x, change(x, self._spread(row, form, x)))
            return given

        return entered

    def _spread(self, row: Tensor, form: tuple[int, ...], x: Tensor) -> Tensor:
        """Bring marks of tokens, or those of each text (elements, tokens), to an input's form."""
        elements, count = self._sizes
        if row.dim() < 2 or elements == 1:
            return row.reshape(form)
        if form[0] != count or self._are_last or len(x) != count:
            return row.reshape(elements, *form[1:])
        return row.mT.reshape(count, elements, *form[2:])


def _shape(run: Run) -> tuple[int, ...]:
    """Return the shape of what an embedding gave."""
    shapes: Any = run.shapes
    found: tuple[int, ...] = shapes[1][0][0]
    return found


def _inner(run: Run) -> Iterator[Run]:
    yield run
    for one in run.inner:
        yield from _inner(one)
