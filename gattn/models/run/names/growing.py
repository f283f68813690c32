"""Names the tokens of texts that grow from call to call, as in a loop without a cache."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TypeAlias

from gattn.models.read.places import Place
from gattn.models.run.names.naming import ByStack, Naming, Texts
from gattn.models.run.record.recorded import RecordedSequence

Ids: TypeAlias = Sequence[int]


def namings_of(naming: Naming, sequences: Sequence[RecordedSequence]) -> list[tuple[Naming, int]]:
    """Return what names each recorded sequence, and the sequence's number in that.

    Where sequences are what a growing text was from call to call, its names name each of them.
    """
    found = [(naming, number) for number in range(len(sequences))]
    rows: dict[int, list[int]] = {}
    for number, one in enumerate(sequences):
        rows.setdefault(one.row, []).append(number)
    if naming.tokens is None or len(rows) == len(sequences):
        return found
    for row, numbers in rows.items():
        grown = _grown(naming.given(row), [sequences[number].read for number in numbers])
        for number, tokens in zip(numbers, grown, strict=True):
            found[number] = replace(naming, tokens=tokens), 0
    return found


def _grown(
    given: ByStack | None, steps: Sequence[Mapping[str, Ids | None]]
) -> Sequence[ByStack | None]:
    """Return what names each step of a text, of which the ids that each stack read are known."""
    if given is None:
        return [None] * len(steps)
    if not isinstance(given, Mapping):
        read = [next(iter(step.values()), None) for step in steps]
        return _named(given, read)
    by_stack = {
        stack: _named(texts, [step.get(stack) for step in steps]) for stack, texts in given.items()
    }
    return [{stack: some[n] for stack, some in by_stack.items()} for n in range(len(steps))]


def _named(given: Texts, texts: Sequence[Ids | None]) -> Sequence[Texts]:
    """Name the tokens of texts that each begin the next one; as given, if these are others.

    What is given names the first text, whose later tokens are called by their positions, or the
    last one, also with the token that the model wrote last and did not read.
    """
    known = [text for text in texts if text is not None]
    as_given = [given] * len(texts)
    if isinstance(given, Mapping) or len(known) < len(texts) or len(known[0]) == len(known[-1]):
        return as_given
    if not all(begins(one, other) for one, other in pairwise(known)):
        return as_given
    if len(given) not in (len(known[0]), len(known[-1]), len(known[-1]) + 1):
        return as_given
    return [of_length(given, len(text)) for text in known]


class GrowingTexts:
    """The texts that calls read, as long as each is the beginning of the next."""

    def __init__(self) -> None:
        self._texts: dict[tuple[str, int], _Text] = {}

    def named(
        self, names: Sequence[str], place: Place, sequence: int, ids: Ids | None, count: int
    ) -> Sequence[str]:
        """Name the `count` tokens that a text has so far; as given if these are of no such text.

        Names of more tokens are taken until it is known whether it grows to these.
        """
        text = self._texts.setdefault((place.stack, sequence), _Text())
        is_step = _is_step(place, sequence)
        text.note(ids, count, is_step=is_step)
        if len(names) > count:
            text.named = len(names)
        elif not is_step and (text.is_broken or len(names) not in text.lengths):
            return names
        return of_length(names, count)

    def other_counts(self) -> Iterator[tuple[str, int, int]]:
        """Give the stacks whose text did not grow to as many tokens as were named; both counts."""
        for (stack, _), text in self._texts.items():
            if text.named and not text.reaches(text.named):
                yield stack, text.named, max(text.lengths)


@dataclass
class _Text:
    """A text: what is known of its ids, and how many tokens it had from call to call.

    It is broken where another text, or one of which this is not known, came in its place.
    """

    ids: Ids | None = None
    lengths: list[int] = field(default_factory=list)
    named: int = 0
    is_broken: bool = False

    def note(self, ids: Ids | None, count: int, *, is_step: bool) -> None:
        """Note what a call read: steps with a cache go on with the text, whatever they read."""
        if not self.lengths or (is_step and count > self.lengths[-1]):
            grows = True
        elif is_step or (count == self.lengths[-1] and None in (ids, self.ids)):
            grows = False
        elif ids is None or self.ids is None:
            grows, self.is_broken = False, True
        else:
            grows = count > self.lengths[-1] and begins(self.ids, ids)
            self.is_broken |= not (grows or begins(ids, self.ids))
        if grows:
            self.ids = ids
            self.lengths.append(count)

    def reaches(self, size: int) -> bool:
        """Return whether it grew to so many tokens, of which the last one need not be read."""
        return not self.is_broken and len(self.lengths) > 1 and self.lengths[-1] >= size - 1


def _is_step(place: Place, sequence: int) -> bool:
    """Return whether a call goes on with a text by a cache."""
    return any(
        one.first and one.positions is None
        for one, of in zip(place.queries, place.sequences, strict=True)
        if of == sequence
    )


def begins(one: Ids, other: Ids) -> bool:
    """Return whether a text is the beginning of another."""
    return list(one) == list(other[: len(one)])


def of_length(names: Sequence[str], count: int) -> Sequence[str]:
    """Give the names of so many tokens; those without a name are called by their positions."""
    return [*names[:count], *map(str, range(len(names), count))]
