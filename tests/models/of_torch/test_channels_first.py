"""Channels before time: how many texts there are does not depend on how many are given."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import gattn
from gattn.errors import CaptureError

_D, _CHANNELS, _STEPS = 16, 3, 12


class _Attends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(_D, _D) for _ in range(3))

    def forward(self, x, memory=None):
        memory = x if memory is None else memory
        self.kept = (self.query(x) @ self.key(memory).mT / 4).softmax(-1)
        return self.kept @ self.value(memory)


class ChannelByChannel(nn.Module):
    """Attends over the steps, or patches of steps, of each channel; then mixes channels."""

    def __init__(self, size=1):
        super().__init__()
        self.size, self.embed, self.inner = size, nn.Linear(size, _D), _Attends()
        self.mix = nn.Linear(_CHANNELS, 2)

    def forward(self, x):
        texts, channels, steps = x.shape
        of_channels = x.reshape(texts * channels, steps // self.size, self.size)
        pooled = self.inner(self.embed(of_channels)).mean(1)
        return self.mix(pooled.view(texts, channels, _D).mT)


class Pooled(nn.Module):
    """Pools the patches of each channel by torch's own attention of one learned query."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.asked = nn.Linear(4, _D), nn.Parameter(torch.randn(1, 1, _D))
        self.pool = nn.MultiheadAttention(_D, 2, batch_first=True)

    def forward(self, x):
        texts, channels, steps = x.shape
        patches = self.embed(x.reshape(texts * channels, steps // 4, 4))
        pooled, _ = self.pool(self.asked.expand(len(patches), -1, -1), patches, patches)
        return pooled.view(texts, channels, _D).mean(1)


class Sentences(nn.Module):
    """Pools the words of each sentence, and takes the mean of the sentences of each text."""

    def __init__(self) -> None:
        super().__init__()
        self.score = nn.Linear(_D, 1)

    def forward(self, x):
        words = x.flatten(0, 1)
        self.kept = self.score(words).tanh().mT.softmax(-1)
        return (self.kept @ words).view(*x.shape[:2], _D).mean(1)


class SequenceFirst(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = _Attends()

    def forward(self, x, memory):
        return self.inner(x.transpose(0, 1), memory.transpose(0, 1)).transpose(0, 1)


@torch.no_grad()
@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.parametrize("texts", [1, 2])
def test_channels_are_no_texts(texts, size):
    torch.manual_seed(0)
    model, x = ChannelByChannel(size).eval(), torch.randn(texts, _CHANNELS, _STEPS)
    with gattn.capturing(model) as run:
        model(x)
    assert len(run.traces) == texts
    kept = model.inner.kept.view(texts, _CHANNELS, _STEPS // size, _STEPS // size)
    for trace, own in zip(run.traces, kept, strict=True):
        found = torch.as_tensor(trace[0, 0].to_dense())
        torch.testing.assert_close(found, torch.block_diag(*own))


@torch.no_grad()
@pytest.mark.parametrize("texts", [1, 2])
def test_what_pools_each_channel_makes_no_texts_of_them(texts):
    torch.manual_seed(0)
    model, x = Pooled().eval(), torch.randn(texts, _CHANNELS, _STEPS)
    with pytest.raises(CaptureError, match=r"pool .* weighs"), gattn.capturing(model):
        model(x)


@torch.no_grad()
@pytest.mark.parametrize("texts", [1, 2])
def test_sentences_whose_words_are_pooled_are_no_texts(texts):
    torch.manual_seed(0)
    model, x = Sentences().eval(), torch.randn(texts, 3, 5, _D)
    with gattn.capturing(model) as run:
        model(x)
    assert len(run.traces) == texts
    for trace, own in zip(run.traces, model.kept.view(texts, 3, 1, 5), strict=True):
        found = torch.as_tensor(trace[0, 0].to_dense())
        torch.testing.assert_close(found, torch.block_diag(*own))


@torch.no_grad()
def test_single_tokens_come_before_texts_all_the_same():
    torch.manual_seed(0)
    model, x, memory = SequenceFirst().eval(), torch.randn(1, 3, _D), torch.randn(6, 3, _D)
    with gattn.capturing(model) as run:
        model(x, memory)
    assert len(run.traces) == 3
    for trace, own in zip(run.traces, model.inner.kept, strict=True):
        torch.testing.assert_close(torch.as_tensor(trace[0, 0].to_dense()), own)
