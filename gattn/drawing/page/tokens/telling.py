"""Describes what is told of a stack's tokens in the header of a page.

- ``spans``: the ends of parts of the text, as (start, stop), which the page calls A, B and so on;
- ``predictions``: the ``shift`` by which a position predicts a token; the ``probability`` of each
  token, and what each position predicts, its ``likeliest`` tokens and how probable each is;
- ``colours``: numbers of each token by which it can be coloured, by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gattn.errors import SelectionError, ShapeError
from gattn.heads.merging import as_spans
from gattn.heads.stack import Stack
from gattn.heads.trace import AttentionTrace

_MOST_SPANS = 26
_MOST_LIKELY = 5
_DIGITS = 4
_PROBABILITY = "probability"


@dataclass(frozen=True)
class Told:
    """What a caller tells of tokens: spans, and numbers by which to colour them."""

    spans: Any = None
    colour: Any = None

    def __post_init__(self) -> None:
        if self.spans is not None:
            object.__setattr__(
                self, "spans", _checked(as_spans(self.spans, "spans=[(0, 5), (5, 9)]"))
            )

    def of(self, trace: AttentionTrace, stack: Stack) -> dict[str, Any]:
        """Describe the tokens of a stack; between queries and keys of two texts, nothing."""
        sizes = _sizes(trace)
        head = next(iter(stack.values()))
        if head.graph.is_bipartite:
            self._check_any(sizes)
            return {"spans": [], "predictions": None, "colours": {}}
        told = _predictions(trace, stack, head.graph.num_tokens)
        known = {} if told is None else {_PROBABILITY: told["probability"]}
        return {
            "spans": self._spans(head.spans, head.graph.num_tokens, sizes),
            "predictions": told,
            "colours": known | self._colours(head.graph.num_tokens, sizes),
        }

    def _check_any(self, sizes: Mapping[str, int]) -> None:
        """Refuse what is told of tokens if no stack has tokens of one text."""
        if not sizes and (self.spans is not None or self.colour is not None):
            raise SelectionError(
                "spans= and colour= are of the tokens of self-attention, and there are none here."
            )

    def _spans(
        self, known: list[tuple[int, int]], size: int, sizes: Mapping[str, int]
    ) -> list[tuple[int, int]]:
        """Take the spans that are given, or else those that the text's segments make."""
        if self.spans is None:
            return known if 1 < len(known) <= _MOST_SPANS else []
        last = max((stop for _, stop in self.spans), default=0)
        if last > max(sizes.values()):
            raise SelectionError(
                f"spans= end at token {last}, but there are {_said(sizes)} tokens: they are "
                "half-open, (start, stop), and count from 0."
            )
        return self.spans if last <= size else []

    def _colours(self, size: int, sizes: Mapping[str, int]) -> dict[str, Any]:
        """Take the numbers that fit a stack; there must be one that they fit."""
        given = self.colour if isinstance(self.colour, Mapping) else {"colour": self.colour}
        found = {}
        for name, values in given.items():
            if values is None:
                continue
            numbers = _numbers(str(name), values)
            if len(numbers) not in sizes.values():
                raise ShapeError(
                    f"colour= has {len(numbers)} numbers of {str(name)!r:.80}, but there are "
                    f"{_said(sizes)} tokens: pass one number for each."
                )
            if len(numbers) == size:
                found[str(name)] = _listed(numbers)
        return found


def _sizes(trace: AttentionTrace) -> dict[str, int]:
    """Count the tokens of each stack of self-attention."""
    firsts = {name: next(iter(stack.values())).graph for name, stack in trace.stacks.items()}
    return {name: graph.num_tokens for name, graph in firsts.items() if not graph.is_bipartite}


def _said(sizes: Mapping[str, int]) -> str:
    return " or ".join(map(str, sorted(set(sizes.values()))))


def _checked(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Sort spans, which must not overlap."""
    found = sorted(spans)
    ends = [0, *(stop for _, stop in found)]
    if any(not end <= start < stop for end, (start, stop) in zip(ends, found, strict=False)):
        raise SelectionError(
            "spans= are half-open, (start, stop), and do not overlap, as in [(0, 7), (7, 12)], "
            f"not {found!r:.200}."
        )
    if not 0 < len(found) <= _MOST_SPANS:
        raise SelectionError(
            f"spans= are 1 to {_MOST_SPANS}, which the page calls A to Z, not {len(found)}."
        )
    return found


def _numbers(name: str, values: Any) -> NDArray[np.float64]:
    try:
        numbers = np.asarray(values.detach().cpu() if hasattr(values, "detach") else values)
        numbers = numbers.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise ShapeError(
            "colour= takes one number for each token, as an array (tokens,), or several such "
            f"arrays by name, not {values!r:.80} as {name!r:.80}."
        ) from error
    if numbers.ndim != 1:
        raise ShapeError(
            "colour= takes one number for each token, as an array (tokens,), or several such "
            f"arrays by name, not {numbers.shape} as {name!r:.80}."
        )
    return numbers


def _listed(numbers: Iterable[float]) -> list[float | None]:
    """Write numbers as JSON can hold them: what is not finite is null."""
    return [float(f"{x:.{_DIGITS}g}") if np.isfinite(x) else None for x in numbers]


def _predictions(trace: AttentionTrace, stack: Stack, size: int) -> dict[str, Any] | None:
    """Describe what a run predicted of a stack, if its tokens are still those of the run."""
    told = trace.predictions
    head = next(iter(stack.values()))
    if told is None or told.stack != stack.name or len(told.ids) != size:
        return None
    if head.graph.is_bipartite or head.positions is not None:
        return None
    return {
        "shift": told.shift,
        "probability": _listed(told.probability),
        "likeliest": [
            [[name, *_listed([share])] for name, share in some]
            for some in told.likeliest(_MOST_LIKELY)
        ],
    }
