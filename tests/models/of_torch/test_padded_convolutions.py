"""Texts whose padding is set to zero after each layer, between wide convolutions (FastSpeech)."""

import warnings

import pytest
import torch
from torch import nn

import gattn

WIDTH, HEADS, WIDE = 8, 2, 9


class Block(nn.Module):
    """Attention and a convolution; `cut` is a query and a key."""

    def __init__(self):
        super().__init__()
        self.qkv, self.cut = nn.Linear(WIDTH, 3 * WIDTH), None
        self.convolution = nn.Conv1d(WIDTH, WIDTH, WIDE, padding=WIDE // 2)

    def forward(self, x, padding):
        q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        scores = (q @ k.mT).masked_fill(padding[:, None, None], -torch.inf)
        if self.cut is not None:
            scores[:, :, self.cut[0], self.cut[1]] = -torch.inf
        self.shown = scores.softmax(-1).detach()
        x = (x + (self.shown @ v).transpose(1, 2).flatten(2)).masked_fill(padding[..., None], 0)
        x = x + self.convolution(x.mT).relu().mT
        return x.masked_fill(padding[..., None], 0)


class Padded(nn.Module):
    """Repeats each token, and pads what comes of it."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.double().eval()

    def forward(self, x, lengths):
        rows = [one[: int(n)].repeat_interleave(2, 0) for one, n in zip(x, lengths, strict=True)]
        x = nn.utils.rnn.pad_sequence(rows, batch_first=True)
        padding = torch.arange(x.shape[1]) >= 2 * lengths[:, None]
        for block in self.blocks:
            x = block(x, padding)
        return x


@torch.no_grad()
@pytest.mark.parametrize("lengths", [[6, 4, 5], [4, 6], [6, 6], [5]])
def test_layers_between_convolutions_leave_padding_out(lengths):
    model, x = Padded(), torch.randn(len(lengths), 6, WIDTH).double()
    given = x, torch.tensor(lengths)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with gattn.capturing(model) as run:
            model(*given)
        shown = [block.shown for block in model.blocks]
        with gattn.edited(model, gattn.Cut(layer=1, query=2, key=5)):
            found = model(*given)
    for text, (trace, length) in enumerate(zip(run.traces, lengths, strict=True)):
        for (layer, head), graph in trace.only_stack.items():
            wanted = shown[layer][text, head, : 2 * length, : 2 * length]
            seen = torch.tensor(graph.to_dense())
            torch.testing.assert_close(seen, wanted, rtol=0, atol=1e-7)
    model.blocks[1].cut = 2, 5
    torch.testing.assert_close(found, model(*given), rtol=0, atol=1e-12)
