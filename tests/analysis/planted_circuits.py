"""Transformers without MLPs whose weights are written by hand, so that their circuits are known."""

import torch
from torch import nn

CERTAIN = 40.0
"""A score so much above the others that a head attends to one key."""


class Attention(nn.Module):
    """Causal attention of heads with a matrix each for scores and for values."""

    def __init__(self, scores, values):
        super().__init__()
        self.scores, self.values = nn.Parameter(scores), nn.Parameter(values)

    def forward(self, x):
        heads = x[:, None]
        scores = heads @ self.scores @ heads.mT
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        attention = scores.masked_fill(mask, -torch.inf).softmax(-1)
        return (attention @ (heads @ self.values)).sum(1)


class Induction(nn.Module):
    """Two layers: a head that copies the token before, and one that reads what followed before.

    The stream is [token | position | token before | answer]. `place` says which head of each layer
    does it; the other heads have random scores and values of size `noise`.
    """

    def __init__(self, vocabulary, length, heads=2, place=(0, 0), noise=0.0, seed=0):
        super().__init__()
        v, t = vocabulary, length
        width = 3 * v + t
        generator = torch.Generator().manual_seed(seed)
        self.vocabulary, self.length = v, t

        def random(size):
            return size * torch.randn(2, heads, width, width, generator=generator).double()

        scores, values = random(1.0), random(noise)
        token, position = slice(0, v), slice(v, v + t)
        before, answer = slice(v + t, 2 * v + t), slice(2 * v + t, width)
        for layer in (0, 1):
            scores[layer, place[layer]] = values[layer, place[layer]] = 0
        for n in range(1, t):
            scores[0, place[0], v + n, v + n - 1] = CERTAIN
        values[0, place[0], token, before] = torch.eye(v).double()
        scores[1, place[1], token, before] = CERTAIN * torch.eye(v).double()
        values[1, place[1], token, answer] = torch.eye(v).double()
        self.layers = nn.ModuleList(Attention(*some) for some in zip(scores, values, strict=True))
        self.position = position

    def forward(self, ids):
        x = torch.zeros(*ids.shape, 3 * self.vocabulary + self.length, dtype=torch.float64)
        x[..., : self.vocabulary] = nn.functional.one_hot(ids, self.vocabulary)
        x[..., self.position] = torch.eye(self.length, dtype=torch.float64)[: ids.shape[1]]
        for layer in self.layers:
            x = x + layer(x)
        return 4 * x[..., -self.vocabulary :]
