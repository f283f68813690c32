"""Circuits to look at."""

import json

from gattn.analysis.circuits.found import Circuit


def circuit_of(trace, rows, *, stack="decoder"):
    """Make the circuit of some (layer, head, query, key, loss) of a trace of one stack."""
    tokens = list(next(iter(trace.heads())).labels())
    dense = {place: head.to_dense() for place, head in trace[stack].items()}
    named = [[stack, *edge, float(dense[tuple(edge[:2])][edge[2], edge[3]])] for *edge, _ in rows]
    units = [[stack, *edge, 1, loss] for *edge, loss in rows]
    found = Circuit(
        metric="probability of 'x'",
        kind="edges",
        edges=len(rows),
        all_edges=sum(head.graph.num_edges for head in trace.heads()),
        faithfulness=0.9,
        completeness=1.0,
        random="[0.1]",
        has_stream=True,
        layers=json.dumps({stack: len(trace[stack].layers)}),
        bipartite="[]",
        names=json.dumps({stack: [tokens, tokens]}),
        tokens=json.dumps({stack: tokens}),
        rows=json.dumps(named),
        units=json.dumps({"fields": ["stack", "layer", "head", "query", "key"], "rows": units}),
    )
    found.trace = trace
    for layer, head, query, key, loss in rows:
        kind = "self" if query == key else "attention"
        found.add_edge((layer, key), (layer + 1, query), kind=kind, layer=layer)
        found.edges[(layer, key), (layer + 1, query)][f"head_{head}"] = dense[layer, head][
            query, key
        ]
        found.edges[(layer, key), (layer + 1, query)][f"loss_{head}"] = loss
    return found
