"""Channels that a model folds into its batch, each of which attends from patch to patch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from gattn import Cut, capturing, edited

TEXTS, CHANNELS, PATCHES, LENGTH, WIDTH = 2, 3, 5, 4, 8


class Patches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.seen, self.cut = torch.empty(0), False

    def forward(self, x: Tensor) -> Tensor:
        scores = self.q(x) @ self.k(x).mT
        if self.cut:  # In all channels, since rows are told apart below.
            scores = scores.index_put((torch.tensor(CUT), torch.tensor(1), torch.tensor(3)), MINUS)
        self.seen = scores.softmax(-1)
        return self.seen @ self.v(x)


CUT, MINUS = [1, 4], torch.tensor(-torch.inf, dtype=torch.float64)
"""Rows of the folded batch: channel 1 of each text, elements first."""


class Series(nn.Module):
    """Reads (elements, channels, times), as PatchTST does."""

    def __init__(self, *, are_elements_first: bool) -> None:
        super().__init__()
        self.embed, self.layers = nn.Linear(LENGTH, WIDTH), nn.ModuleList([Patches(), Patches()])
        self.head, self.are_elements_first = nn.Linear(PATCHES * WIDTH, 2), are_elements_first

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x.unfold(-1, LENGTH, LENGTH))
        x = x if self.are_elements_first else x.transpose(0, 1)
        sizes = x.shape[:2]
        x = x.flatten(0, 1)
        for layer in self.layers:
            x = x + layer(x)
        x = self.head(x.flatten(1)).unflatten(0, sizes)
        return x if self.are_elements_first else x.transpose(0, 1)


@torch.no_grad()
@pytest.mark.parametrize("are_elements_first", [True, False])
def test_each_channel_attends_within_itself(are_elements_first: bool) -> None:
    torch.manual_seed(0)
    model = Series(are_elements_first=are_elements_first).double().eval()
    x = torch.randn(TEXTS, CHANNELS, PATCHES * LENGTH).double()
    with capturing(model) as run:
        plain = model(x)
    assert len(run.traces) == TEXTS
    for head in (head for trace in run.traces for head in trace.heads()):  # No picture was read.
        assert head.geometry is None
        assert list(head.labels()) == list(map(str, range(CHANNELS * PATCHES)))
    for row, trace in enumerate(run.traces):
        assert list(trace.only_stack.heads) == [(0, 0), (1, 0)]
        for (layer, _), graph in trace.only_stack.items():
            sizes = (TEXTS, CHANNELS) if are_elements_first else (CHANNELS, TEXTS)
            blocks = model.layers[layer].seen.unflatten(0, sizes)
            blocks = blocks[row] if are_elements_first else blocks[:, row]
            found = torch.tensor(graph.to_dense())
            torch.testing.assert_close(found, torch.block_diag(*blocks), atol=1e-12, rtol=0)
    if are_elements_first:
        model.layers[1].cut = True
        wanted = model(x)
        model.layers[1].cut = False
        edit = Cut(layer=1, query=PATCHES + 1, key=PATCHES + 3)
        with edited(model, edit):
            found = model(x)
        assert not torch.allclose(wanted, plain)
        torch.testing.assert_close(found, wanted, atol=1e-12, rtol=0)
