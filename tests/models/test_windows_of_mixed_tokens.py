"""Windows in a module that convolves before it attends: they are no heads, whatever it mixes."""

import numpy as np
import pytest
import torch
from torch import nn

from gattn import capturing
from gattn.errors import CaptureError

WIDTH, HEADS, SIZE = 8, 2, 4


class Windows(nn.Module):
    """Attends within windows of tokens, which wide convolutions have mixed."""

    def __init__(self, wide, size):
        super().__init__()
        torch.manual_seed(0)
        self.qkv, self.size = nn.Linear(WIDTH, 3 * WIDTH), size
        self.convolution = nn.Conv1d(WIDTH, WIDTH, wide, padding=wide // 2)
        self.double().eval()

    def forward(self, x):
        x = self.convolution(x.mT).mT
        windows = x.reshape(-1, self.size, WIDTH)
        q, k, v = self.qkv(windows).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        self.shown = (q @ k.mT).softmax(-1)
        return x + (self.shown @ v).transpose(1, 2).reshape(x.shape)


@torch.no_grad()
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("wide", [3, 5, 7, 9, 11, 13])
@pytest.mark.parametrize("tokens", [8, 12, 24, 48])
def test_windows_are_no_heads(tokens, wide, batch):
    model, x = Windows(wide, SIZE), torch.randn(batch, tokens, WIDTH).double()
    with pytest.raises(CaptureError), capturing(model):
        model(x)


@torch.no_grad()
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("wide", [3, 7, 11])
@pytest.mark.parametrize("tokens", [12, 24])
def test_heads_of_mixed_tokens_are_read(tokens, wide, batch):
    model, x = Windows(wide, tokens), torch.randn(batch, tokens, WIDTH).double()
    with capturing(model) as run:
        model(x)
    for text, trace in enumerate(run.traces):
        for head in range(HEADS):
            dense = trace[0, head].to_dense()
            np.testing.assert_allclose(dense, model.shown[text, head], atol=1e-7)
