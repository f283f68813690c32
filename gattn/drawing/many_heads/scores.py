"""Scores of heads, by which pictures of many heads sort and label them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias, Union, cast

from gattn.analysis.reading.heads import Place
from gattn.drawing.canvas.frame import shown_text
from gattn.drawing.canvas.labels import in_digits
from gattn.errors import SelectionError
from gattn.heads.head import AttentionGraph
from gattn.heads.nouns import noun_of, several
from gattn.heads.stack import Stack
from gattn.heads.trace import AttentionTrace
from gattn.names.text import worded

if TYPE_CHECKING:
    import pandas as pd

HeadScore: TypeAlias = Union["str", "Mapping[Any, Any]", "pd.Series[Any]"]
"""A column of `gattn.analysis.head_table` by its name, or a number or a text by (layer, head) or
(stack, layer, head): a mapping, or a column of any such table."""


@dataclass(frozen=True)
class Score:
    """What heads score, in numbers or in words.

    Parameters
    ----------
    name : str
        Its name.
    values : dict of (str, int, int) to float or str
        By stack, layer and head.
    """

    name: str
    values: dict[Place, float | str]

    @classmethod
    def of(
        cls,
        score: HeadScore,
        heads: Mapping[Place, AttentionGraph],
        known: pd.DataFrame | None = None,
    ) -> Score:
        """Read a score of heads, by its name from `known` or else from their head table.

        Raises
        ------
        SelectionError
            If there is no such score, it is not by layer and head, or of heads that are not
            there.
        """
        if isinstance(score, str):
            name, values = score, _column(score, heads, known)
        else:
            if hasattr(score, "to_series"):  # an xarray of layers and heads
                score = score.to_series()
            name = str(getattr(score, "name", None) or "score")
            values = {one: value for key, value in _items(score) for one in _places(key, heads)}
        found = {place: _plain(value) for place, value in values.items() if not _is_none(value)}
        if not found:
            raise SelectionError(f"None of the heads to draw has the score {name!r}.")
        said = worded(name)
        nouns = {noun_of(head.geometry, head.stack) for head in heads.values()}
        if isinstance(score, str) and len(nouns) == 1:
            (noun,) = nouns
            said = said.replace("tokens", several(noun)).replace("token", noun)
        return cls(shown_text(said), found)

    @property
    def is_text(self) -> bool:
        """Whether it is in words."""
        return any(isinstance(value, str) for value in self.values.values())

    def text(self, place: Place) -> str:
        """Write a head's score, as in "0.75"; "" if it has none."""
        value = self.values.get(place, "")
        if isinstance(value, str):
            return shown_text(value)
        return in_digits(value, self._digits)

    @cached_property
    def _digits(self) -> str:
        numbers = [value for value in self.values.values() if not isinstance(value, str)]
        largest = max(map(abs, numbers), default=0.0)
        if largest < 1e6 and all(value.is_integer() for value in numbers):
            return ".0f"
        return ".2f" if 0.05 <= largest < 100 else ".3g"

    def ranked(self, places: Sequence[Place]) -> list[Place]:
        """Sort heads: the largest first, those in words by alphabet, those without one last."""
        scored = [place for place in places if place in self.values]
        if self.is_text:
            scored.sort(key=lambda place: str(self.values[place]))
        else:
            scored.sort(key=lambda place: -float(self.values[place]))
        return scored + [place for place in places if place not in self.values]


def _column(
    name: str, heads: Mapping[Place, AttentionGraph], known: pd.DataFrame | None
) -> dict[Place, Any]:
    from gattn.analysis.heads.head_table import head_table

    if known is not None and name in known:
        return _by_place(known[name])
    stacks: dict[str, dict[tuple[int, int], AttentionGraph]] = {}
    for (stack, layer, head), graph in heads.items():
        stacks.setdefault(stack, {})[layer, head] = graph
    table = head_table(
        AttentionTrace({stack: Stack(stack, found) for stack, found in stacks.items()}),
        progress=False,
    )
    if name not in table:
        names = [*([] if known is None else known.columns), *table.columns]
        raise SelectionError(
            f"There is no head score {name!r}; there are {', '.join(names)}. Or give numbers by "
            "(layer, head)."
        )
    return _by_place(table[name])


def _by_place(column: pd.Series[Any]) -> dict[Place, Any]:
    return cast("dict[Place, Any]", dict(column.items()))


def _is_none(value: Any) -> bool:
    """Return whether a value is missing: None, NaN, or pandas' NA."""
    import pandas as pd

    return bool(pd.api.types.is_scalar(value) and pd.isna(value))


def _plain(value: Any) -> float | str:
    if isinstance(value, str):
        return value
    try:
        return float(value)
    except (TypeError, ValueError):
        raise SelectionError(f"A head's score is a number or a text, not {value!r}.") from None


def _items(score: Any) -> Iterable[tuple[Any, Any]]:
    try:
        found = list(score.items())
    except AttributeError:
        found = [(score, None)]
    for key, _ in found:
        if not isinstance(key, tuple) or len(key) not in (2, 3):
            raise SelectionError(
                "A score of heads is the name of a column of head_table, or numbers by (layer, "
                f"head), such as {{(1, 3): 0.9}} or table['induction']; not by {key!r}."
            )
    return found


def _places(key: tuple[Any, ...], heads: Mapping[Place, AttentionGraph]) -> list[Place]:
    """Find the heads at (layer, head), or (stack, layer, head)."""
    *stack, layer, head = key
    return [place for place in heads if place[1:] == (layer, head) and stack in ([], [place[0]])]
