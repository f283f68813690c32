"""Heads, traces and graphs to save."""

from dataclasses import replace

import numpy as np
import torch

from gattn.graph.token_graph import TokenGraph
from gattn.heads.head import AttentionGraph
from gattn.heads.stack import Stack
from gattn.heads.trace import AttentionTrace
from gattn.keep import TopK

TOKENS = ('"a"\\', "<b>&amp;", "\x00\x1b\r\n\t", "\ud83d", "\ude00\ud83d\ude00", "", "😀 猫")


def attention(seed: int = 0, size: int = len(TOKENS)) -> np.ndarray:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(size, size, generator=generator)
    future = torch.ones(size, size, dtype=torch.bool).triu(1)
    return scores.masked_fill(future, -torch.inf).softmax(-1).numpy()


def whole_head(**changes) -> AttentionGraph:
    A = attention()
    graph = TokenGraph.causal(len(TOKENS))
    key, query = graph.edge_index.numpy()
    scores = np.log(A[query, key])
    scores[:3] = [-np.inf, np.inf, -0.0]
    head = AttentionGraph.from_dense(
        A,
        graph,
        tokens=TOKENS,
        words=(0, 0, 1, None, 2, 2, 3),
        generated=2,
        score=scores,
        contribution=np.linspace(0, 9, len(key), dtype=np.float32),
        value_norm=A[query, key] / 3,
        sink=np.linspace(0, 0.5, len(TOKENS), dtype=np.float32),
        layer=1,
        head=2,
        key_value_head=1,
        model='m"<&\x01',
        weight_function="ScaledDotProduct()",
        normalizer="Softmax()",
    )
    return replace(head, **changes)


CROSS = AttentionGraph.from_dense(
    attention()[:2, :3].astype(np.float64),
    TokenGraph.bipartite(2, 3),
    tokens=TOKENS[:3],
    query_tokens=TOKENS[3:5],
    generated=1,
)
HEADS = {
    "whole": whole_head(),
    "kept": whole_head().keep(TopK(2)),
    "subgraph": whole_head().subgraph([1, 4, 6]),
    "merged": whole_head().merge_words(),
    "cross": CROSS,
    "part of cross": CROSS.subgraph([1]),
    "step": AttentionGraph.from_dense(
        attention()[5:], TokenGraph.causal(2, query_offset=5), tokens=TOKENS
    ),
}


def small_trace() -> AttentionTrace:
    heads = {(1, 2): whole_head(), (1, 3): whole_head(head=3), (2, 0): HEADS["kept"]}
    return AttentionTrace(
        {"decoder": Stack("decoder", heads), "cross": Stack("cross", {(0, 0): CROSS})},
        "toy\ud800",
        generated=2,
    )
