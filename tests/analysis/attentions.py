"""Attention to analyse: drawn at random, and as a trace."""

import numpy as np

from gattn.heads.head import AttentionGraph
from gattn.heads.stack import Stack
from gattn.heads.trace import AttentionTrace

TEXT = "The dog chased the cat, and the cat chased the dog"


def random_attention(layers, heads, tokens, causal=False, seed=0, sharp=2.0):
    """Softmaxed normal scores, (layers, heads, tokens, tokens)."""
    scores = np.random.default_rng(seed).normal(size=(layers, heads, tokens, tokens)) * sharp
    if causal:
        scores[..., np.triu(np.ones((tokens, tokens), bool), 1)] = -np.inf
    exp = np.exp(scores - scores.max(-1, keepdims=True))
    return exp / exp.sum(-1, keepdims=True)


def trace_of(attention, keep=None):
    """A trace of (layers, heads, queries, keys)."""
    heads = {
        (layer, head): AttentionGraph.from_dense(matrix, layer=layer, head=head)
        for layer, some in enumerate(attention)
        for head, matrix in enumerate(some)
    }
    if keep is not None:
        heads = {place: head.keep(keep) for place, head in heads.items()}
    return AttentionTrace({"decoder": Stack("decoder", heads)})
