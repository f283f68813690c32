"""Circuits of several texts: what they have in common, and what holds over the texts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import pandas as pd

from gattn.analysis.circuits.found import Circuit, geometry_of
from gattn.analysis.circuits.measuring.measured import Measured
from gattn.analysis.reading.results import Table
from gattn.door import DrawnByKind, Pictured
from gattn.heads.nouns import counted, noun_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap

ROLE = ["stack", "layer", "head", "role"]
ROLES = "itself", "previous", "next", "after same", "same", "first", "other"
"""What a key is to a query."""
_SAMPLES = 2000
_MEASURES = ("edges", "faithfulness", "completeness", "minimality")


@dataclass(frozen=True, eq=False)
class Circuits(Pictured, Sequence[Measured]):
    """The circuits of several texts, one each, in their order.

    Texts of different lengths have no edges in common, so edges are compared by their *roles*: the
    head, and what the key is to the query: "itself", the "previous" token, the "next", one "after
    same token" (as the query's, earlier: what an induction head reads), the "same token", the
    "first", or any "other"; of an image they are called patches. Nodes of a graph have no order, so
    a key is the query "itself" or an "other". The role of a path is what the head hears, and by
    what: "1.1 by key".

    Parameters
    ----------
    found : sequence of Circuit or PathCircuit
        The circuits.
    seed : int
        Seed of the bootstrap.
    """

    found: Sequence[Measured]
    seed: int = 0
    _roles: list[pd.DataFrame] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_roles", [_roles_of(one) for one in self.found])

    @overload
    def __getitem__(self, number: int) -> Measured: ...
    @overload
    def __getitem__(self, number: slice) -> Circuits: ...
    def __getitem__(self, number: int | slice) -> Measured | Circuits:
        """Take the circuit of a text, or those of some."""
        if isinstance(number, slice):
            return Circuits(self.found[number], self.seed)
        return self.found[number]

    def __len__(self) -> int:
        return len(self.found)

    def __iter__(self) -> Iterator[Measured]:
        return iter(self.found)

    def __repr__(self) -> str:
        stable = f", stability {self.stability:.2f}" if len(self) > 1 else ""
        return f"Circuits({counted(len(self), 'text')}{stable})"

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Say that one circuit of them has it."""
            one = f": take that of one text, as in several[0].{name}" * hasattr(Circuit, name)
            raise AttributeError(
                f"Circuits of several texts have no {name!r}{one}", name=name, obj=self
            )

    def table(self) -> Table:
        """List the circuits.

        Returns
        -------
        Table
            One row per text: ``edges``, ``all_edges``, ``faithfulness``, ``completeness``,
            ``minimality``, and ``random``, the mean of its random sets.
        """
        rows = [
            {
                "edges": one.graph["edges"],
                "all_edges": one.graph["all_edges"],
                "faithfulness": one.faithfulness,
                "completeness": one.completeness,
                "minimality": one.minimality,
                "random": float(np.mean(one.random)) if one.random else np.nan,
            }
            for one in self.found
        ]
        columns = ["edges", "all_edges", *_MEASURES[1:], "random"]
        return self._told(pd.DataFrame(rows, columns=columns), "circuits")

    def statistics(self) -> Table:
        """Take means over the texts, with 95 % intervals of a bootstrap that draws texts.

        Returns
        -------
        Table
            For ``edges``, ``faithfulness``, ``completeness``, ``minimality`` and ``random``:
            ``mean``, ``low`` and ``high``, over the texts that have the number.
        """
        table = pd.DataFrame(self.table())
        rows = [
            {"measure": name, **self._mean(table[name].dropna().to_numpy(dtype=float))}
            for name in (*_MEASURES, "random")
        ]
        return self._told(pd.DataFrame(rows).set_index("measure"), "circuits, means")

    def roles(self) -> Table:
        """List what edges do, by head, in any of the circuits: their union.

        Returns
        -------
        Table
            ``stack``, ``layer``, ``head`` and ``role``; ``share``, the share of the circuits that
            have such an edge, with a bootstrapped 95 % interval ``low`` to ``high``; and ``edges``,
            how many there are in all. The most frequent come first.
        """
        sizes = [some.groupby(ROLE).size().rename(n) for n, some in enumerate(self._roles)]
        counts = pd.concat(sizes, axis=1).fillna(0) if sizes else pd.DataFrame()
        rows = [
            {
                **dict(zip(ROLE, place, strict=True)),
                **self._mean((row > 0).astype(float)),
                "edges": int(row.sum()),
            }
            for place, row in zip(counts.index, counts.to_numpy(), strict=True)
        ]
        columns = [*ROLE, "mean", "low", "high", "edges"]
        table = pd.DataFrame(rows, columns=columns).rename(columns={"mean": "share"})
        table = table.sort_values(["share", "edges"], ascending=False, kind="stable")
        return self._told(table.reset_index(drop=True), "roles")

    def intersection(self) -> Table:
        """List the roles that all of the circuits have, as `roles`."""
        roles = self.roles()
        return self._told(pd.DataFrame(roles[roles["share"] == 1]), "roles")

    if TYPE_CHECKING:

        def draw(
            self,
            *,
            figsize: tuple[float, float] | None = None,
            ax: Axes | None = None,
            cmap: str | Colormap | None = None,
            **options: Any,
        ) -> Axes:
            """Draw it; `help` shows what each option is."""
    else:
        draw = DrawnByKind()

    @property
    def stability(self) -> float:
        """The mean over pairs of texts of the Jaccard index of the roles; NaN of one text.

        It is the number of roles that both circuits have over the number that either has; 1 if both
        are empty.
        """
        sets = [set(some.itertuples(index=False, name=None)) for some in self._roles]
        found = [len(a & b) / len(a | b) if a | b else 1.0 for a, b in combinations(sets, 2)]
        return float(np.mean(found)) if found else float("nan")

    def _mean(self, values: Any) -> dict[str, float]:
        """Take the mean, and the interval of means of as many values drawn from these."""
        if not len(values):
            return dict.fromkeys(("mean", "low", "high"), float("nan"))
        generator = np.random.default_rng(self.seed)
        drawn = generator.integers(len(values), size=(_SAMPLES, len(values)))
        low, high = np.quantile(values[drawn].mean(1), [0.025, 0.975])
        return {"mean": float(values.mean()), "low": float(low), "high": float(high)}

    def _told(self, rows: Any, name: str) -> Table:
        source = self.found[0].computed_from if self.found else ""
        told = f"{counted(len(self), 'text')}, the first: {source}" if source else ""
        return Table.of(rows, name=name, computed_from=told)


def _roles_of(circuit: Measured) -> pd.DataFrame:
    """Give each edge of a circuit its role."""
    if not isinstance(circuit, Circuit):
        table = pd.DataFrame(circuit.table())
        roles = [
            f"{part} by {side}" for part, side in zip(table["part"], table["side"], strict=True)
        ]
        return table[ROLE[:3]].assign(role=pd.Series(roles, dtype=object))
    nouns = {name: noun_of(geometry_of(circuit, name), name) for name in circuit.stacks}
    names, cross = (json.loads(circuit.graph[name]) for name in ("names", "bipartite"))
    table = circuit.table()
    roles = [
        _role(names[stack], query, key, nouns[stack], is_self=stack not in cross)
        for stack, query, key in zip(table["stack"], table["query"], table["key"], strict=True)
    ]
    return pd.DataFrame(table)[ROLE[:3]].assign(role=pd.Series(roles, dtype=object))


def _role(sides: Sequence[Sequence[str]], query: int, key: int, noun: str, *, is_self: bool) -> str:
    """Say what a key is to a query; in cross-attention, only whether it is the same token.

    `sides` names the queries and the keys.
    """
    queries, keys = sides
    token = queries[query]
    if is_self and query == key:
        return "itself"
    if noun == "node":
        return "other"
    if is_self and key == query - 1:
        return "previous"
    if is_self and key == query + 1:
        return "next"
    if is_self and 0 < key < query and keys[key - 1] == token:
        return f"after same {noun}"
    if keys[key] == token:
        return f"same {noun}"
    return "first" if key == 0 else "other"
