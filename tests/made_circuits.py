"""Circuits whose edges and numbers are given."""

import json

from gattn.analysis.circuits.found import EDGE, Circuit


def made(rows, *, stacks, layers, bipartite=(), trace=None, **facts):
    """Make the circuit of (source, target, layer, head, loss), or (..., loss, attention).

    `stacks` are the tokens of each stack, queries and keys, and `layers` how many it has. Without
    an attention, that is the loss.
    """
    rows = [(*row, row[4])[:6] for row in rows]
    edges = [
        [_stack_of(source, target, stacks), layer, head, target[-1], source[-1]]
        for source, target, layer, head, *_ in rows
    ]
    units = [[*edge, 1, loss] for edge, (*_, loss, _) in zip(edges, rows, strict=True)]
    told = {
        "metric": "probability of 'x'",
        "ablation": '"zero"',
        "full": 1.0,
        "empty": 0.0,
        "keep": 0.9,
        "runs": 9,
        "seconds": 0.1,
        "has_stream": True,
        "positions": "[]",
        "computed_from": "",
        "notes": "",
        "kind": "edges",
        "edges": len(rows),
        "all_edges": 99,
        "all_units": 99,
        "order": "[]",
        "faithfulness": 0.9,
        "completeness": 1.0,
        "random": "[]",
        "layers": json.dumps(layers),
        "bipartite": json.dumps(list(bipartite)),
        "names": json.dumps(stacks),
        "tokens": json.dumps({name: keys for name, (_, keys) in stacks.items()}),
        "geometry": "{}",
        "rows": json.dumps([[*edge, row[5]] for edge, row in zip(edges, rows, strict=True)]),
        "units": json.dumps({"fields": ["stack", *EDGE[1:]], "rows": units}),
    }
    found = Circuit(**told | facts)
    for source, target, layer, head, loss, attention in rows:
        kind = "self" if source[:-2] == target[:-2] and source[-1] == target[-1] else "attention"
        found.add_edge(source, target, kind=kind, layer=layer)
        found.edges[source, target].update({f"head_{head}": attention, f"loss_{head}": loss})
    found.trace = trace
    return found


def made_of(trace, rows, *, stack="decoder", **facts):
    """Make the circuit of some (layer, head, query, key, loss) of a trace of one stack."""
    tokens = list(next(iter(trace.heads())).labels())
    dense = {place: head.to_dense() for place, head in trace[stack].items()}
    edges = [
        ((layer, key), (layer + 1, query), layer, head, loss, float(dense[layer, head][query, key]))
        for layer, head, query, key, loss in rows
    ]
    facts = {"all_edges": sum(head.graph.num_edges for head in trace.heads())} | facts
    layers = {stack: len(trace[stack].layers)}
    return made(edges, stacks={stack: [tokens, tokens]}, layers=layers, trace=trace, **facts)


def _stack_of(source, target, stacks):
    """Name the stack of an edge: its query's, unless its key is of another one."""
    if len(target) == 2:
        return next(iter(stacks))
    return target[0] if source[0] in (target[0], f"{target[0]} keys") else "cross"
