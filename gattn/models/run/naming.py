"""Names the tokens of traces, and says where they lie, as a caller asks for."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias, cast

from gattn.errors import CaptureError, GattnError
from gattn.heads.head import AttentionGraph
from gattn.heads.stack import Stack
from gattn.heads.trace import AttentionTrace
from gattn.models.read.token_maps import TokenMap

Tokens: TypeAlias = Sequence[str] | Mapping[str, Sequence[str]] | Sequence[Sequence[str]]
"""Texts of tokens: for all stacks, by stack, or a list for each sequence of a batch."""


@dataclass(frozen=True)
class Naming:
    """The tokens' texts, for all stacks that have as many, by stack or sequence, and the grid."""

    tokens: Tokens | None = None
    grid: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.tokens, str):
            raise CaptureError(
                f"tokens= takes one text per token, such as a list of words, not {self.tokens!r}."
            )

    def of(self, stack: str, sequence: int = 0) -> Sequence[str] | None:
        """Return the texts that are given for a stack of a sequence, if any are."""
        given = self._of(sequence)
        given = given.get(stack) if isinstance(given, Mapping) else given
        return None if given is None else [str(one) for one in given]

    def _of(self, sequence: int) -> Sequence[str] | Mapping[str, Sequence[str]] | None:
        """Return what is given for a sequence."""
        given = self.tokens
        if given is None or isinstance(given, Mapping) or not _is_nested(given):
            return cast("Sequence[str] | Mapping[str, Sequence[str]] | None", given)
        if sequence >= len(given):
            raise CaptureError(
                f"tokens= lists the texts of {len(given)} sequences, but there are more: give one "
                "list for each sequence of the batch."
            )
        return given[sequence]

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
    ) -> AttentionTrace:
        """Name the tokens of a trace, and put them on the grid, or on those known of its stacks.

        `sequence` is its number in the batch; which tokens those of `unnamed` stacks are is not
        known.
        """
        if self.tokens is not None:
            trace = self._named(trace, sequence, unnamed)
        if self.grid is not None:
            return self._on_grid(trace, self.grid, unnamed)
        for stack, tokens in grids.items():
            sizes = {head.graph.num_keys for head in trace.stacks[stack].values()}
            if len(sizes) == 1:
                size = sizes.pop()
                cells = tokens.cells_of(size)
                if len(cells) == size:
                    trace = trace.on_grid(*tokens.grid, cells=cells, stack=stack)
        return trace

    def _named(
        self, trace: AttentionTrace, sequence: int, unnamed: Collection[str]
    ) -> AttentionTrace:
        given = self._of(sequence)
        assert given is not None
        if isinstance(given, Mapping):
            if missing := sorted(set(given) - set(trace.stacks)):
                raise CaptureError(
                    f"tokens= names the stack {missing[0]!r}; the stacks are "
                    f"{sorted(trace.stacks)}."
                )
            names = {stack: [str(one) for one in some] for stack, some in given.items()}
        else:
            names = {stack: [str(one) for one in given] for stack in trace.stacks}
        names = {stack: some for stack, some in names.items() if stack not in unnamed}
        stacks = dict(trace.stacks)
        for stack, some in names.items():
            heads = {place: _with_names(head, some) for place, head in stacks[stack].items()}
            stacks[stack] = Stack(stack, heads)
        left = [stack for stack in names if _are_same(stacks[stack], trace.stacks[stack])]
        if left and (isinstance(given, Mapping) or len(left) == len(names)) and not unnamed:
            stack = left[0]
            sizes = {head.graph.num_keys for head in trace.stacks[stack].values()}
            raise CaptureError(
                f"tokens= gives {len(names[stack])} texts, but the stack {stack!r} has "
                f"{', '.join(map(str, sorted(sizes)))} tokens: give one text per token, or "
                "for a batch one list per sequence, without padding."
            )
        return replace(trace, stacks=stacks)

    def _on_grid(
        self, trace: AttentionTrace, grid: tuple[int, int], unnamed: Collection[str]
    ) -> AttentionTrace:
        found, error = trace, None
        for stack in set(trace.stacks) - set(unnamed):
            try:
                found = found.on_grid(*grid, stack=stack)
            except GattnError as wrong:
                error = wrong
        if found is trace and error is not None:
            raise error
        return found


def _is_nested(given: Sequence[object]) -> bool:
    """Return whether texts are listed for each sequence; one token may be any object."""
    return isinstance(next(iter(given), ""), (list, tuple))


def _are_same(one: Stack, other: Stack) -> bool:
    return all(one[place] is other[place] for place in one)


def _with_names(head: AttentionGraph, names: Sequence[str]) -> AttentionGraph:
    graph = head.graph
    grown = 0 if graph.is_bipartite else head.generated
    if (found := _fitted(names, graph.num_tokens, grown)) is not None:
        head = replace(head, tokens=found)
    if graph.is_bipartite:
        found = _fitted(names, graph.num_queries, head.generated)
        head = head if found is None else replace(head, query_tokens=found)
    return head


def _fitted(names: Sequence[str], count: int, generated: int) -> tuple[str, ...] | None:
    """Take the names of a text of which some was generated; None if they are of another.

    They may be those of its prompt, so that what was generated is called by its position, or also
    name its last token, which the model did not read any more.
    """
    if generated and len(names) == count - generated:
        return (*names, *map(str, range(len(names), count)))
    is_whole = len(names) == count or (generated > 0 and len(names) == count + 1)
    return tuple(names[:count]) if is_whole else None
