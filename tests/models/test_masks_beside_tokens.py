"""What a model is given beside tokens, such as a mask of padding, tells nothing of their moves."""

import warnings

import numpy as np
import pytest
import torch
from torch import nn

import gattn

TOKENS, WIDTH, HEADS = 6, 8, 2
GIVEN = {
    "image": lambda batch: torch.randn(batch, 3, 8, 12).double(),
    "tokens": lambda batch: torch.randn(batch, TOKENS, 5).double(),
    "ids": lambda batch: torch.randint(30, (batch, TOKENS)),
}


class Attention(nn.Module):
    """Attention with numbers added to its scores; `cut` is a slot of a query and of a key."""

    def __init__(self):
        super().__init__()
        self.qkv, self.cut = nn.Linear(WIDTH, 3 * WIDTH), None

    def forward(self, x, added):
        q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        scores = q @ k.mT + added
        if self.cut is not None:
            scores[:, :, self.cut[0], self.cut[1]] = -torch.inf
        self.shown = scores.softmax(-1).detach()
        return (self.shown @ v).transpose(1, 2).flatten(2)


class Flips(nn.Module):
    """Two layers, between which tokens are flipped, and something given beside the tokens."""

    def __init__(self, use):
        super().__init__()
        torch.manual_seed(0)
        self.image, self.tokens = nn.Conv2d(3, WIDTH, 4, 4), nn.Linear(5, WIDTH)
        self.ids, self.use = nn.Embedding(30, WIDTH), use
        self.layers = nn.ModuleList([Attention(), Attention()])
        self.double().eval()

    def forward(self, x, beside):
        if x.dim() == 4:
            x = self.image(x).flatten(2).mT
        else:
            x = self.tokens(x) if x.is_floating_point() else self.ids(x)
        added = x.new_zeros(()) if self.use is None else self.use(beside)
        x = x + self.layers[0](x, added)
        x = x.flip(1)
        x = x + self.layers[1](x, added)
        return x if self.use is not None else x * beside[..., None]


def one_a_token(batch):
    return torch.rand(batch, TOKENS).double()


def one_a_pair(batch):
    return torch.randn(batch, TOKENS, TOKENS).double()


def no_padding(batch):
    return torch.zeros(batch, TOKENS).double()


def last_padded(batch):
    return no_padding(batch).index_fill(1, torch.tensor([TOKENS - 1]), -torch.inf)


USES = {
    "added to keys": (lambda m: m[:, None, None], one_a_token),
    "keys that it takes": (lambda m: m[:, None, None], last_padded),
    "nothing is padded": (lambda m: m[:, None, None], no_padding),
    "taken by a number": (lambda m: (1 - m[:, None, None]) * -1e9, lambda b: no_padding(b) + 1),
    "pairs": (lambda m: m[:, None], one_a_pair),
    "pairs for all texts": (lambda m: m, lambda _: one_a_pair(1)[0]),
    "of both sides": (lambda m: m[:, None, :, None] * m[:, None, None], one_a_token),
    "after attention": (None, one_a_token),
}


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("kind", GIVEN)
@pytest.mark.parametrize("use", USES)
def test_flipped_tokens_keep_their_positions_beside(use, kind, batch):
    torch.manual_seed(1)
    applied, made = USES[use]
    model = Flips(applied)
    given = GIVEN[kind](batch), made(batch)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("error")
        with gattn.capturing(model) as run:
            model(*given)
        with gattn.edited(model, gattn.Cut(layer=1, query=1, key=4)):
            found = model(*given)
        model(*given)
        shown = [layer.shown.numpy() for layer in model.layers]
        model.layers[1].cut = TOKENS - 2, TOKENS - 5
        expected = model(*given)
    for layer, order in enumerate((slice(None), slice(None, None, -1))):
        wanted = shown[layer]
        for text, trace in enumerate(run.traces):
            for head in range(HEADS):
                dense = trace[layer, head].to_dense()
                assert len(dense) == TOKENS - (layer == 0 and made is last_padded)
                kept = wanted[text, head][order, order][: len(dense), : len(dense)]
                np.testing.assert_allclose(dense, kept, atol=1e-6)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
