"""Builds the graph of a circuit."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from gattn.analysis.circuits.edge_lists import EdgeList, Grouping
from gattn.analysis.circuits.found import Circuit, ends_in, key_side
from gattn.analysis.circuits.measuring.testing import Proof
from gattn.heads.geometry.written import to_text


def built(
    groups: Grouping, proof: Proof, notes: Sequence[str], facts: Mapping[str, Any]
) -> Circuit:
    """Build the graph of the units that are kept."""
    edges = groups.edges
    kept = proof.live
    names = {stack: edges.tokens(stack) for stack in edges.stacks}
    graph = Circuit(
        **facts,
        computed_from=_source(edges, facts),
        notes="\n".join(notes),
        kind=groups.kind,
        edges=int(kept.sum()),
        all_edges=len(edges),
        all_units=len(groups),
        faithfulness=proof.faithfulness,
        completeness=proof.completeness,
        random=json.dumps(proof.random.tolist()),
        layers=json.dumps(_layers(edges)),
        bipartite=json.dumps([name for name in edges.stacks if edges.is_bipartite(name)]),
        names=json.dumps(names),
        tokens=json.dumps({stack: keys for stack, (_, keys) in names.items()}),
        geometry=json.dumps(_geometry(edges)),
        rows=json.dumps(_named(edges.rows[kept], edges.attention[kept], edges)),
        units=json.dumps(
            {
                "fields": groups.fields,
                "rows": _units(groups, proof),
            }
        ),
    )
    graph.trace = replace(edges.trace, logits=None)
    _add_edges(graph, groups, kept, _losses(groups, proof))
    if graph.graph["has_stream"]:
        _add_streams(graph)
    texts = _texts(names)
    for node, named in graph.nodes(data=True):
        *stack, depth, position = node
        text = texts["".join(stack)][position]
        named.update(depth=depth, position=position, token=text)
    return graph


def _texts(names: Mapping[str, tuple[list[str], list[str]]]) -> dict[str, list[str]]:
    """Give the tokens of nodes by the name that these have for their stack, "" if there is one."""
    texts = {key_side(stack): keys for stack, (_, keys) in names.items()}
    texts |= {stack: queries for stack, (queries, _) in names.items()}
    return texts | {"": next(iter(texts.values()), [])}


def _layers(edges: EdgeList) -> dict[str, int]:
    """Count the layers of each stack."""
    counts = dict.fromkeys(edges.stacks, 0)
    for stack, layer in edges.slices:
        counts[stack] = max(counts[stack], layer + 1)
    return counts


def _source(edges: EdgeList, facts: Mapping[str, Any]) -> str:
    return ": ".join(filter(None, [edges.trace.model, str(facts["metric"])]))


def _geometry(edges: EdgeList) -> dict[str, Any]:
    """Write where the keys of each stack lie, where that is known."""
    firsts = {name: next(iter(edges.trace.stacks[name].values())) for name in edges.stacks}
    return {
        name: {
            "text": to_text(head.geometry),
            "axes": {n: np.asarray(x).tolist() for n, x in head.geometry.coordinates().items()},
        }
        for name, head in firsts.items()
        if head.geometry is not None
    }


def _named(rows: np.ndarray, values: np.ndarray, edges: EdgeList) -> list[list[Any]]:
    """List edges with the names of their stacks."""
    return [
        [edges.stacks[stack], *rest, float(value)]
        for (stack, *rest), value in zip(rows.tolist(), values, strict=True)
    ]


def _units(groups: Grouping, proof: Proof) -> list[list[Any]]:
    units = proof.units
    sizes = np.bincount(groups.of_edge[proof.live], minlength=len(units))[units].tolist()
    named = _named(groups.rows[units], proof.losses, groups.edges)
    return [[*unit, size, loss] for (*unit, loss), size in zip(named, sizes, strict=True)]


def _losses(groups: Grouping, proof: Proof) -> np.ndarray:
    """Give each edge the loss of its unit."""
    losses = np.zeros(len(groups))
    losses[proof.units] = proof.losses
    return losses[groups.of_edge]


def _add_edges(graph: Circuit, groups: Grouping, kept: np.ndarray, losses: np.ndarray) -> None:
    edges, ends = groups.edges, ends_in(graph)
    for edge in np.flatnonzero(kept).tolist():
        stack, layer, head, query, key = edges.rows[edge].tolist()
        source, target = ends(edges.stacks[stack], layer, query, key)
        if not graph.has_edge(source, target):
            kind = "self" if source[:-2] == target[:-2] and query == key else "attention"
            graph.add_edge(source, target, kind=kind, layer=layer)
        found = graph.edges[source, target]
        found[f"head_{head}"] = float(edges.attention[edge])
        if groups.kind == "edges":
            found[f"loss_{head}"] = float(losses[edge])
        elif groups.kind == "pairs":
            found["loss"] = float(losses[edge])


def _add_streams(graph: Circuit) -> None:
    """Join the nodes of each token by its residual stream, from the input to the answer."""
    of_token: dict[Any, set[int]] = {}
    for node in list(graph):
        *stack, depth, position = node
        of_token.setdefault((*stack, position), set()).add(depth)
    answers, layers = (json.loads(graph.graph[name]) for name in ("positions", "layers"))
    for (*stack, position), depths in of_token.items():
        if graph.in_degree((*stack, min(depths), position)) == 0:
            depths.add(0)
        if stack in ([], ["decoder"]) and position in answers:
            depths.add(layers["decoder"] if stack else graph.depth)
        for one, next_ in pairwise(sorted(depths)):
            source, target = (*stack, one, position), (*stack, next_, position)
            if not graph.has_edge(source, target):
                graph.add_edge(source, target, kind="residual")
