"""Patches that move are followed in an image that has as many channels as patches.

The oracle is dense algebra: what a layer attends to, numbered as the layer before is given tokens.
"""

import pytest
import torch
from torch import nn

import gattn

_WIDTH, _COUNT = 8, 6
MOVES = {
    "none": lambda x: x,
    "flipped": lambda x: x.flip(1),
    "rolled": lambda x: x.roll(1, 1),
    "shuffled": lambda x: x[:, [3, 1, 5, 0, 4, 2]],
}


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(_WIDTH, 3 * _WIDTH)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        self.kept = torch.softmax(q @ k.mT, -1)
        return self.kept @ v


class Unfolding(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.out = nn.Linear(16 * channels, _WIDTH)

    def forward(self, image):
        return self.out(nn.functional.unfold(image, 4, stride=4).mT).mT


class Model(nn.Module):
    def __init__(self, channels, move, kind):
        super().__init__()
        conv = nn.Conv2d(channels, _WIDTH, 4, 4)
        self.patches = conv if kind == "convolution" else Unfolding(channels)
        self.first, self.second, self.move = Attention(), Attention(), move

    def forward(self, image):
        x = self.patches(image).flatten(2).mT
        x = self.move(x + self.first(x))
        return x + self.second(x)


@pytest.mark.parametrize("kind", ["convolution", "unfolding"])
@pytest.mark.parametrize("channels", [3, _COUNT])
@pytest.mark.parametrize("name", MOVES)
def test_patches_that_move_keep_their_positions(name, channels, kind):
    torch.manual_seed(0)
    model = Model(channels, MOVES[name], kind).double().eval()
    image = torch.randn(1, channels, 8, 12).double()
    with torch.no_grad(), gattn.capturing(model) as run:
        model(image)
    found = torch.as_tensor(run.trace["second"][0, 0].to_dense())
    token = MOVES[name](torch.arange(_COUNT)[None, :, None])[0, :, 0]
    expected = torch.zeros_like(found)
    expected[token[:, None], token] = model.second.kept[0]
    torch.testing.assert_close(found, expected)
