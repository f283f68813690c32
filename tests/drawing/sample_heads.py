"""Heads to draw."""

from dataclasses import replace

import numpy as np

from gattn.graph.token_graph import TokenGraph
from gattn.heads.head import AttentionGraph
from gattn.heads.stack import Stack
from gattn.heads.trace import AttentionTrace


def causal_head(size: int, *, seed: int = 0, **attributes: object) -> AttentionGraph:
    rows = np.tril(np.random.default_rng(seed).exponential(size=(size, size)) ** 3) + np.tril(
        np.full((size, size), 1e-9)
    )
    tokens = [f"word{i % 7}" for i in range(size)]
    attributes = {"tokens": tokens, "layer": 1, "head": 3} | attributes
    attention = rows / rows.sum(1, keepdims=True)
    return AttentionGraph.from_dense(attention, TokenGraph.causal(size), **attributes)


def uniform_head(size: int) -> AttentionGraph:
    rows = np.tril(np.ones((size, size)))
    return AttentionGraph.from_dense(rows / rows.sum(1, keepdims=True))


def bipartite_head() -> AttentionGraph:
    attention = np.random.default_rng(1).dirichlet(np.ones(5), 3)
    return AttentionGraph.from_dense(
        attention,
        TokenGraph.bipartite(3, 5),
        tokens=["a", "b", "c", "d", "e"],
        query_tokens=["x", "y", "z"],
    )


def decoding_step() -> AttentionGraph:
    graph = TokenGraph.causal(2, num_keys=6, query_offset=4)
    attention = np.random.default_rng(2).dirichlet(np.ones(6), 2)
    return AttentionGraph.from_dense(attention, graph, tokens=list("abcdef"))


def signed_head() -> AttentionGraph:
    attention = np.array([[0.5, 0.0, 0.0], [-0.8, 0.3, 0.0], [1.6, -0.2, 0.1]])
    return AttentionGraph.from_dense(attention, TokenGraph.causal(3), tokens=["a", "b", "c"])


def small_trace(*, stacks: tuple[str, ...] = ("decoder",)) -> AttentionTrace:
    places = [(layer, head) for layer in (0, 2) for head in (1, 3, 4)]
    return AttentionTrace(
        {
            name: Stack(name, {place: causal_head(6, seed=sum(place)) for place in places})
            for name in stacks
        },
        "tiny-model",
    )


SHAPES = {
    "one": causal_head(1),
    "short": causal_head(6),
    "words": causal_head(30, tokens=[f"some longer word {i}" for i in range(30)]),
    "long": causal_head(90),
    "bipartite": bipartite_head(),
    "step": decoding_step(),
    "sink": replace(causal_head(4), sink=np.array([0.9, 0.5, 0.4, 0.3])),
}
