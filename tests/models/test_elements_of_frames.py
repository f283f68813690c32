"""Modules that are given elements beside those of the batch, which inputs further out do not tell.

They are no heads: a norm over each frame mixes its pixels, and a table of pairs knows no rows.
"""

import numpy as np
import pytest
import torch
from torch import nn

from gattn import All, Cut, capturing, edited

WIDTH, HEADS = 8, 2


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts, self.cut = nn.Linear(WIDTH, 3 * WIDTH), None

    def forward(self, x, bias=0):
        q, k, v = self.parts(x).unflatten(-1, (3, HEADS, -1)).transpose(-4, -2).unbind(-3)
        scores = q @ k.mT / 2 + bias
        if self.cut is not None:
            scores = scores.masked_fill(self.cut, -torch.inf)
        self.shown = scores.softmax(-1)
        return (self.shown @ v).transpose(-3, -2).flatten(-2)


class Block(nn.Module):
    """Reads the pixels of each frame, and then the frames at each pixel."""

    def __init__(self):
        super().__init__()
        self.norm = nn.GroupNorm(2, WIDTH)
        self.over_pixels, self.over_frames = Attention(), Attention()

    def forward(self, x, frames):
        pixels = self.norm(x).flatten(2).mT
        pixels = pixels + self.over_pixels(pixels)
        video = pixels.unflatten(0, (-1, frames)).transpose(1, 2).flatten(0, 1)
        video = video + self.over_frames(video)
        back = video.unflatten(0, (-1, pixels.shape[1])).transpose(1, 2).flatten(0, 1)
        return x + back.mT.reshape(x.shape)


class Video(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.conv = (nn.Conv2d(n, WIDTH, 3, padding=1) for n in (3, WIDTH))
        self.norm, self.block = nn.GroupNorm(2, WIDTH), Block()

    def forward(self, video):
        x = self.first(video.flatten(0, 1))
        x = x + self.conv(self.norm(x))
        return self.block(x, video.shape[1])


class Rows(nn.Module):
    """Reads each row of an alignment; a table of pairs, made of the first, is added to scores."""

    def __init__(self):
        super().__init__()
        self.embed, self.pair = nn.Embedding(9, WIDTH), nn.Embedding(9, WIDTH)
        self.bias, self.along = nn.Linear(WIDTH, HEADS), Attention()

    def forward(self, ids):
        first = self.pair(ids[:, 0])
        pairs = self.bias(first[:, :, None] + first[:, None]).permute(0, 3, 1, 2)
        return self.along(self.embed(ids), pairs[:, None])


def checked(model, inputs, module, stack, tokens):
    """Compare a module's attention with `tokens`, the position of each slot (elements, slots)."""
    model(inputs)
    shown = module.shown.reshape(len(inputs), len(tokens), HEADS, *module.shown.shape[-2:])
    with capturing(model, keep=All()) as run:
        model(inputs)
    for own, trace in zip(shown, run.traces, strict=True):
        for head in range(HEADS):
            graph, want = trace[stack][0, head], np.zeros((tokens.numel(), tokens.numel()))
            for positions, attention in zip(tokens, own, strict=True):
                want[np.ix_(positions, positions)] = attention[head]
            assert np.allclose(graph.to_dense(), want, atol=1e-12)
        assert len(trace[stack]) == HEADS


def cut_at(model, inputs, module, stack, tokens):
    """Compare a cut between two tokens of the last element with the same cut by hand."""
    query, key = (int(x) for x in tokens[-1, :2])
    cut = torch.zeros(len(tokens), 1, *module.shown.shape[-2:], dtype=torch.bool)
    cut[-1, :, 0, 1] = True
    module.cut = cut if module.shown.dim() == 5 else cut.repeat(len(inputs), 1, 1, 1)
    want, module.cut = model(inputs), None
    with edited(model, Cut(query=query, key=key, stack=stack)):
        torch.testing.assert_close(model(inputs), want, rtol=0, atol=1e-12)


@torch.no_grad()
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("frames", [2, 3])
def test_pixels_are_no_heads_where_frames_were_normed(batch, frames):
    torch.manual_seed(0)
    model, video = Video().double().eval(), torch.randn(batch, frames, 3, 4, 4).double()
    tokens = torch.arange(frames * 16).view(frames, 16).T
    given = model, video, model.block.over_frames, "block.over_frames", tokens
    checked(*given)
    cut_at(*given)


@torch.no_grad()
@pytest.mark.parametrize("batch", [1, 2])
def test_rows_are_no_heads_where_all_share_a_table_of_pairs(batch):
    torch.manual_seed(0)
    model, ids = Rows().double().eval(), torch.randint(9, (batch, 3, 5))
    given = model, ids, model.along, "along", torch.arange(15).view(3, 5)
    checked(*given)
    cut_at(*given)
