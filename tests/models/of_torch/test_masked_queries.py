"""Cross-attention whose mask takes all keys of padded queries away, too."""

import math

import pytest
import torch
from torch import nn

from gattn import Cut, capturing, edited
from gattn.errors import CaptureError

WIDTH, HEADS = 8, 2
TARGETS, SOURCES = torch.tensor([6, 4]), torch.tensor([5, 3])


class Attention(nn.Module):
    """Masks with the product of two masks of tokens."""

    def __init__(self, fill, clean):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.fill, self.clean, self.cut = fill, clean, None

    def forward(self, x, x_is, y, y_is):
        query, key, value = (
            project(z).unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for project, z in zip((self.query, self.key, self.value), (x, y, y), strict=True)
        )
        both = x_is[:, None, :, None] & y_is[:, None, None, :]
        scores = (query @ key.mT).masked_fill(~both, self.fill)
        if self.cut is not None:
            scores[..., *self.cut] = -math.inf
        self.weights = scores.softmax(-1)
        if self.clean == "weights":
            self.weights = self.weights.nan_to_num(0.0)
        output = self.weights @ value
        if self.clean == "output":
            output = output.nan_to_num(0.0)
        return x + output.transpose(1, 2).flatten(2)


class Decoder(nn.Module):
    def __init__(self, fill, clean="", *, reads_itself=True):
        super().__init__()
        torch.manual_seed(0)
        self.selves, self.crosses = (
            nn.ModuleList(Attention(fill, clean) for _ in range(2)) for _ in range(2)
        )
        self.reads_itself = reads_itself
        self.double().eval()

    def forward(self, x, x_is, y, y_is):
        for itself, cross in zip(self.selves, self.crosses, strict=True):
            if self.reads_itself:
                x = itself(x, x_is, x, x_is)
            x = cross(x, x_is, y, y_is)
        return x


def given():
    generator = torch.Generator().manual_seed(1)
    x, y = (torch.randn(2, n, WIDTH, generator=generator).double() for n in (6, 5))
    return x, torch.arange(6) < TARGETS[:, None], y, torch.arange(5) < SOURCES[:, None]


WAYS = [(-1e9, ""), (-math.inf, "output"), (-math.inf, "weights")]


@pytest.mark.parametrize(("fill", "clean"), WAYS)
@pytest.mark.filterwarnings("error")
@torch.no_grad()
def test_padding_that_self_attention_before_shows_is_left_out(fill, clean):
    model, inputs = Decoder(fill, clean), given()
    with capturing(model) as run:
        plain = model(*inputs)
    for n, trace in enumerate(run.traces):
        for stack, columns in (("selves", TARGETS[n]), ("crosses", SOURCES[n])):
            for layer in range(2):
                wanted = getattr(model, stack)[layer].weights[n, :, : TARGETS[n], :columns]
                for head in range(HEADS):
                    found = torch.tensor(trace.stacks[stack][layer, head].to_dense())
                    torch.testing.assert_close(found, wanted[head], rtol=0, atol=1e-12)
    with edited(model, Cut(stack="crosses", layer=0, query=3, key=1)):
        found = model(*inputs)
    model.crosses[0].cut = 3, 1
    wanted = model(*inputs)
    real = inputs[1]
    torch.testing.assert_close(found[real], wanted[real], rtol=0, atol=1e-12)
    assert not torch.allclose(wanted[real], plain[real])


@torch.no_grad()
def test_without_self_attention_they_read_nothing_or_are_refused_for_what_they_read():
    model, inputs = Decoder(-math.inf, "weights", reads_itself=False), given()
    with capturing(model) as run:
        model(*inputs)
    head = run.traces[1].stacks["crosses"][0, 1]
    wanted = model.crosses[0].weights[1, 1, :, : SOURCES[1]]
    torch.testing.assert_close(torch.tensor(head.to_dense()), wanted, rtol=0, atol=1e-12)
    assert head.to_dense()[4:].sum() == 0
    with (
        pytest.raises(CaptureError, match="though its mask excludes all keys"),
        capturing(model := Decoder(-1e9, reads_itself=False)),
    ):
        model(*inputs)
    with (
        pytest.raises(CaptureError, match="is NaN or infinite at head 0, query 4"),
        capturing(model := Decoder(-math.inf, "output", reads_itself=False)),
    ):
        model(*inputs)
