"""Embeddings of integers that a model makes of the numbers of its tokens, as of the hour."""

import pytest
import torch
from torch import nn

from gattn import Cut, capturing, edited

TIMES, PLACES, WIDTH, HEADS = 6, 5, 8, 2


class Attends(nn.Module):
    """Attention over the dimension before the last, its heads stacked along the batch."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.attention, self.cut = None, None

    def forward(self, x):
        size = WIDTH // HEADS
        q, k, v = (torch.cat(f(x).split(size, -1)) for f in (self.q, self.k, self.v))
        scores = q @ k.mT / size**0.5
        if self.cut is not None:
            scores[:, *self.cut] = -torch.inf
        self.attention = scores.softmax(-1)
        return x + self.o(torch.cat((self.attention @ v).split(len(x)), -1))


class Traffic(nn.Module):
    """Sensors of traffic (batch, time, place, 2), of which the second number is the hour."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.speed, self.hour = nn.Linear(1, WIDTH // 2), nn.Embedding(24, WIDTH // 2)
        self.times, self.places, self.out = Attends(), Attends(), nn.Linear(WIDTH, 1)
        self.double().eval()

    def forward(self, x):
        hours = (x[..., 1] * 24).long()
        x = torch.cat([self.speed(x[..., :1]), self.hour(hours)], -1)
        x = self.times(x.transpose(1, 2)).transpose(1, 2)
        return self.out(self.places(x))


@torch.no_grad()
@pytest.mark.parametrize("count", [1, 3])
def test_the_hour_of_a_number_is_looked_up(count):
    model, x = Traffic(), torch.rand(count, TIMES, PLACES, 2, dtype=torch.float64)
    plain = model(x)
    with capturing(model) as run:
        assert torch.equal(model(x), plain)
    for name, own in (("times", model.times.attention), ("places", model.places.attention)):
        own = own.unflatten(0, (HEADS, count))
        for text, trace in enumerate(run.traces):
            for head in range(HEADS):
                wanted = torch.zeros(TIMES, PLACES, TIMES, PLACES, dtype=torch.float64)
                for n, one in enumerate(own[head, text]):
                    block = wanted[:, n, :, n] if name == "times" else wanted[n, :, n, :]
                    block.copy_(one)
                found = trace.stacks[name][0, head].to_dense()
                wanted = wanted.flatten(2).flatten(0, 1).numpy()
                assert found == pytest.approx(wanted, rel=0, abs=1e-12)
    place = 2  # Each place attends by itself.
    cut = Cut(stack="times", layer=0, query=4 * PLACES + place, key=PLACES + place)
    with edited(model, cut):
        found = model(x)
    model.times.cut = place, 4, 1
    torch.testing.assert_close(found, model(x), rtol=0, atol=1e-12)
    assert not torch.allclose(found, plain)
