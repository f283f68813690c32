"""Names the tokens of texts that grow from call to call, as in a loop without a cache."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TypeAlias

from gattn.heads.trace import AttentionTrace
from gattn.models.read.places import Place
from gattn.models.read.seen_call import extra_of
from gattn.models.run.names.misnamed import PLURAL, other_count, other_texts
from gattn.models.run.names.naming import ByStack, Naming, Texts
from gattn.models.run.record.recorded import RecordedSequence

Read: TypeAlias = Sequence[Sequence[Sequence[int]]]
"""The codes of each token, such as its id, of each text that a sequence of a call was given."""


def namings_of(
    naming: Naming, sequences: Sequence[RecordedSequence], traces: Sequence[AttentionTrace]
) -> list[tuple[Naming, int]]:
    """Return what names each recorded sequence, and the sequence's number in that.

    Where sequences are what growing texts were from call to call, their names name each of them.
    """
    found = [(naming, number) for number in range(len(sequences))]
    rows: dict[int, list[int]] = {}
    for number, one in enumerate(sequences):
        rows.setdefault(one.row, []).append(number)
    if naming.tokens is None or len(rows) == len(sequences) or naming.surplus(len(rows)):
        return found  # Nothing grew, or each sequence has names of its own.
    for row, numbers in rows.items():
        steps = [_Step(sequences[number].read, traces[number]) for number in numbers]
        if all(begins(one.read, other.read) for one, other in pairwise(steps)):
            grown = _grown(naming.given(row), steps)
            for number, tokens in zip(numbers, grown, strict=True):
                found[number] = replace(naming, tokens=tokens), 0
    return found


@dataclass(frozen=True)
class _Step:
    """What a call read, and its trace."""

    read: Read
    trace: AttentionTrace

    def count(self, stack: str, side: str) -> int:
        """Count the tokens of a side of a stack if a text has as many, else 0."""
        heads = self.trace.stacks.get(stack)
        if not heads:
            return 0
        head = next(iter(heads.values()))
        is_key = side == "key"
        count = head.graph.num_keys if is_key else head.graph.num_queries
        count -= len(extra_of(head.tokens)) if is_key else 0
        return count if count in map(len, self.read) else 0


def _grown(given: ByStack | None, steps: Sequence[_Step]) -> Sequence[ByStack | None]:
    """Return what names the tokens of each step."""
    if given is None:
        return [None] * len(steps)
    if not isinstance(given, Mapping):
        stacks = steps[0].trace.stacks
        named = (_named(given, [one.count(stack, "key") for one in steps]) for stack in stacks)
        return next(filter(None, named), [given] * len(steps))
    found: list[dict[str, Texts]] = [{} for _ in steps]
    for stack, texts in given.items():
        for one, step in zip(found, _of_sides(texts, stack, steps), strict=True):
            one[stack] = step
    return found


def _of_sides(texts: Texts, stack: str, steps: Sequence[_Step]) -> Sequence[Texts]:
    """Return what names a stack's tokens, or those of its sides, at each step."""
    if not isinstance(texts, Mapping):
        named = _named(texts, [one.count(stack, "key") for one in steps])
        return named or [texts] * len(steps)
    sides = {
        side: _named(some, [one.count(stack, side) for one in steps]) or [some] * len(steps)
        for side, some in texts.items()
    }
    return [{side: some[n] for side, some in sides.items()} for n in range(len(steps))]


def _named(given: Sequence[str], counts: Sequence[int]) -> Sequence[Sequence[str]] | None:
    """Name the tokens of a text that grew to these counts; None if it did not.

    What is given names the first step, whose later tokens are called by their positions, or the
    last one, also with the token that the model wrote last and did not read.
    """
    first, last = counts[0], counts[-1]
    grows = first > 0 and any(one < other for one, other in pairwise(counts))
    if not grows or len(given) not in (first, last, last + 1):
        return None
    return [of_length(given, count) for count in counts]


class GrowingTexts:
    """The texts that calls read, as long as each is the beginning of the next."""

    def __init__(self) -> None:
        self._texts: dict[tuple[str, str, int], _Text] = {}

    def named(
        self, names: Sequence[str], place: Place, side: str, sequence: int, read: Read, count: int
    ) -> Sequence[str]:
        """Name the `count` tokens that a text has so far; as given if these are of no such text.

        Names of more tokens are taken until it is known whether it grows to these.
        """
        text = self._texts.setdefault((place.stack, side, sequence), _Text())
        is_step = _is_step(place, sequence)
        text.note(read, count, is_step=is_step)
        if len(names) > count:
            text.named = len(names)
        elif not is_step and (text.is_broken or len(names) not in text.lengths):
            return names
        return of_length(names, count)

    def wrong(self) -> Iterator[str]:
        """Say of which sides no text grew to as many tokens as were named."""
        for (stack, side, _), text in self._texts.items():
            if text.named and text.is_broken:
                yield other_texts(text.named, stack, PLURAL[side])
            elif text.named and not text.reaches(text.named):
                yield other_count(text.named, stack, max(text.lengths), PLURAL[side], link="and")


@dataclass
class _Text:
    """A text: what is known of its ids, and how many tokens it had from call to call.

    It is broken where another text, or one of which this is not known, came in its place.
    """

    read: Read = ()
    lengths: list[int] = field(default_factory=list)
    named: int = 0
    is_broken: bool = False

    def note(self, read: Read, count: int, *, is_step: bool) -> None:
        """Note what a call read: steps with a cache go on with the text, whatever they read."""
        grows = not self.lengths or count > self.lengths[-1]
        is_known = count in map(len, read) and begins(self.read, read)
        if self.lengths and not is_step and not (grows and is_known):
            is_same = count == self.lengths[-1] and not (read and self.read)
            self.is_broken |= not (is_same or begins(read, self.read))
            grows = False
        if grows:
            self.read = read
            self.lengths.append(count)

    def reaches(self, size: int) -> bool:
        """Return whether it grew to so many tokens, of which the last one need not be read."""
        grows = not self.is_broken and len(self.lengths) > 1
        return grows and self.lengths[-1] in (size, size - 1)


def _is_step(place: Place, sequence: int) -> bool:
    """Return whether a call goes on with a text by a cache."""
    return any(
        one.first and one.positions is None
        for one, of in zip(place.queries, place.sequences, strict=True)
        if of == sequence
    )


def begins(some: Read, others: Read) -> bool:
    """Return whether each text is the beginning of another; False if none is known."""
    if not some or len(some) != len(others):
        return False
    return all(map(_begins, some, others))


def _begins(one: Sequence[Sequence[int]], other: Sequence[Sequence[int]]) -> bool:
    """Return whether tokens begin others, by one of the codes of these."""
    codes = {*zip(*other[: len(one)], strict=True)}
    return not one or any(known in codes for known in zip(*one, strict=True))


def of_length(names: Sequence[str], count: int) -> Sequence[str]:
    """Give the names of so many tokens; those without a name are called by their positions."""
    return [*names[:count], *map(str, range(len(names), count))]
