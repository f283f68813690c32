"""Describes a circuit in the header of a page.

It has ``title`` and ``caption``; ``isSeveral``, whether the model has several stacks; ``bands``,
the stacks as `gattn.drawing.layers.bands` lays them out; ``edges``, one per head, each with its
ends as (band, depth, position), what it ``loss``es and, if known, ``why`` it has its score;
``streams``, the residual streams between them; and ``units``, what is kept as a whole.
"""

from __future__ import annotations

import json
from typing import Any

import pandas as pd

from gattn.analysis.circuits.found import EDGE, Circuit, ends_in
from gattn.drawing.layers.bands import MOST_TOKENS, Band, bands_of, columns, name_of, top
from gattn.drawing.layers.circuits import MOST_EDGES, beside
from gattn.errors import SelectionError
from gattn.heads.head import AttentionGraph
from gattn.heads.trace import AttentionTrace

_LOST = {
    "edges": "lost without it",
    "pairs": "lost without its pair",
    "heads": "lost without its head",
    "tokens": "lost without its key",
}

ROUGH = 1e-2
"""How far the attention of two runs may differ: half precision keeps two to three digits."""


def circuit_entry(circuit: Circuit, trace: AttentionTrace) -> dict[str, Any]:
    """Describe a circuit of a trace.

    Raises
    ------
    SelectionError
        If it is none, or one of other tokens.
    """
    _check(circuit, trace)
    bands = bands_of(circuit, whole=True)
    if columns(bands) > MOST_TOKENS:
        bands = bands_of(circuit, whole=False)
    numbers = {name: n for n, name in enumerate(bands)}
    size = "loss" if circuit.graph["kind"] in ("edges", "pairs") else "attention"
    edges, every = _edges(circuit, size), circuit.graph["edges"]
    few = f"the {len(edges):,} largest of {every:,} edges" if len(edges) < every else ""

    def placed(node: Any) -> list[int]:
        *_, depth, position = node
        return [numbers[name_of(node)], int(depth), int(position)]

    return {
        "title": str(circuit),
        "caption": "; ".join(filter(None, [few, beside(circuit), *circuit.notes])),
        "isSeveral": len(circuit.stacks) > 1,
        "size": size,
        "lost": _LOST[circuit.graph["kind"]],
        "columns": columns(bands),
        "height": top(bands),
        "bands": [_band(band) for band in bands.values()],
        "edges": [
            row | {"from": placed(source), "to": placed(target)} for row, (source, target) in edges
        ],
        "streams": [
            [placed(source), placed(target)]
            for source, target, facts in circuit.edges(data=True)
            if facts["kind"] == "residual"
        ],
        "units": _units(circuit),
    }


def _check(circuit: Circuit, trace: AttentionTrace) -> None:
    """Refuse what is no circuit of a trace."""
    if not isinstance(circuit, Circuit):
        kind = type(circuit).__name__
        raise SelectionError(
            f"circuit= is one of edges, from gattn.circuit, not {kind}"
            + (": take that of a text, as in found[0]." if kind == "Circuits" else ".")
        )
    for stack, tokens in json.loads(circuit.graph["names"]).items():
        first = next(iter(trace.stacks.get(stack, {}).values()), None)
        if first is None:
            raise SelectionError(
                f"The circuit is of the stack {stack!r}, which the trace does not have: pass the "
                "whole trace of its own run, or write the page of the circuit, found.to_html(path)."
            )
        if [first.query_labels(), first.labels()] != tokens:
            raise SelectionError(
                f"The circuit has other tokens in the {stack} stack than the trace: pass the trace "
                "of its own text, or write the page of the circuit, found.to_html(path)."
            )
    _check_attention(circuit, trace)


def _check_attention(circuit: Circuit, trace: AttentionTrace) -> None:
    """Refuse the circuit of a run with other attention; a trace may have fewer edges and heads."""
    known: dict[Any, dict[tuple[int, int], float]] = {}
    for stack, layer, head, query, key, attention in json.loads(circuit.graph["rows"]):
        place = stack, layer, head
        if place not in known:
            known[place] = _edges_of(trace.stacks[stack].get((layer, head)))
        found = known[place].get((query, key), attention)
        if abs(found - attention) > ROUGH:
            raise SelectionError(
                f"The circuit is of another run: query {query} of head {layer}.{head} gives key "
                f"{key} the attention {attention:.3g} there, and {found:.3g} in this trace: pass "
                "the trace of its own run, or write the page of the circuit, found.to_html(path)."
            )


def _edges_of(head: AttentionGraph | None) -> dict[tuple[int, int], float]:
    """Give the attention of each edge of a head by query and key, as circuits count them."""
    if head is None:
        return {}
    offset = 0 if head.graph.is_bipartite else head.graph.query_offset
    pairs = zip((head.query + offset).tolist(), head.key.tolist(), strict=True)
    return dict(zip(pairs, head.attention.tolist(), strict=True))


def _band(band: Band) -> dict[str, Any]:
    return {
        "stack": band.stack,
        "name": band.name,
        "isKeySide": band.is_key_side,
        "tokens": list(band.tokens),
        "rises": [band.height(n) - band.base for n in range(band.layers + 1)],
        "left": band.left,
        "base": band.base,
        "hasNames": band.has_names,
    }


def _edges(circuit: Circuit, size: str) -> list[tuple[dict[str, Any], tuple[Any, Any]]]:
    """List the largest edges of heads, the most needed first, and the nodes that they join."""
    rows = pd.DataFrame(circuit.table())
    units = circuit.units()
    fields = [name for name in EDGE if name in units]
    losses = rows[fields].merge(pd.DataFrame(units), on=fields, how="left")["loss"]
    reasons = [name for name in ("why",) if name in rows]
    rows = rows[[*EDGE, "attention", *reasons]].assign(loss=losses.to_numpy(dtype=float))
    rows = rows.sort_values(size, key=abs, ascending=False, kind="stable")[:MOST_EDGES]
    rows = rows.sort_values(["loss", "attention"], ascending=False, kind="stable")
    ends = ends_in(circuit)
    return [
        (_plain(row), ends(row["stack"], row["layer"], row["query"], row["key"]))
        for row in rows.to_dict("records")
    ]


def _units(circuit: Circuit) -> dict[str, Any] | None:
    """List what is kept as a whole, if that is not each edge by itself."""
    if circuit.graph["kind"] == "edges":
        return None
    rows = pd.DataFrame(circuit.units()).to_dict("records")
    return {"kind": circuit.graph["kind"], "rows": [_plain(row) for row in rows]}


def _plain(row: dict[Any, Any]) -> dict[str, Any]:
    """Write a row as JSON can hold it: no number is null."""
    return {name: None if value != value else value for name, value in row.items()}
