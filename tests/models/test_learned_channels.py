"""Channels that a model has learned, beside those of each text, as iTransformer's memory tokens."""

import pytest
import torch
from torch import nn

from gattn import Cut, capturing, edited
from gattn.errors import CaptureError

BATCH, CHANNELS, LEARNED, STEPS, WIDTH = 3, 5, 2, 4, 8


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def attention(self, x, cut=None):
        q, k, _ = self.qkv(x).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
        scores = q @ k.mT / 2
        if cut is not None:
            scores[cut[0], :, cut[1], cut[2]] = -torch.inf
        return scores.softmax(-1)

    def forward(self, x, cut=None):
        v = self.qkv(x).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)[2]
        return x + self.out((self.attention(x, cut) @ v).transpose(1, 2).flatten(2))


class Channels(nn.Module):
    """Attends over the steps of each channel, then over the channels of each step."""

    def __init__(self, move=lambda x: x):
        super().__init__()
        self.memory = nn.Parameter(torch.randn(LEARNED, STEPS, WIDTH))
        self.embed, self.times, self.channels = nn.Linear(1, WIDTH), Attention(), Attention()
        self.head, self.move, self.cut = nn.Linear(WIDTH, 1), move, None

    def rows(self, x):
        x = self.embed(x.transpose(1, 2)[..., None])
        return torch.cat([self.memory.expand(len(x), -1, -1, -1), x], 1).flatten(0, 1)

    def forward(self, x):
        batch = len(x)
        y = self.times(self.rows(x), self.cut).unflatten(0, (batch, -1))
        y = torch.cat([self.move(y[:, :LEARNED]), y[:, LEARNED:]], 1)
        y = self.channels(y.transpose(1, 2).flatten(0, 1)).unflatten(0, (batch, STEPS))
        return self.head(y[:, :, LEARNED:])[..., 0]


def built(*given):
    torch.manual_seed(0)
    return Channels(*given).double().eval(), torch.randn(BATCH, STEPS, CHANNELS).double()


@torch.no_grad()
def test_each_text_has_its_learned_channels():
    model, x = built()
    with capturing(model) as run:
        model(x)
    assert [len(trace["times"].tokens) for trace in run.traces] == [28] * BATCH
    weights = model.times.attention(model.rows(x)).unflatten(0, (BATCH, -1))
    for trace, own in zip(run.traces, weights, strict=True):
        for head in range(2):
            wanted = torch.block_diag(*own[:, head]).numpy()
            assert trace["times"][0, head].to_dense() == pytest.approx(wanted, abs=1e-12)


@torch.no_grad()
@pytest.mark.parametrize("row", [0, 1, 4])
def test_an_edit_reaches_the_same_channel_of_each_text(row):
    model, x = built()
    with edited(model, Cut(stack="times", query=row * STEPS + 3, key=row * STEPS + 1)):
        found = model(x)
    rows = torch.arange(BATCH) * (CHANNELS + LEARNED) + row
    model.cut = rows, 3, 1
    try:
        torch.testing.assert_close(found, model(x))
    finally:
        model.cut = None


@torch.no_grad()
@pytest.mark.parametrize(
    "move",
    [lambda x: x.roll(1, 0), lambda x: torch.cat([x[:, :1].roll(1, 0), x[:, 1:]], 1)],
    ids=["all", "one of them"],
)
def test_learned_channels_of_another_text_are_refused(move):
    model, x = built(move)
    with pytest.raises(CaptureError, match="which element of the batch"), capturing(model):
        model(x)


@torch.no_grad()
def test_learned_channels_that_no_answer_shows_are_refused():
    model, x = built(torch.zeros_like)
    with pytest.raises(CaptureError, match="which element of the batch"), capturing(model):
        model(x)
