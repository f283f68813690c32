"""What was measured of any circuit, whatever its units are."""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import isnan
from typing import Any

import pandas as pd

from gattn.analysis.reading.results import Graph, Table, edits_of
from gattn.models.effects.metrics import COSTS

_FAR = 0.5
"""How far beyond 0 and 1 shares say little."""


class Measured(Graph):
    """A circuit as a graph, and how much of a metric it keeps; the base of all circuits."""

    @property
    def faithfulness(self) -> float:
        """F(C): what the circuit alone keeps; 1 is all, and more than 1 is possible."""
        return float(self.graph["faithfulness"])

    @property
    def completeness(self) -> float:
        """1 - F(all without C): what goes with the circuit; 1 if nothing else can replace it."""
        return float(self.graph["completeness"])

    @property
    def minimality(self) -> float:
        """The least that the circuit loses without one of its units, in F.

        NaN if it is empty, or if time ran out before all were left out.
        """
        return float(self.units()["loss"].min(skipna=False))

    @property
    def random(self) -> list[float]:
        """F of random sets other than the circuit, with as many units of each layer."""
        return list(json.loads(self.graph["random"]))

    @property
    def caveat(self) -> str:
        """Why shares say little, if far more than all, or less than nothing, is kept or left."""
        left, empty = 1 - self.completeness, self.graph["empty"]
        if not any(share < -_FAR or share > 1 + _FAR for share in (self.faithfulness, left)):
            return ""
        full, what = self.graph["full"], "paths" if "paths" in self.graph["kind"] else "attention"
        alone = empty + self.faithfulness * (full - empty)
        return (
            f"parts cancel, so shares say little: the metric is {full:.3g} in the plain run, "
            f"{empty:.3g} with all {what} ablated, and {alone:.3g} on the circuit alone"
        )

    @property
    def notes(self) -> list[str]:
        """What to mind when reading it, such as that its parts cancel."""
        return [*filter(None, [self.caveat]), *super().notes]

    @property
    def stacks(self) -> tuple[str, ...]:
        """The stacks of the model."""
        raise NotImplementedError

    def units(self) -> Table:
        """List what is kept as a whole, the most needed first.

        Returns
        -------
        Table
            What names it, such as ``layer`` and ``head``; ``edges``, how many edges it has; and
            ``loss``, what the circuit loses without it, in F.
        """
        found = json.loads(self.graph["units"])
        rows = pd.DataFrame(found["rows"], columns=[*found["fields"], "edges", "loss"])
        rows["loss"] = rows["loss"].astype(float)
        return self._table(rows.sort_values("loss", ascending=False, kind="stable"), "units")

    def table(self) -> Table:
        """List the circuit's edges, one row each."""
        raise NotImplementedError

    def heads(self) -> Table:
        """List the heads that take part."""
        raise NotImplementedError

    def _table(self, rows: Any, name: str) -> Table:
        source, edits = self.computed_from, edits_of(self)
        return Table.of(rows, name=name, computed_from=source, notes=self.notes, edits=edits)

    def __str__(self) -> str:
        """Say what it keeps, and how small it is."""
        if isnan(self.faithfulness):
            return f"{self.counted}: {self.notes[0]}"
        return (
            f"{self.counted} keep {percent(self.faithfulness, 1)} of {self.whole}; "
            f"{self.left_without()}"
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({'; '.join(filter(None, [str(self), self.caveat]))})"

    @property
    def counted(self) -> str:
        """How many of all it has, in words: of its units, and of the edges that these hold."""
        graph, kind = self.graph, str(self.graph["kind"])
        what = "paths" if "paths" in kind else "edges"
        edges = f"{graph['edges']:,} of {graph['all_edges']:,} {what}"
        if what == kind or "all_units" not in graph:
            return edges
        return f"{len(self.units()):,} of {graph['all_units']:,} {kind} ({edges})"

    def left_without(self, whole: str = "") -> str:
        """Say what is left without it, of a `whole`: 0 % is the metric with all ablated."""
        share = percent(1 - self.completeness, 1)
        what = "paths" if "paths" in self.graph["kind"] else "attention"
        below = f", less than with all {what} ablated" * share.startswith("−")
        return f"without them {share} is left{f' of {whole}' * bool(whole)}{below}"

    @property
    def whole(self) -> str:
        """What its shares are shares of, in words.

        A cost is 0 or least with all edges, so that what is kept is its change, not itself.
        """
        graph, what = self.graph, "path" if "paths" in self.graph["kind"] else "edge"
        metric = str(graph["metric"])
        if metric not in COSTS.values():
            return metric
        empty, full = (f"{graph[name] + 0.0:.3g}" for name in ("empty", "full"))
        return f"the change in {metric} from {empty} with no {what} to {full} with all"


def layers_run(circuit: Measured, layers: Mapping[str, int]) -> list[tuple[str, int]]:
    """List so many layers of stacks as they ran, or stack by stack where that is not known."""
    every = [(stack, n) for stack, count in layers.items() for n in range(count)]
    ran = [(stack, n) for stack, n in json.loads(circuit.graph.get("order", "[]"))]
    known = [one for one in ran if one in every]
    return known if len(known) == len(every) else every


def percent(share: float, digits: int) -> str:
    """Write a share in per cent, zero without a sign."""
    return f"{100 * round(share, digits + 2) + 0.0:,.{digits}f} %".replace("-", "−")
