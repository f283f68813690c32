"""Layers of a graph that write out a softmax over edges."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import leaky_relu

NODES, WIDTH, HEADS, DIM = 7, 8, 2, 4
PAIRS = [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (0, 3), (5, 0), (2, 0), (6, 6), (1, 3), (4, 4)]
EDGES = torch.tensor(PAIRS).T
X = torch.randn(NODES, WIDTH, generator=torch.Generator().manual_seed(1))


def wide(index, like):
    return index.reshape(-1, *(1,) * (like.dim() - 1)).expand_as(like)


def by_index_add(scores, at, count):
    weights = (scores - scores.max()).exp()
    return weights / scores.new_zeros(count, *scores.shape[1:]).index_add(0, at, weights)[at]


def in_place(scores, at, count):
    total = scores.new_zeros(count, *scores.shape[1:])
    weights = scores.exp()
    total.index_add_(0, at, weights)
    weights /= total[at]
    return weights


def by_scatter_reduce(scores, at, count):
    start = scores.new_full((count, *scores.shape[1:]), -torch.inf)
    most = start.scatter_reduce(0, wide(at, scores), scores, "amax")
    weights = torch.exp(scores - most[at])
    total = torch.zeros_like(most).scatter_reduce(0, wide(at, scores), weights, "sum")
    return weights / (total.index_select(0, at) + 1e-16)


def by_scatter_add(scores, at, count):
    weights = scores.exp()
    total = weights.new_zeros(count, *scores.shape[1:]).scatter_add_(0, wide(at, scores), weights)
    return weights * total.gather(0, wide(at, scores)).clamp(min=1e-12).reciprocal()


def by_name(scores, at, count):
    weights = scores.exp().unsqueeze(-1)
    total = torch.zeros(count, *weights.shape[1:], dtype=weights.dtype)
    return (weights / total.index_add(dim=0, index=at, source=weights)[at]).squeeze(-1)


WAYS = [by_index_add, in_place, by_scatter_reduce, by_scatter_add, by_name]


class Layer(nn.Module):
    """Graph attention as the paper on GAT has it, written with sums by an index."""

    def __init__(self, softmax=by_index_add, edge=False, heads=HEADS):
        super().__init__()
        self.softmax, self.heads = softmax, heads
        self.lin = nn.Linear(WIDTH, heads * DIM)
        self.edge = nn.Linear(3, heads * DIM) if edge else None
        self.at, self.of = (nn.Parameter(torch.randn(heads, DIM)) for _ in range(2))

    def forward(self, x, edge_index, features=None):
        source, target = edge_index
        value = self.lin(x).view(-1, self.heads, DIM)
        scores = (value * self.of).sum(-1)[source] + (value * self.at).sum(-1)[target]
        self.alpha = self.softmax(leaky_relu(scores, 0.2), target, len(x))
        message = value[source]
        if self.edge is not None:
            message = message + self.edge(features).view(-1, self.heads, DIM)
        message = self.alpha[..., None] * message
        return value.new_zeros(value.shape).index_add_(0, target, message).flatten(1)


class Net(nn.Module):
    def __init__(self, **options):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(Layer(**options) for _ in range(2))
        self.eval()

    def forward(self, x, edge_index, *features):
        for layer in self.layers:
            x = layer(x, edge_index, *features).tanh()
        return x


def dense(alpha, edges=EDGES):
    return torch.zeros(NODES, NODES, dtype=alpha.dtype).index_put((edges[1], edges[0]), alpha)


def left(edge):
    return torch.arange(EDGES.shape[1]) != edge
