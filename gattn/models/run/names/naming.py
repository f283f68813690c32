"""Names the tokens of traces, and says where they lie, as a caller asks for."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import TypeAlias, cast

from torch import Tensor

from gattn.checks import warn
from gattn.errors import CaptureError, GattnError, ShapeError
from gattn.heads.geometry.grid import Grid
from gattn.heads.head import AttentionGraph
from gattn.heads.stack import Stack
from gattn.heads.trace import AttentionTrace
from gattn.models.read.token_maps import TokenMap
from gattn.models.run.names.given import check_texts, is_grid, is_nested, text_of
from gattn.models.run.names.misnamed import (
    MOVED,
    SIDES,
    enough_texts,
    misfit,
    of_both_sides,
    other_count,
    other_grid,
    unclear_owner,
    unknown_stack,
)
from gattn.models.run.names.named_heads import are_both_named, names_all, with_names

Texts: TypeAlias = Sequence[str] | Mapping[str, Sequence[str]]
"""Texts of a stack's tokens; of cross-attention, those of each side, "query" or "key"."""
ByStack: TypeAlias = Sequence[str] | Mapping[str, Texts]
Tokens: TypeAlias = ByStack | Sequence[ByStack]
"""Texts of tokens: for all stacks, by stack, or these for each sequence of a batch."""


@dataclass(frozen=True)
class Naming:
    """The tokens' texts, for all stacks that have as many, by stack or sequence, and the grid."""

    tokens: Tokens | None = None
    grid: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        check_texts(self.tokens)
        if self.grid is not None and not is_grid(self.grid):
            raise CaptureError(
                "grid= takes the numbers of rows and of columns of patches, such as (14, 14), not "
                f"{self.grid!r}."
            )

    def of(self, stack: str, sequence: int = 0) -> dict[str, list[str]]:
        """Return the texts that are given for a stack of a sequence, by side."""
        given: ByStack | Texts | None = self.given(sequence)
        if isinstance(given, Mapping):
            given = given.get(stack)
        if given is None:
            return {}
        by_side = given if isinstance(given, Mapping) else dict.fromkeys(SIDES, given)
        if unknown := set(by_side) - set(SIDES):
            raise CaptureError(
                f"tokens= names {min(unknown)!r} of the stack {stack!r}: expected a list of texts, "
                "or the texts of its queries and keys, as {'query': [...], 'key': [...]}."
            )
        for some in by_side.values():
            if isinstance(next(iter(some), ""), (list, tuple)):
                raise CaptureError(
                    f"tokens= gives lists of texts for the stack {stack!r}: for a batch in several "
                    f"stacks give one mapping per sequence, as in tokens=[{{{stack!r}: [...]}}, "
                    "...]."
                )
        return {side: [text_of(one) for one in some] for side, some in by_side.items()}

    def has_sides(self, stack: str, sequence: int = 0) -> bool:
        """Return whether the texts of a stack are given by side."""
        given = self.given(sequence)
        return isinstance(given, Mapping) and isinstance(given.get(stack), Mapping)

    def given(self, sequence: int) -> ByStack | None:
        """Return what is given for a sequence."""
        given = self.tokens
        if given is None or isinstance(given, Mapping) or not is_nested(given):
            return cast("ByStack | None", given)
        if sequence >= len(given):
            raise CaptureError(
                f"tokens= lists the texts of {len(given)} sequences, but there are more: give one "
                "list for each sequence of the batch."
            )
        return given[sequence]

    def surplus(self, sequences: int) -> str:
        """Say that texts are listed for more sequences than there are; "" if they are not."""
        given = self.tokens
        if given is None or isinstance(given, Mapping) or not is_nested(given):
            return ""
        if len(given) <= sequences:
            return ""
        return (
            f"tokens= lists the texts of {len(given)} sequences, but there are {sequences}: give "
            "one list for each sequence of the batch, or one list of texts for all of them"
        )

    def grids(
        self,
        proved: TokenMap | None,
        sizes: Mapping[str, int],
        stack: str,
        sequence: int = 0,
        *,
        is_bipartite: bool,
    ) -> dict[str, Grid]:
        """Return where the tokens of a stack lie, by side: as given, or as proved of them.

        `sizes` are the numbers of its tokens in a sequence. A side whose tokens are on no grid is
        left out.
        """
        if (whole := self._proved(proved, sizes["key"])) is not None:
            return {"key": whole} if is_bipartite else dict.fromkeys(sizes, whole)
        if self.grid is None:
            return {}
        found: dict[str, Grid] = {}
        for side, size in sizes.items():
            size = size if is_bipartite else sizes["key"]
            with suppress(ShapeError):
                found[side] = self._regular(size, self._prefix(size, stack, sequence))
        if not is_bipartite:
            self._check_grid(proved, sizes["key"], self._prefix(sizes["key"], stack, sequence))
        return {} if is_bipartite and len(found) > 1 else found  # Either side may be meant.

    def with_patches(
        self, names: Sequence[str], proved: TokenMap | None, count: int
    ) -> Sequence[str]:
        """Add the names of patches where only the other tokens, such as registers, are named."""
        whole = self._proved(proved, count)
        if whole is None and self.grid is not None and count - len(names) == prod(self.grid):
            self._check_grid(proved, count, len(names))
            whole = self._regular(count, len(names))
        others = [] if whole is None else [n for n, cell in enumerate(whole.cells) if cell < 0]
        if whole is None or len(others) != len(names):
            return names
        known = dict(zip(others, names, strict=True))
        return [known.get(n, name) for n, name in enumerate(whole.names())]

    def fitted(
        self,
        given: Sequence[str],
        stack: str,
        count: int,
        proved: TokenMap | None,
        what: str = "tokens",
    ) -> Sequence[str]:
        """Return a text for each of `count` tokens of a stack; refuse texts that are not enough."""
        whole = self.with_patches(given, proved, count)
        if len(whole) != count:
            enough = enough_texts(self.others(proved, count))
            raise CaptureError(f"{other_count(len(given), stack, count, what, enough)}.")
        return whole

    def others(self, proved: TokenMap | None, count: int) -> int:
        """Return how many of so many tokens are no patches; 0 if it is not known."""
        if (whole := self._proved(proved, count)) is not None:
            return int((whole.cells < 0).sum())
        return 0 if self.grid is None else max(count - prod(self.grid), 0)

    def _regular(self, size: int, prefix: int | None) -> Grid:
        assert self.grid is not None
        return Grid.regular(*self.grid, size, prefix=prefix)

    def _prefix(self, size: int, stack: str, sequence: int) -> int | None:
        """Return how many of so many tokens are no patches, if the stack's texts are as many."""
        assert self.grid is not None
        prefix = size - prod(self.grid)
        is_named = any(len(texts) == prefix for texts in self.of(stack, sequence).values())
        return prefix if is_named else None

    def _proved(self, proved: TokenMap | None, size: int) -> Grid | None:
        """Return the grid that so many tokens were proved to form, unless another one is given.

        Which token is which patch is known then: a given form does not say whether they come row by
        row.
        """
        cells = _cells(proved, size)
        if proved is None or cells is None or self.grid not in (None, proved.grid):
            return None
        rows, columns = proved.grid
        return Grid(rows, columns, cells.numpy())

    def _check_grid(self, proved: TokenMap | None, size: int, prefix: int | None) -> None:
        """Refuse a grid that fits so many tokens, but is another than the proved one of these."""
        if self.grid is None or proved is None or self.grid == proved.grid:
            return
        if _cells(proved, size) is None:
            return
        with suppress(ShapeError):
            self._regular(size, prefix)
            raise CaptureError(
                f"grid={self.grid} is not how the patches lie, which is {proved.grid} as the model "
                "was proved to read them: leave grid= out."
            )

    @property
    def stacks(self) -> set[str]:
        """The stacks that texts are given for by name."""
        return set(self.tokens) if isinstance(self.tokens, Mapping) else set()

    def applied(
        self,
        trace: AttentionTrace,
        grids: Mapping[str, TokenMap],
        sequence: int = 0,
        *,
        unnamed: Collection[str] = (),
        own: Collection[str] = (),
        others: Collection[str] | None = (),
    ) -> AttentionTrace:
        """Name the tokens of a trace, and put them on the grid, or on those known of its stacks.

        `sequence` is its number in the batch; which tokens those of `unnamed` stacks are is not
        known, and queries of `own` stacks are among their keys. Names of `others`, the stacks of
        other calls, do not concern it; they are None if calls may come that have any.
        """
        if self.tokens is not None:
            trace = self._named(trace, grids, sequence, unnamed, own, others)
        done = set(unnamed)
        for stack in grids.keys() - set(unnamed):
            sizes = {head.graph.num_keys for head in trace.stacks[stack].values()}
            for size in sizes if self.grid is not None else ():
                self._check_grid(grids[stack], size, self._prefix(size, stack, sequence))
            whole = self._proved(grids[stack], sizes.pop()) if len(sizes) == 1 else None
            if whole is not None:
                trace = trace.on_grid(
                    whole.rows, whole.columns, cells=whole.cells, stack=stack, side="key"
                )
                done.add(stack)
        return trace if self.grid is None else self._on_grid(trace, self.grid, sequence, done)

    def _named(
        self,
        trace: AttentionTrace,
        grids: Mapping[str, TokenMap],
        sequence: int,
        unnamed: Collection[str],
        own: Collection[str],
        others: Collection[str] | None,
    ) -> AttentionTrace:
        given = self.given(sequence)
        by_stack = given if isinstance(given, Mapping) else dict.fromkeys(trace.stacks, given)
        elsewhere = set(by_stack if others is None else others) - set(trace.stacks)
        by_stack = {stack: texts for stack, texts in by_stack.items() if stack not in elsewhere}
        if missing := sorted(set(by_stack) - set(trace.stacks)):
            raise CaptureError(unknown_stack(missing[0], trace.stacks))
        stacks, left = dict(trace.stacks), []
        names = {stack: self.of(stack, sequence) for stack in by_stack if stack not in unnamed}
        for stack in sorted(set(by_stack) & set(unnamed)) if isinstance(given, Mapping) else ():
            warn(f"tokens= names the stack {stack!r}, but {MOVED}: they are numbered as they come.")
        is_whole = not isinstance(given, Mapping) and any(
            names_all(trace.stacks[stack], texts) for stack, texts in names.items()
        )
        for stack, texts in names.items():
            has_sides = isinstance(by_stack[stack], Mapping)
            by_side = [{side: some} for side, some in texts.items()]
            for some in by_side if has_sides else [texts]:
                before = stacks[stack]
                known = partial(self._renamed, names=some, proved=grids.get(stack))
                renamed = partial(with_names, names=some) if is_whole else known
                heads = {place: renamed(head) for place, head in before.items()}
                stacks[stack] = Stack(stack, heads)
                if not has_sides and stack not in own and are_both_named(before, heads):
                    warn(f"{of_both_sides(stack)}.")
                if all(head is before[place] for place, head in heads.items()):
                    left.append((stack, some))
        if left and (isinstance(given, Mapping) or len(left) == len(names)) and not unnamed:
            stack, texts = left[0]
            counted = partial(self.others, grids.get(stack))
            raise misfit(stack, texts, trace.stacks[stack], self.tokens, counted)
        return replace(trace, stacks=stacks)

    def _renamed(
        self, head: AttentionGraph, names: Mapping[str, Sequence[str]], proved: TokenMap | None
    ) -> AttentionGraph:
        sizes = {"query": head.graph.num_queries, "key": head.graph.num_keys}
        of = partial(patches_of, proved, is_bipartite=head.graph.is_bipartite)
        whole = {n: self.with_patches(x, of(n), sizes[n]) for n, x in names.items()}
        return with_names(head, whole)

    def _on_grid(
        self,
        trace: AttentionTrace,
        grid: tuple[int, int],
        sequence: int,
        unnamed: Collection[str],
    ) -> AttentionTrace:
        found = trace
        errors: list[GattnError] = []
        for stack in [stack for stack in trace.stacks if stack not in unnamed]:
            size = next(iter(trace.stacks[stack].values())).graph.num_keys
            prefix = self._prefix(size, stack, sequence)
            self._check_owner(trace, stack, prefix, sequence)
            try:
                found = found.on_grid(*grid, stack=stack, prefix=prefix)
            except ShapeError:
                errors.append(CaptureError(f"{other_grid(grid, stack, size)}."))
            except GattnError as wrong:
                errors.append(wrong)
        if found is trace and errors:
            raise errors[0]
        return found

    def _check_owner(
        self, trace: AttentionTrace, stack: str, prefix: int | None, sequence: int
    ) -> None:
        """Refuse texts before the patches of a stack that may be all tokens of another one."""
        if prefix is None or prefix < 2 or self.stacks:  # A grid has room for one.
            return
        texts = self.of(stack, sequence)
        for name, heads in trace.stacks.items():
            if name != stack and names_all(heads, texts):
                raise CaptureError(f"{unclear_owner(prefix, name, stack)}.")


def patches_of(proved: TokenMap | None, side: str, *, is_bipartite: bool) -> TokenMap | None:
    """Return which tokens of a side are patches, if known: of cross-attention, its keys."""
    return None if is_bipartite and side == "query" else proved


def _cells(tokens: TokenMap | None, size: int) -> Tensor | None:
    """Return the cell of each of so many tokens, if it was proved that they form a grid."""
    if tokens is None or len(tokens.grid) != 2:
        return None
    cells = tokens.cells_of(size)
    return cells if len(cells) == size else None
