"""Scores of which code subtracts the largest of each row, which another key changes all alike."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import gattn

WIDTH, WORDS = 16, list("abcdef")


class Attends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        if context is not None:
            _, k, v = self.qkv(context).chunk(3, -1)
        scores = q @ k.mT
        if context is None:
            unread = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
            scores = scores.masked_fill(unread, -torch.finfo(scores.dtype).max)
        scores = scores - scores.amax(-1, keepdim=True).detach()
        self.attention = scores.softmax(-1)
        return x + self.attention @ v


class Captions(nn.Module):
    """Reads a text with a last token of its own, then the text alone, and an image twice."""

    def __init__(self, move) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.last = nn.Embedding(30, WIDTH), nn.Parameter(torch.randn(WIDTH))
        self.patches, self.move = nn.Conv2d(3, WIDTH, 4, 4), move
        self.first = Attends()
        self.texts, self.images = (nn.ModuleList(Attends() for _ in range(2)) for _ in range(2))
        self.eval()

    def forward(self, ids: Tensor, image: Tensor) -> Tensor:
        last = self.last.expand(len(ids), 1, -1)
        x = self.first(torch.cat([self.words(ids), last], 1))[:, :-1]
        patches, x = self.patches(image).flatten(2).mT, self.move(x)
        for text, images in zip(self.texts, self.images, strict=True):
            x = images(text(x), patches)
        return x


MOVES = {
    "stays": (lambda x: x, list(range(6))),
    "turned": (lambda x: x.flip(1), list(range(6))[::-1]),
}


@pytest.mark.parametrize("name", MOVES)
def test_words_keep_their_names(name):
    move, order = MOVES[name]
    model = Captions(move)
    ids, image = torch.randint(1, 30, (2, 6)), torch.randn(2, 3, 16, 16)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        with gattn.capturing(model, keep=gattn.All(), tokens=[WORDS] * 2) as run:
            model(ids, image)
    for number, trace in enumerate(run.traces):
        for layer, module in enumerate(model.texts):
            head = trace["texts"][layer, 0]
            assert head.labels() == WORDS
            expected = module.attention[number][np.argsort(order)][:, np.argsort(order)]
            np.testing.assert_allclose(head.to_dense(), expected, atol=1e-6)


def test_words_that_are_moved_and_mixed_have_none():
    model = Captions(lambda x: x.flip(1) + 0.1 * x)
    ids, image = torch.randint(1, 30, (2, 6)), torch.randn(2, 3, 16, 16)
    with (
        torch.no_grad(),
        pytest.warns(UserWarning, match="moves and mixes them"),
        gattn.capturing(model, tokens=[WORDS] * 2) as run,
    ):
        model(ids, image)
    assert run.traces[0]["texts"][1, 0].labels() == [str(n) for n in range(6)]
