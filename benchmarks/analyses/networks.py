"""NetworkX graphs of heads, token graphs and whole stacks, beside NetworkX's own way."""

from __future__ import annotations

from functools import partial
from typing import Any

import networkx as nx

from benchmarks.analyses._attention import causal_attention
from benchmarks.row import Row, Side
from gattn import AttentionGraph, AttentionTrace, TokenGraph

LAYERS = 4


def rows(quick: bool) -> list[Row]:
    """List the rows: a million edges, and half a million of 4 layers."""
    size, fewer = (128, 64) if quick else (1414, 500)
    ready = "add_edges_from of ready tuples"
    return [
        Row(
            f"networkx-{kind}/{tokens}",
            f"the nx.DiGraph of {work}, {tokens} causal tokens",
            f"{ready}{'' if kind == 'graph' else ' with their attributes'}",
            tokens,
            partial(_build, kind),
            time_bar=bar,
            check=_same_graphs,
        )
        for kind, work, tokens, bar in (
            ("graph", "a token graph", size, 1.1),
            ("head", "a head", size, 1.1),
            ("unrolled", f"all tokens at each depth of {LAYERS} layers", fewer, 1.1),
        )
    ]


def _build(kind: str, side: str, size: int, device: str) -> Side:
    if kind == "graph":
        work: Any = TokenGraph.causal(size).to_networkx
    elif kind == "head":
        attention = causal_attention(1, 1, size)[0, 0]
        work = AttentionGraph.from_dense(attention.numpy()).to_networkx
    else:
        trace = AttentionTrace.from_arrays(causal_attention(LAYERS, 1, size).numpy())
        work = trace.unroll
    if side == "gattn":
        return Side(work)
    ready = [(*ends, facts) if facts else ends for *ends, facts in work().edges(data=True)]
    return Side(lambda: _added(ready))


def _added(ready: list[Any]) -> nx.DiGraph:
    graph = nx.DiGraph()
    graph.add_edges_from(ready)
    return graph


def _same_graphs(peer: Side, theirs: nx.DiGraph, gattn: Side, ours: nx.DiGraph) -> dict[str, float]:
    if dict(theirs.adjacency()) != dict(ours.adjacency()):
        raise AssertionError("gattn's graph has other edges")
    return {}
