"""Circuits made by hand, and what is seen in their pictures."""

import json

from matplotlib.figure import Figure

from gattn.analysis.circuits.found import Circuit


def drawn(found, inches, **options):
    if inches is None:
        return found.draw(**options)
    return found.draw(ax=Figure(inches, layout="constrained").add_subplot(), **options)


def curves(ax):
    (lines,) = (c for c in ax.collections if c.get_gid() == "gattn-edges")
    return [path.vertices for path in lines.get_paths()]


def names(ax):
    return [text for text in ax.texts if text.get_gid() == "gattn-heads"]


def caption(ax):
    return next(t.get_text() for t in ax.texts if t.get_gid() == "gattn-caption").replace("\n", " ")


def made(rows, *, stacks, layers, bipartite=(), has_stream=True, kind="edges", trace=None):
    """Make the circuit of (source, target, layer, head, number), and the tokens of its stacks."""
    stack = next(iter(stacks))
    edges = [
        [stack, layer, head, target[-1], source[-1]] for source, target, layer, head, _ in rows
    ]
    numbers = [number for *_, number in rows]
    units = [[*edge, 1, number] for edge, number in zip(edges, numbers, strict=True)]
    found = Circuit(
        metric="probability of 'x'",
        kind=kind,
        edges=len(rows),
        all_edges=99,
        faithfulness=0.9,
        completeness=1.0,
        random="[]",
        has_stream=has_stream,
        layers=json.dumps(layers),
        bipartite=json.dumps(list(bipartite)),
        geometry="{}",
        names=json.dumps(stacks),
        tokens=json.dumps({name: keys for name, (_, keys) in stacks.items()}),
        rows=json.dumps([[*edge, n] for edge, n in zip(edges, numbers, strict=True)]),
        units=json.dumps({"fields": ["stack", "layer", "head", "query", "key"], "rows": units}),
    )
    for source, target, layer, head, number in rows:
        kind = "self" if source[:-2] == target[:-2] and source[-1] == target[-1] else "attention"
        found.add_edge(source, target, kind=kind, layer=layer)
        facts = {f"head_{head}": number, f"loss_{head}": number}
        found.edges[source, target].update(facts)
    found.trace = trace
    return found
