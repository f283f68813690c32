"""Pictures as they stand in papers: one column, three panels, two inches high."""

import json
from functools import cache
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import networkx as nx
import numpy as np
from made_circuits import made
from matplotlib.figure import Figure
from sample_heads import bipartite_head, causal_head, decoding_step, signed_head

import gattn
from gattn import AttentionGraph, AttentionTrace, TokenGraph
from gattn.edit_records import to_text
from gattn.heads.stack import Stack

TEXT = "The river tall green lamp river tall green lamp river tall green ."
LAMP = TEXT.split()
LAMPS = TEXT.removesuffix(" .")
LONG = [*LAMP[:5], "antidisestablishmentarianism", *LAMP[6:]]
COLUMN, LOW, WIDE = (3.3, 2.4), (3.3, 2.0), (6.75, 2.2)
FONT = {"font.size": 7}


def lamp(seed=0, **facts):
    return causal_head(13, seed=seed, **{"tokens": LAMP, "layer": 2, "head": seed} | facts)


def two_sided():
    matrix = np.random.default_rng(3).dirichlet(np.full(9, 0.3), 9)
    return AttentionGraph.from_dense(matrix, tokens=LAMP[:9], layer=0, head=1)


def cross():
    matrix = np.random.default_rng(1).dirichlet(np.ones(8), 6)
    return AttentionGraph.from_dense(
        matrix, TokenGraph.bipartite(6, 8), tokens=LAMP[:8], layer=1, head=0,
        query_tokens=["Der", "Fluss", "und", "die", "Lampe", "."],
    )  # fmt: skip


@cache
def trace(layers=3, heads=4, size=13):
    tokens = [LAMP[i % 13] for i in range(size)]
    found = {
        (n, h): causal_head(size, seed=7 * n + h, tokens=tokens, layer=n, head=h)
        for n in range(layers)
        for h in range(heads)
    }
    return AttentionTrace({"decoder": Stack("decoder", found)}, "tiny-model")


@cache
def other_run(layers=3, heads=4, size=13):
    """Another run on the tokens of `trace`."""
    found = {
        (n, h): causal_head(size, seed=50 + 7 * n + h, tokens=LAMP, layer=n, head=h)
        for n in range(layers)
        for h in range(heads)
    }
    return AttentionTrace({"decoder": Stack("decoder", found)}, "tiny-model")


def over_images(figure):
    from scenes import landscape, picture_trace

    picture_trace().draw_image(landscape(), query=(1, 2), figure=figure)


@cache
def karate():
    graph = nx.karate_club_graph()
    reads = nx.DiGraph(graph.to_directed())
    for source, target in reads.edges:
        reads.edges[source, target]["weight"] = 1 / reads.in_degree(target)
    places = nx.spring_layout(graph, seed=1)
    return AttentionGraph.from_networkx(reads).with_layout(places)


@cache
def distances():
    return gattn.analysis.head_distances(trace(), progress=False)


@cache
def effects(kind):
    from test_draw_effects import cuts, edges

    if kind == "heads":
        return cuts(4, 4)
    many = {"arcs": ((2, 0),), "matrix": ((2, 0),), "layered": ((0, 1), (1, 0), (2, 3))}
    if kind == "edits":
        table = cuts(3, 4)
        return table
    return edges(heads=many[kind], tokens=LAMP)


@cache
def circuit():
    return gattn.circuit(LAMPS, target=" lamp")


@cache
def circuit_of_heads(units="heads"):
    return gattn.circuit(LAMPS, target=" lamp", units=units, random=0, progress=False)


@cache
def circuit_of_stacks():
    """An encoder, and a decoder whose attention to itself and to the encoder take turns."""
    words, targets = ["the", "cat", "sat", "down"], ["die", "Katze", "saß"]
    stacks = {
        "encoder.layers.self_attn": [words, words],
        "decoder.layers.self_attn": [targets, targets],
        "decoder.layers.multihead_attn": [targets, words],
    }
    encoder, own, across = stacks
    keys = f"{across} keys"
    rows = [
        ((encoder, 0, 1), (encoder, 1, 2), 0, 1, 0.8),
        ((encoder, 1, 2), (encoder, 2, 2), 1, 1, 0.3),
        ((own, 0, 0), (own, 1, 1), 0, 0, 0.7),
        ((keys, 0, 3), (across, 1, 1), 0, 0, 0.6),
        ((own, 1, 1), (own, 2, 2), 1, 3, 0.9),
        ((keys, 1, 0), (across, 2, 2), 1, 1, 0.5),
    ]
    order = [*((encoder, n) for n in range(2)), *((s, n) for n in range(2) for s in (own, across))]
    layers = dict.fromkeys(stacks, 2)
    return made(rows, stacks=stacks, layers=layers, bipartite=[across], order=json.dumps(order))


@cache
def translation():
    words, targets = ["the", "cat", "sat", "down"], ["die", "Katze", "saß"]
    stacks = {"encoder": [words, words], "decoder": [targets, targets], "cross": [targets, words]}
    rows = [
        (("encoder", 0, 1), ("encoder", 1, 2), 0, 1, 0.8),
        (("encoder", 2, 2), ("decoder", 1, 1), 0, 0, 0.7),
        (("decoder", 1, 1), ("decoder", 2, 2), 1, 3, 0.9),
        (("encoder", 2, 3), ("decoder", 2, 2), 1, 2, 0.3),
    ]
    return made(rows, stacks=stacks, layers=dict.fromkeys(stacks, 2), bipartite=["cross"])


@cache
def circuits():
    return gattn.circuit([LAMPS, TEXT], target=" lamp", random=0, progress=False)


@cache
def club():
    """Effects of cutting the edges of the karate club, and the circuit of a few of them."""
    from test_effects_on_graphs import CLUB, PLACES, effects

    names = [str(n) for n in CLUB]
    rows = [((0, j), (1, i), 0, 0, abs(x) / 3) for i, j, x in
            effects()[["query", "key", "effect"]].iloc[::12].itertuples(index=False)]  # fmt: skip
    stacks, facts = {"graph": [names, names]}, {"has_stream": False, "trace": None}
    return effects(), made(rows, stacks=stacks, layers={"graph": 1}, **facts), PLACES


def column_of_cuts(ax):
    """Forty cuts of edges in a stack with a long name."""
    table = effects("arcs").query("layer == 2")[:40].copy()
    stack = "model.decoder.self_attn"
    cuts = [
        gattn.Cut(stack=stack, layer=2, head=0, query=i, key=j)
        for i, j in zip(table["query"], table["key"], strict=True)
    ]
    table["edit"] = list(map(repr, cuts))
    table["record"] = [to_text([cut]) for cut in cuts]
    table.draw("edits", ax=ax)


def arborescence():
    return gattn.analysis.arborescence(two_sided())


@cache
def curves():
    return gattn.analysis.deletion_curve(repeated(), LAMPS, target=" lamp", progress=False)


@cache
def subspace():
    import sys

    sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))
    from draw_pictures import shared_subspace

    return shared_subspace()


@cache
def repeated():
    return gattn.capture(LAMPS)


@cache
def statistics(kind):
    from test_interval_pictures import comparison
    from test_interval_pictures import statistics as of_a_corpus

    return of_a_corpus(12, 12) if kind == "statistics" else comparison(8, 8)


def overlay(layout, ax):
    chosen = [lamp(seed) for seed in range(3)]
    gattn.drawing.draw_overlay(chosen, layout, threshold=0.1, ax=ax)


def timed():
    from scenes import cross_head

    return cross_head(5, 40).at_times(0.5)


def agreement():
    from test_draw_results import agreement

    return agreement()


def spring(graph):
    return nx.spring_layout(graph, seed=0)


def image():
    from scenes import landscape, picture_trace

    return picture_trace()[1, 2], landscape()


HEADS = {
    "13 tokens": lamp,
    "a long token": lambda: lamp(tokens=LONG),
    "61 tokens": lambda: causal_head(61, tokens=[f"{LAMP[i % 13]}" for i in range(61)]),
    "60 tokens": lambda: causal_head(60, tokens=[f"{LAMP[i % 13]}" for i in range(60)]),
    "500 tokens": lambda: causal_head(500),
    "both ways": two_sided,
    "cross": cross,
    "signed": signed_head,
    "step": decoding_step,
    "small cross": bipartite_head,
}


def _one(name, layout):
    def draw(ax):
        HEADS[name]().draw(spring if layout == "spring" else layout, ax=ax)

    return draw


PICTURES = {
    f"{layout}, {name}": _one(name, layout)
    for layout in ("matrix", "arcs", "columns", "circle", "spring")
    for name in HEADS
    if not (layout == "spring" and name == "500 tokens")
}


def drawn(how):
    """Let a result be drawn when it is asked for."""

    def draw(ax):
        how(ax)

    return draw


PICTURES |= {
    "karate club": lambda ax: karate().draw_graph(ax=ax),
    "karate club, a query": lambda ax: karate().draw_graph(33, ax=ax),
    "text": lambda ax: lamp().draw_text(ax=ax),
    "token graph": lambda ax: TokenGraph.longformer(16, 2, [0, 9]).draw(ax=ax),
    "token graph, blocks": lambda ax: TokenGraph.bigbird(4096, 64).draw(labels=False, ax=ax),
    "image": lambda ax: image()[0].draw_image(image()[1], query=(1, 2), ax=ax),
    "unrolled": lambda ax: trace().unroll().draw(ax=ax),
    "rollout": lambda ax: trace().unroll().rollout(query=-1).draw(ax=ax),
    "ribbons": lambda ax: trace().unroll().rollout(query=-1).draw("ribbons", ax=ax),
    "ribbons, 24 layers": lambda ax: trace(24, 1).unroll().rollout(query=-1).draw("ribbons", ax=ax),
    "unrolled, 100 tokens": lambda ax: trace(3, 1, 100).unroll().draw(ax=ax),
    "circuit": lambda ax: circuit().draw(ax=ax),
    "circuit of heads": lambda ax: circuit_of_heads().draw(ax=ax),
    "circuit of paths": lambda ax: circuit_of_heads("paths").draw(ax=ax),
    "circuit of stacks": lambda ax: circuit_of_stacks().draw(ax=ax),
    "circuit of a translation": lambda ax: translation().draw(ax=ax),
    "circuits": lambda ax: circuits().draw(ax=ax),
    "circuit of a graph": lambda ax: club()[1].draw_graph(club()[2], ax=ax),
    "effects on a graph": lambda ax: club()[0].draw_graph(club()[2], ax=ax),
    "effects, 40 cuts": column_of_cuts,
    "curves": lambda ax: curves().draw(ax=ax),
    "subspace": lambda ax: subspace().draw(ax=ax),
    "tree": lambda ax: arborescence().draw(ax=ax),
    "bottlenecks": lambda ax: gattn.analysis.bottlenecks(trace(), 3, 12).draw(ax=ax),
    "topology": lambda ax: gattn.analysis.topology_table(trace(), progress=False).draw(ax=ax),
    "head table": lambda ax: gattn.analysis.head_table(trace(), progress=False).draw(ax=ax),
    "head map": lambda ax: gattn.analysis.head_map(distances()).draw(ax=ax),
    "head clusters": lambda ax: gattn.analysis.head_clusters(distances(), 3).draw(ax=ax),
    "received": lambda ax: gattn.analysis.rollout(trace()).draw(ax=ax),
    "effects, arcs": lambda ax: effects("arcs").draw("arcs", ax=ax),
    "effects, matrix": lambda ax: effects("matrix").draw("matrix", ax=ax),
    "effects, layered": lambda ax: effects("layered").draw("layered", ax=ax),
    "effects, heads": lambda ax: effects("heads").draw("heads", ax=ax),
    "effects, edits": lambda ax: effects("edits").draw("edits", ax=ax),
    "overlay, arcs": lambda ax: overlay("arcs", ax),
    "overlay, columns": lambda ax: overlay("columns", ax),
    "overlay, circle": lambda ax: overlay("circle", ax),
    "routes": lambda ax: gattn.analysis.routes(LAMPS, progress=False).draw(paths=3, ax=ax),
    "why": lambda ax: gattn.drawing.draw_why(
        gattn.why(LAMPS, layer=2, head=0, query=-1, key=9), ax=ax
    ),
    "flow": lambda ax: repeated().unroll().flow(key=5, query=12).draw(ax=ax),
    "seconds, a word": lambda ax: timed().draw_time("house", ax=ax),
    "seconds, all words": lambda ax: timed().draw_time(ax=ax),
    "intervals": lambda ax: statistics("statistics").draw(ax=ax),
    "intervals, ranked": lambda ax: statistics("statistics").draw("ranked", count=10, ax=ax),
    "two corpora": lambda ax: statistics("comparison").draw(ax=ax),
    "two corpora, ranked": lambda ax: statistics("comparison").draw("ranked", count=10, ax=ax),
    "barcode": lambda ax: gattn.analysis.barcode(lamp()).draw(ax=ax),
    "spectra": lambda ax: gattn.analysis.graph_frequencies(repeated(), progress=False).draw(ax=ax),
    "communities": lambda ax: gattn.analysis.communities(repeated(), progress=False).draw(ax=ax),
    "best edges": lambda ax: gattn.analysis.best_edges(repeated(), progress=False).draw(ax=ax),
    "composition": lambda ax: gattn.compose(gattn.load_model()[0]).draw(ax=ax),
    "agreement": lambda ax: agreement().draw(ax=ax),
}
"""How each kind of picture is drawn on axes, by its name."""

CHOSEN = [(1, 1), (2, 0), (2, 1)]

SHEETS = {
    "strip": lambda figure: trace().draw(heads=[(1, 1), (2, 0), (2, 1)], figure=figure),
    "labelled strip": lambda figure: trace().draw(
        heads=[(1, 1), (2, 0), (2, 1)], label="label", figure=figure
    ),
    "all heads": lambda figure: trace().draw(figure=figure),
    "strip of 60 tokens": lambda figure: trace(3, 4, 60).draw(
        heads=[(1, 1), (2, 0)], figure=figure
    ),
    "strip of eight": lambda figure: trace().draw(
        heads=[(n, h) for n in (1, 2) for h in range(4)], figure=figure
    ),
    "sorted heads": lambda figure: trace().draw(sort="induction", figure=figure),
    "many sorted heads": lambda figure: trace(8, 8).draw(sort="induction", figure=figure),
    "labelled heads": lambda figure: trace().draw(label="label", figure=figure),
    "two runs": lambda figure: trace().draw(other=trace(), figure=figure),
    "a strip of two runs": lambda figure: trace().draw(
        other=other_run(), heads=CHOSEN, figure=figure
    ),
    "images": lambda figure: over_images(figure),
}
"""How pictures of many heads are drawn on a figure."""

PANELS = [
    ["matrix, 13 tokens", "matrix, 60 tokens", "matrix, cross"],
    ["arcs, 13 tokens", "columns, 13 tokens", "circle, 13 tokens"],
    ["matrix, 13 tokens", "effects, heads", "unrolled"],
    ["circle, both ways", "karate club", "head table"],
    ["overlay, arcs", "routes", "why"],
    ["intervals", "seconds, all words", "token graph, blocks"],
]
"""Which pictures stand side by side."""


def one(name, size, layout):
    """Draw a picture alone on a figure."""
    figure = Figure(size, layout=layout)
    PICTURES[name](figure.add_subplot())
    return figure


def panels(names, size, layout):
    """Draw pictures side by side."""
    figure = Figure(size, layout=layout)
    for ax, name in zip(figure.subplots(1, len(names)), names, strict=True):
        PICTURES[name](ax)
    return figure


def own(name, size):
    """Draw a head on a figure that it makes itself, and give that another size."""
    layout, _, head = name.partition(", ")
    ax = HEADS[head]().draw(spring if layout == "spring" else layout)
    figure = ax.figure
    plt.close(figure)
    if size:
        figure.set_size_inches(size)
    return figure


def sheet(name, size):
    figure = Figure(size)
    SHEETS[name](figure)
    return figure


def in_small_print(function, *arguments):
    with mpl.rc_context(FONT):
        return function(*arguments)
