"""A picture drawn in numbers, and heads that read it."""

import numpy as np

from gattn import AttentionGraph, AttentionTrace, TokenGraph


def landscape(height: int = 32, width: int = 48) -> np.ndarray:
    """A sky with a sun above a meadow with a house, (height, width, 3) from 0 to 1."""
    y, x = np.mgrid[0:height, 0:width] / [[[height]], [[width]]]
    image = np.stack([0.4 + 0.4 * y, 0.6 + 0.3 * y, np.full_like(y, 0.95)], axis=-1)
    image[(x - 0.8) ** 2 + (y - 0.2) ** 2 < 0.01] = [1.0, 0.9, 0.4]
    image[y > 0.6] = [0.3, 0.6, 0.2]
    image[(abs(x - 0.3) < 0.12) & (abs(y - 0.6) < 0.15)] = [0.8, 0.3, 0.2]
    return image


def attention(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).dirichlet(np.ones(shape[-1]), shape[:-1])


def picture_trace(layers: int = 2, heads: int = 3) -> AttentionTrace:
    """A class token and patches in 4 rows and 6 columns."""
    trace = AttentionTrace.from_arrays(attention(layers, heads, 25, 25))
    return trace.on_grid(4, 6, image_size=(32, 48))


def cross_head(queries: int, keys: int) -> AttentionGraph:
    words = ["a", "red", "house", "by", "the"][:queries]
    return AttentionGraph.from_dense(
        attention(queries, keys), TokenGraph.bipartite(queries, keys), query_tokens=words
    )
