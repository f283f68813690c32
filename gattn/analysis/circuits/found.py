"""Circuits: graphs of the attention that keeps a model's answer, and what was measured of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pandas as pd

from gattn.analysis.circuits.measuring.measured import Measured
from gattn.analysis.reading.results import Array, Table, array, edits_of
from gattn.door import drawn_by
from gattn.errors import SelectionError
from gattn.heads.geometry import Geometry
from gattn.heads.geometry.written import from_text
from gattn.heads.trace import AttentionTrace
from gattn.models.edit.kept.only import Only
from gattn.names.text import numbered
from gattn.on_page import OnPage

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap


Node: TypeAlias = "tuple[int, int] | tuple[str, int, int]"
"""Depth and position: depth 0 is the input, l + 1 the output of layer l; the stack if several."""

EDGE = ["stack", "layer", "head", "query", "key"]


class Circuit(OnPage, Measured):
    r"""A set of attention edges on which alone a model keeps its answer: a `networkx.DiGraph`.

    Nodes are ``(depth, position)``: a token's residual stream before layer ``depth``; where a model
    has several stacks, ``(stack, depth, position)``. They have ``token``, ``depth`` and
    ``position``. An edge of ``kind`` "attention", or "self" from a token to itself, leads from
    ``(l, key)`` to ``(l + 1, query)``, and has the attention of each of its heads in layer l as
    ``head_0``, ``head_1`` ... If the units are edges, ``loss_0``, ``loss_1`` ... are what the
    circuit loses without each of these heads there; if they are pairs, ``loss`` is what it loses
    without the pair, in all layers. An edge of ``kind`` "residual" leads from a node to the next in
    which the same token's stream has a part.

    With m(C) for the metric when only the attention of C is left, C being the circuit, the share of
    the metric that it keeps is

    .. math::

        F(C) = \frac{m(C) - m(\emptyset)}{m(\text{all}) - m(\emptyset)}.

    ``trace`` has all edges of the plain run, without logits, which the page shows: 4 bytes for each
    in float32, in pickles too. ``found.trace = None`` lets it go; a circuit from a file, a part of
    one, or what ``copy()`` gives has None.
    """

    trace: AttentionTrace | None = None

    @property
    def tokens(self) -> tuple[str, ...]:
        """The texts of all tokens, in the circuit or not; of a model with one stack."""
        names = json.loads(self.graph["tokens"])
        if len(names) > 1:
            raise SelectionError(f"The circuit has the stacks {', '.join(names)}: see its nodes.")
        return tuple(next(iter(names.values()), ()))

    @property
    def stacks(self) -> tuple[str, ...]:
        """The stacks of the model."""
        return tuple(json.loads(self.graph["tokens"]))

    @property
    def depth(self) -> int:
        """How many layers the model's longest stack has."""
        return max(json.loads(self.graph["layers"]).values(), default=0)

    def table(self) -> Table:
        """List the circuit's edges of attention, one row per head.

        Returns
        -------
        Table
            ``stack``, ``layer``, ``head``, ``query``, ``key``, ``query_token``, ``key_token`` and
            ``attention``; ``loss`` if the units are edges; ``why`` after `why_edges`.
        """
        rows = pd.DataFrame(json.loads(self.graph["rows"]), columns=[*EDGE, "attention"])
        names = json.loads(self.graph["names"])
        for axis, side in (("query", 0), ("key", 1)):
            texts = [
                names[stack][side][at] for stack, at in zip(rows["stack"], rows[axis], strict=True)
            ]
            rows.insert(
                list(rows).index("key") + 1 + side, f"{axis}_token", pd.Series(texts, dtype=object)
            )
        ends, heads = ends_in(self), zip(*(rows[n] for n in EDGE), strict=True)
        reasons = [self.edges[ends(s, n, q, k)].get(f"why_{h}") for s, n, h, q, k in heads]
        if any(reasons):
            rows["why"] = reasons
        if self.graph["kind"] == "edges":
            rows = rows.merge(pd.DataFrame(self.units())[[*EDGE, "loss"]], on=EDGE)
            rows = rows.sort_values("loss", ascending=False, kind="stable", ignore_index=True)
        return self._table(rows, "edges of the circuit")

    def heads(self) -> Table:
        """List the heads that have edges in the circuit.

        Returns
        -------
        Table
            ``stack``, ``layer``, ``head``; ``edges``, how many; ``offset``, how many tokens before
            its query the key of most edges is; ``attention``, the mean; and ``edge``, the tokens of
            its most needed edge in words, or of that with the most attention, if only heads or
            tokens were left out as a whole.
        """
        table = pd.DataFrame(self.table())
        if self.graph["kind"] == "pairs":
            losses = pd.DataFrame(self.units())[["stack", "query", "key", "loss"]]
            table = table.merge(losses, on=["stack", "query", "key"])
        by = "loss" if "loss" in table else "attention"
        table = table.sort_values(by, ascending=False, kind="stable")
        rows = []
        for (stack, layer, head), some in table.groupby(["stack", "layer", "head"], sort=True):
            first = some.iloc[0]
            rows.append(
                {
                    "stack": stack,
                    "layer": layer,
                    "head": head,
                    "edges": len(some),
                    "offset": int((some["query"] - some["key"]).mode()[0]),
                    "attention": float(some["attention"].mean()),
                    "edge": f"{numbered(first.key, first.key_token)} → "
                    f"{numbered(first['query'], first.query_token)}",
                }
            )
        columns = ["stack", "layer", "head", "edges", "offset", "attention", "edge"]
        return self._table(pd.DataFrame(rows, columns=columns), "heads of the circuit")

    def by_token(self) -> Array:
        """Say what the circuit loses without each token, if the units are tokens.

        Returns
        -------
        Array
            Shape (key,), in F, so shares of the metric; NaN where a token is not in the circuit.
            Patches of an image know where they lie: ``found.by_token().draw_image(image)``.

        Raises
        ------
        SelectionError
            If the units are not tokens, or the model has several stacks.
        """
        if self.graph["kind"] != "tokens":
            raise SelectionError(
                f"by_token() needs the tokens of a circuit with units='tokens', and its units are "
                f"{self.graph['kind']!r}."
            )
        losses = np.full(len(self.tokens), np.nan)
        units = self.units()
        losses[units["key"].to_numpy(dtype=int)] = units["loss"]
        return array(
            losses,
            {"key": range(len(losses))},
            name="share lost without the token",
            computed_from=self.computed_from,
            notes=self.notes,
            tokens={"key": self.tokens},
            geometry={"key": geometry_of(self, self.stacks[0])},
            edits=edits_of(self),
        )

    def only(self) -> Only:
        """Make the edit that runs the model on the circuit alone, all else ablated as it was.

        Raises
        ------
        SelectionError
            If it was ablated by what is no text, which a graph cannot hold.
        """
        ablation = json.loads(self.graph["ablation"])
        if ablation is None:
            raise SelectionError(
                "What took the place of other messages was no text, and is not held by the graph: "
                "make the edit yourself, gattn.Only(edges, ablation=...), of the table()."
            )
        rows = json.loads(self.graph["rows"])
        stacks: dict[str, list[list[int]]] = {name: [] for name in self.stacks}
        for stack, *edge, _ in rows:
            stacks[stack].append(edge)
        return Only(stacks, ablation=ablation)

    if TYPE_CHECKING:

        def draw(
            self,
            *,
            figsize: tuple[float, float] | None = None,
            ax: Axes | None = None,
            cmap: str | Colormap | None = None,
            labels: bool = True,
            legend: bool = True,
        ) -> Axes:
            """Draw it; `help` shows what each option is."""

    @drawn_by("draw_circuit_graph")
    def draw_graph(
        self,
        places: Any = None,
        *,
        figsize: tuple[float, float] | None = None,
        ax: Axes | None = None,
        cmap: str | Colormap | None = None,
        labels: bool = True,
        legend: bool = True,
    ) -> Axes:
        """Draw it on the layout of a graph; see `gattn.drawing.draw_circuit_graph`.

        Parameters
        ----------
        places : array (nodes, 2) or mapping of node to (x, y), optional
            Where the nodes lie, as ``data.pos`` or ``networkx.spring_layout(graph)``; by default
            where the model's input had them.
        figsize, ax, cmap, labels, legend
            See `gattn.drawing`.
        """
        raise NotImplementedError

    def _on_page(self) -> tuple[object, dict[str, Any]]:
        """Return its trace, on whose page its edges stand out."""
        if self.trace is None:
            raise SelectionError(
                "A page shows all edges of the plain run, and a circuit from a file, or a part of "
                "one, has its own alone: trace = gattn.capture(text, model, tokenizer), then "
                "trace.to_html(path, circuit=found)."
            )
        return self.trace, {"circuit": self}


def ends_in(circuit: Circuit) -> Callable[[str, int, int, int], tuple[Node, Node]]:
    """Return a function from an edge's stack, layer, query and key to the nodes that it joins."""
    stacks, bipartite = circuit.stacks, json.loads(circuit.graph["bipartite"])
    layers = json.loads(circuit.graph["layers"])

    def ends(stack: str, layer: int, query: int, key: int) -> tuple[Node, Node]:
        if stack not in bipartite:
            if len(stacks) == 1:
                return (layer, key), (layer + 1, query)
            return (stack, layer, key), (stack, layer + 1, query)
        if stack == "cross" and {"encoder", "decoder"} <= set(stacks):
            return ("encoder", layers["encoder"], key), ("decoder", layer + 1, query)
        return (key_side(stack), layer, key), (stack, layer + 1, query)

    return ends


def geometry_of(circuit: Circuit, stack: str) -> Geometry | None:
    """Return where the keys of a stack lie, if that is known."""
    known = json.loads(circuit.graph["geometry"]).get(stack)
    if known is None:
        return None
    return from_text(known["text"], {name: np.array(x) for name, x in known["axes"].items()})


def key_side(stack: str) -> str:
    """Name the keys of a stack whose keys are other tokens than its queries, as nodes do."""
    return f"{stack} keys"
