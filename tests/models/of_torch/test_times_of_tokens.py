"""Numbers of tokens, such as times or prices, that reach scores alone are no masks.

The oracle is dense algebra, on all tokens under their names.
"""

import pytest
import torch
from torch import nn

import gattn

_WIDTH, _NAMES = 8, list("abcdef")
TIMES = {
    "rising": [0.0, 0.5, 0.9, 1.4, 2.3, 2.9],
    "alike": [0.0, 0.0, 1.0, 1.0, 2.0, 2.0],
    "zeros and ones": [1.0, 0.0, 1.0, 0.0, 1.0, 1.0],
    "zeros last": [3.0, 2.0, 5.0, 1.0, 0.0, 0.0],
    "negative": [-3.0, -2.0, -1.0, 0.0, 1.0, 2.0],
    "all one": [1.0] * 6,
}


def apart(t):
    return (t[:, :, None] - t[:, None]).abs()


SCORES = {
    "decay": lambda scores, t: scores - 0.3 * apart(t),
    "kernel": lambda scores, t: scores * torch.exp(-0.3 * apart(t)),
    "gate": lambda scores, t: scores * torch.sigmoid(t)[:, None],
    "bias": lambda scores, t: scores + t[:, None],
    "weight": lambda scores, t: scores + torch.log(t.clamp_min(1e-9))[:, None],
    "scaled keys": lambda scores, t: scores * t[:, None],
}


class Attention(nn.Module):
    def __init__(self, changed):
        super().__init__()
        self.qkv, self.changed = nn.Linear(_WIDTH, 3 * _WIDTH), changed

    def attention(self, x, t):
        q, k, _ = self.qkv(x).chunk(3, -1)
        return torch.softmax(self.changed(q @ k.mT, t), -1)

    def forward(self, x, t):
        return self.attention(x, t) @ self.qkv(x).chunk(3, -1)[2]


class Model(nn.Module):
    def __init__(self, changed):
        super().__init__()
        self.layers = nn.ModuleList([Attention(changed) for _ in range(2)])

    def forward(self, x, times):
        for layer in self.layers:
            x = x + layer(x, times)
        return x


@pytest.mark.parametrize("kind", SCORES)
@pytest.mark.parametrize("times", TIMES)
def test_no_token_is_left_out(kind, times):
    torch.manual_seed(0)
    model, x = Model(SCORES[kind]).double().eval(), torch.randn(1, 6, _WIDTH).double()
    t = torch.tensor([TIMES[times]]).double()
    with torch.no_grad(), gattn.capturing(model, tokens=_NAMES) as run:
        model(x, t)
    head = run.trace[0, 0]
    assert list(head.labels()) == _NAMES
    expected = model.layers[0].attention(x, t)[0].detach()
    torch.testing.assert_close(torch.as_tensor(head.to_dense()), expected)
