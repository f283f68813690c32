"""Circuits of paths: graphs of the heads that hear each other, and what was measured of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from gattn.analysis.circuits.measuring.measured import Measured
from gattn.analysis.circuits.measuring.testing import Proof
from gattn.analysis.circuits.paths.lists import AMONG, PathList, heads_of
from gattn.analysis.reading.results import Table
from gattn.errors import SelectionError
from gattn.models.edit.hear.paths import OnlyPaths
from gattn.models.edit.heard import SIDES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FIELDS = ["stack", "part", "layer", "head", "side"]


class PathCircuit(Measured):
    r"""A set of paths on which alone a model keeps its answer: a `networkx.DiGraph` of its heads.

    Nodes are named as by `gattn.why`: heads "1.1", MLPs "mlp 0" and the "embedding"; where a model
    has several stacks of self-attention, after the stack's name. They have ``kind``, ``layer`` and
    ``head``. An edge leads from what writes to the head that hears of it, and has what the circuit
    loses without the path as ``loss_query``, ``loss_key`` or ``loss_value``, by the side on which
    the head does.

    With m(C) for the metric when heads hear of no part but by the paths C,

    .. math::

        F(C) = \frac{m(C) - m(\emptyset)}{m(\text{all}) - m(\emptyset)}

    is the share of the metric that the circuit keeps.
    """

    if TYPE_CHECKING:

        def draw(
            self,
            *,
            figsize: tuple[float, float] | None = None,
            ax: Axes | None = None,
            labels: bool = True,
            legend: bool = True,
        ) -> Axes:
            """Draw it; `help` shows what each option is."""

    @property
    def stacks(self) -> tuple[str, ...]:
        """The stacks of self-attention of the model."""
        return tuple(json.loads(self.graph["heads"]))

    def table(self) -> Table:
        """List the circuit's paths, the most needed first.

        Returns
        -------
        Table
            ``stack``; the ``part`` that is heard; the ``layer`` and ``head`` that hear of it, and
            the ``side`` by which; and ``loss``, what the circuit loses without the path, in F.
        """
        rows = pd.DataFrame(self.units())[[*FIELDS, "loss"]].reset_index(drop=True)
        return self._table(rows, "paths of the circuit")

    def heads(self) -> Table:
        """List the heads that hear of something.

        Returns
        -------
        Table
            ``stack``, ``layer``, ``head``; and the parts of which its ``query``, ``key`` and
            ``value`` hear, the most needed first.
        """
        rows = []
        for (stack, layer, head), some in pd.DataFrame(self.table()).groupby(
            ["stack", "layer", "head"], sort=True
        ):
            row: dict[str, Any] = {"stack": stack, "layer": layer, "head": head}
            for side in SIDES:
                row[side] = ", ".join(some["part"][some["side"] == side])
            rows.append(row)
        columns = ["stack", "layer", "head", *SIDES]
        return self._table(pd.DataFrame(rows, columns=columns), "heads of the circuit")

    def only(self) -> OnlyPaths:
        """Make the edit that runs the model on these paths alone, the others ablated as they were.

        Raises
        ------
        SelectionError
            If what took the place of other parts is no text, which a graph cannot hold.
        """
        by = json.loads(self.graph["ablation"])
        if by is None:
            raise SelectionError(
                "What took the place of other parts was no text, and is not held by the graph: "
                "pass the list of texts or the text to gattn.circuit."
            )
        paths: dict[str, list[Any]] = {stack: [] for stack in self.stacks}
        for stack, *path in pd.DataFrame(self.table())[FIELDS].itertuples(index=False, name=None):
            paths[stack].append(tuple(path))
        return OnlyPaths(paths, AMONG[self.graph["kind"]], by)


def built_of_paths(
    paths: PathList, proof: Proof, notes: Sequence[str], facts: Mapping[str, Any]
) -> PathCircuit:
    """Build the graph of the paths that are kept."""
    units = paths.described(paths.rows[proof.units])
    rows = [[*unit, 1, loss] for unit, loss in zip(units, proof.losses.tolist(), strict=True)]
    graph = PathCircuit(
        **facts,
        computed_from=": ".join(filter(None, [paths.trace.model, str(facts["metric"])])),
        notes="\n".join(notes),
        kind=paths.kind,
        edges=int(proof.units.sum()),
        all_edges=len(paths),
        faithfulness=proof.faithfulness,
        completeness=proof.completeness,
        random=json.dumps(proof.random.tolist()),
        heads=json.dumps(
            {name: list(heads_of(paths.trace, name).values()) for name in paths.stacks}
        ),
        units=json.dumps({"fields": paths.fields, "rows": rows}),
    )
    for stack, layer, head, side, part, _, loss in rows:
        names = part, f"{layer}.{head}"
        ends = [f"{stack} {name}" if len(paths.stacks) > 1 else name for name in names]
        for end, name in zip(ends, names, strict=True):
            graph.add_node(end, **_named(name))
        graph.add_edge(*ends, **{f"loss_{side}": float(loss)})
    return graph


def _named(part: str) -> dict[str, Any]:
    """Say what a part is."""
    if part == "embedding":
        return {"kind": part}
    if part.startswith("mlp "):
        return {"kind": "mlp", "layer": int(part[4:])}
    layer, head = part.split(".")
    return {"kind": "head", "layer": int(layer), "head": int(head)}
