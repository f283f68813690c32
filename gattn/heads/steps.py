"""The steps that chose a head's edges: keeps, and others that dropped or merged edges."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, TypeAlias

from gattn.errors import GraphError, ShapeError
from gattn.keep import All, Keep, Threshold, TopK, TopMass


class Step:
    """A change to the edges of a head that is not a `Keep`; pictures show its text."""


@dataclass(frozen=True)
class NoSelfLoops(Step):
    """The edges from a token to itself were dropped."""

    def __str__(self) -> str:
        return "no self-loops"


@dataclass(frozen=True)
class Merged(Step):
    """Tokens were merged, so that an edge is a sum over several, some of which may be missing."""

    def __str__(self) -> str:
        return "merged"


@dataclass(frozen=True)
class Without(Step):
    """Tokens were left out: special ones, the first one, or a number of tokens."""

    tokens: Literal["special", "first"] | int

    def __str__(self) -> str:
        named = {"special": "special tokens", "first": "the first token", 1: "1 token"}
        return f"without {named.get(self.tokens) or f'{self.tokens} tokens'}"


@dataclass(frozen=True)
class Between(Step):
    """Only the edges by which one span of tokens reads another were kept, (start, stop) each."""

    queries: tuple[int, int]
    keys: tuple[int, int]

    def __str__(self) -> str:
        (first, last), (start, stop) = self.queries, self.keys
        return f"queries {first}:{last} on keys {start}:{stop}"

    @staticmethod
    def of(ends: str) -> Between:
        """Read the four ends of ``0:7 on keys 7:12``."""
        first, last, start, stop = map(int, re.findall(r"\d+", ends))
        return Between((first, last), (start, stop))


@dataclass(frozen=True)
class OtherStep(Step):
    """A step known only by its text, such as a keep of your own read from a file."""

    text: str

    def __str__(self) -> str:
        return self.text


Kept: TypeAlias = tuple[Keep | Step, ...]
"""The steps in order, at least one; only `All` if every edge was kept."""

ALL: Kept = (All(),)
_KNOWN: dict[str, Keep | Step] = {
    str(step): step
    for step in (All(), NoSelfLoops(), Merged(), Without("special"), Without("first"), Without(1))
}
_NUMBERED: dict[str, Callable[[str], Keep | Step]] = {
    r"Threshold\((.+)\)": lambda t: Threshold(float(t)),
    r"TopK\((.+)\)": lambda k: TopK(int(k)),
    r"TopMass\((.+)\)": lambda p: TopMass(float(p)),
    r"without (.+) tokens": lambda tokens: Without(int(tokens)),
    r"queries (\d+:\d+ on keys \d+:\d+)": Between.of,
}


def check(steps: object) -> None:
    """Refuse what is not a tuple of steps."""
    known = isinstance(steps, tuple) and all(isinstance(one, Keep | Step) for one in steps)
    if not steps or not known:
        raise ShapeError(
            "kept_by must be a tuple of keeps and steps, such as (gattn.TopK(8),), "
            f"not {steps!r:.80}."
        )


def after(steps: Kept, step: Keep | Step) -> Kept:
    """Add a step; it replaces a single `All`."""
    return (step,) if steps == ALL else (*steps, step)


def to_text(steps: Iterable[Keep | Step]) -> str:
    """Write steps as in captions, files and surveys: "TopK(8), no self-loops"."""
    return ", ".join(map(str, steps))


def in_words(steps: Kept) -> str:
    """Write "kept by TopK(8)", or "" if every edge was kept."""
    return "" if steps == ALL else f"kept by {to_text(steps)}"


def from_text(text: str) -> Kept:
    """Read what `to_text` wrote; unknown text becomes an `OtherStep`."""
    found: list[Keep | Step] = []
    for part in text.split(", "):
        step = _step(part)
        if isinstance(step, OtherStep) and found and isinstance(found[-1], OtherStep):
            step = OtherStep(f"{found.pop()}, {part}")  # one step, such as Mine(a=1, b=2)
        found.append(step)
    return tuple(found)


def _step(text: str) -> Keep | Step:
    for pattern, make in _NUMBERED.items():
        if found := re.fullmatch(pattern, text):
            with suppress(ValueError, GraphError):  # not a number that such a keep takes
                return make(found[1])
    return _KNOWN.get(text) or OtherStep(text)
