"""The tokens of the edges that a table of effects is of: keys and queries, and where they lie."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from gattn.drawing.layers.bands import Band

_SIDES = ("query", "key")


@dataclass(frozen=True)
class Sides:
    """The texts of queries and keys, by position; the same unless they `are_other` tokens."""

    stack: str
    queries: Mapping[int, str]
    keys: Mapping[int, str]
    are_other: bool

    @classmethod
    def of(cls, table: pd.DataFrame) -> Sides:
        """Read the tokens of a table's rows: as it names them, otherwise by their positions."""
        told = told_texts(table)
        known = {side: dict(enumerate(told[side])) for side in _SIDES}
        in_rows = {side: _in_rows(table, side) for side in _SIDES}
        are_other = told_apart(table) or any(
            known["query"].get(at, text) != known["key"].get(at, in_rows["key"].get(at, text))
            for at, text in in_rows["query"].items()
        )
        for side in _SIDES:
            places = table[side].dropna().astype(int)
            known[side] = {n: str(n) for n in places} | in_rows[side] | known[side]
        if not are_other:
            known = dict.fromkeys(_SIDES, known["key"] | known["query"])
        queries, keys = (dict(sorted(known[side].items())) for side in _SIDES)
        return cls("".join(stacks_of(table)[:1]), queries, keys, are_other)

    def bands(self, layers: Sequence[int] = (0,)) -> dict[str, Band]:
        """Lay out the tokens of some layers: keys on the left, if they are other tokens."""
        where: dict[str, Any] = {"layers": len(layers), "first": layers[0]}
        if not self.are_other:
            return {"": Band(self.stack, self.stack, False, self.keys, **where)}
        return {
            "key": Band(self.stack, self.stack, True, self.keys, **where),
            "query": Band(
                self.stack, self.stack, False, self.queries, left=len(self.keys) + 1, **where
            ),
        }

    def __len__(self) -> int:
        return len(self.keys) + (len(self.queries) + 1 if self.are_other else 0)


def stacks_of(table: pd.DataFrame) -> list[str]:
    """List the stacks that a table names, in the order in which they ran, as far as it tells."""
    if "stack" not in table:
        return []
    told, named = table.attrs.get("tokens", ()), table["stack"].dropna().unique()
    in_order = [*told, *named] if isinstance(told, Mapping) else named
    return [stack for stack in dict.fromkeys(in_order) if stack in named]


def told_texts(table: pd.DataFrame) -> dict[str, list[str]]:
    """Give the texts of queries and of keys that a table tells of its only stack."""
    told = _told(table)
    by_side = told if isinstance(told, Mapping) else dict.fromkeys(_SIDES, told)
    return {side: [str(one) for one in by_side.get(side, ())] for side in _SIDES}


def told_apart(table: pd.DataFrame) -> bool:
    """Return whether a table tells that keys are other tokens than queries."""
    return isinstance(_told(table), Mapping)


def _told(table: pd.DataFrame) -> Any:
    told = table.attrs.get("tokens", ())
    if isinstance(told, Mapping):
        stacks = stacks_of(table) or list(told)  # a run's only stack needs no name
        return told.get(stacks[0], ()) if len(stacks) == 1 else ()
    return told


def _in_rows(table: pd.DataFrame, side: str) -> dict[int, str]:
    """Map the positions of a side to the texts that rows name them by."""
    if f"{side}_token" not in table:
        return {}
    some = table[[side, f"{side}_token"]].dropna()
    return {int(n): str(text) for n, text in some.itertuples(index=False)}
