"""Images whose channels are as many as their pixels: pixels are the tokens, whatever the count."""

import warnings

import pytest
import torch
from torch import nn

import gattn

_SIDE = 4


class Attention(nn.Module):
    """Attention of pixels to pixels, as in SAGAN."""

    def __init__(self, channels):
        super().__init__()
        self.query, self.key, self.value = (nn.Conv2d(channels, channels, 1) for _ in range(3))
        self.gain = nn.Parameter(torch.tensor(0.5))

    def forward(self, x):
        query, key, value = (f(x).flatten(2) for f in (self.query, self.key, self.value))
        attention = (query.mT @ key).softmax(-1)
        return x + self.gain * (value @ attention.mT).reshape(x.shape)


class Images(nn.Module):
    """Two layers, between which pixels may be moved."""

    def __init__(self, channels, move):
        super().__init__()
        self.first, self.second = Attention(channels), Attention(channels)
        self.move = move

    def forward(self, x):
        return self.second(self.move(self.first(x)))


def flipped(x):
    return x.flip(-1)


def ordered(x):
    """Sort rows by their sums, which the values decide."""
    order = x.sum((1, 3)).argsort(1)[:, None, :, None].expand_as(x)
    return x.gather(2, order)


def shown(model, x):
    with warnings.catch_warnings(record=True) as said, torch.no_grad():
        warnings.simplefilter("always")
        with gattn.capturing(model) as run:
            model(x)
    return run.traces[0], [str(one.message) for one in said]


def pixels_of_keys(model, x):
    """Find the pixel that each key of the second layer is made of, by gradients alone."""
    found, given = [], x[:1].clone().requires_grad_()
    model.first.gain.data.zero_()
    for token in model.move(model.first(given)).flatten(2)[0].T:
        (gradient,) = torch.autograd.grad(token.sum(), given, retain_graph=True)
        found.append(gradient[0].abs().sum(0).flatten().nonzero().tolist())
    model.first.gain.data.fill_(0.5)
    return [one for (own,) in found for one in own]


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("channels", [8, _SIDE**2], ids=["fewer", "as many"])
@pytest.mark.parametrize("move", [torch.Tensor.contiguous, flipped])
def test_pixels_are_the_tokens_where_channels_are_as_many(move, channels, batch):
    torch.manual_seed(0)
    model = Images(channels, move).double().eval()
    x = torch.randn(batch, channels, _SIDE, _SIDE).double()
    trace, told = shown(model, x)
    assert not told
    edit = gattn.Cut(layer=0, key=5, stack="second")
    with torch.no_grad(), gattn.edited(model, edit):
        found = model(x)
    # The key that is made of pixel 5 has another slot where pixels were moved.
    slot = pixels_of_keys(model, x).index(5)
    assert slot == (6 if move is flipped else 5)
    with torch.no_grad():
        moved = model.move(model.first(x))
        query, key, value = (
            f(moved).flatten(2) for f in (model.second.query, model.second.key, model.second.value)
        )
        scores = query.mT @ key
        scores[..., slot] = -torch.inf
        expected = moved + 0.5 * (value @ scores.softmax(-1).mT).reshape(x.shape)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    assert trace.stacks["first"][0, 0].geometry is not None


@pytest.mark.parametrize("channels", [8, _SIDE**2], ids=["fewer", "as many"])
def test_pixels_that_values_order_have_no_names(channels):
    torch.manual_seed(0)
    model = Images(channels, ordered).eval()
    trace, told = shown(model, torch.randn(1, channels, _SIDE, _SIDE))
    assert any("picks or orders tokens" in one for one in told)
    assert trace.stacks["second"][0, 0].geometry is None
