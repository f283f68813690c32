"""The mean of several heads of the same tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from gattn.graph.rules.edges import Edges
from gattn.heads.head import AttentionGraph, Floats


def mean_of(heads: Sequence[AttentionGraph]) -> AttentionGraph:
    """Average heads of the same tokens; an edge that some lack counts as no attention."""
    first = heads[0]
    if len(heads) == 1:
        return first
    keys = first.graph.num_keys
    codes = np.concatenate([head.query * keys + head.key for head in heads])
    edges, place = np.unique(codes, return_inverse=True)
    numbers = np.concatenate([head.attention.astype(np.float64) for head in heads])
    query, key = np.divmod(edges, max(keys, 1))
    size, offset = first.graph.num_queries, first.graph.query_offset
    rule = Edges.from_pairs(torch.from_numpy(query), torch.from_numpy(key), size, offset)
    attention = np.bincount(place, numbers, len(edges)) / len(heads)
    there = np.bincount(query, minlength=size)
    mass: Floats = np.bincount(query, np.abs(attention), size).astype(np.float64)
    if any(head.dropped_edges.any() for head in heads):  # then it is at most their mean
        mass = np.mean([head.total_mass for head in heads], axis=0, dtype=np.float64)
    sinks = [np.zeros(size) if head.sink is None else head.sink for head in heads]
    return replace(
        first,
        graph=replace(first.graph, rule=rule),
        attention=attention,
        total_mass=mass,
        total_edges=np.max([there, *(head.total_edges for head in heads)], axis=0),
        sink=None if all(head.sink is None for head in heads) else np.mean(sinks, axis=0),
        score=None,
        contribution=None,
        value_norm=None,
        layer=None,
        head=None,
    )
