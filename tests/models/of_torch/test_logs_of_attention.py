"""What a model reads of its attention for a log changes nothing of what is proved and edited.

The oracle is the same model without the log; under an edit a log is that of the edited attention.
"""

import pytest
import torch
from torch import nn
from torch.nn import functional

import gattn
from gattn.errors import CaptureError, GattnError

_WIDTH, _TOKENS, _HEADS = 8, 6, 2


class Attention(nn.Module):
    def __init__(self, log, *, is_late):
        super().__init__()
        self.qkv, self.out = nn.Linear(_WIDTH, 3 * _WIDTH), nn.Linear(_WIDTH, _WIDTH)
        self.log, self.is_late, self.logged = log, is_late, None

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, _HEADS, -1)).permute(2, 0, 3, 1, 4)
        attention = torch.softmax(q @ k.mT, -1)
        if not self.is_late:
            self.logged = self.log(attention)
        read = attention @ v
        if self.is_late:
            self.logged = self.log(attention)
        return self.out(read.transpose(1, 2).flatten(2))


class Model(nn.Module):
    def __init__(self, log=lambda attention: None, *, is_late=False):
        super().__init__()
        self.layers = nn.ModuleList([Attention(log, is_late=is_late) for _ in range(2)])

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return x


def without_small(attention):
    kept = attention.clone()
    kept[kept < 0.1] = 0
    return kept


LOGS = {
    "masked": lambda a: a[a > 0.2],
    "masked of a head": lambda a: a[0, 1][a[0, 1] > 0.2],
    "masked detached": lambda a: a.detach()[a > 0.2].mean(),
    "masked number": lambda a: float(a.detach()[a > 0.2].mean()),
    "count": lambda a: a[a > 0.2].numel(),
    "selected": lambda a: a.masked_select(a > 0.2),
    "largest head": lambda a: a[:, a.amax((0, 2, 3)).argmax()],
    "largest": lambda a: a.topk(3),
    "indices": lambda a: a.topk(3).indices,
    "first": lambda a: a.argmax(-1),
    "most": lambda a: a.max(),
    "sorted": lambda a: a.sort(-1, descending=True).values.cumsum(-1),
    "where": lambda a: torch.where(a > 0.2, a, 0),
    "filled": lambda a: a.masked_fill(a < 0.1, 0),
    "threshold": lambda a: functional.threshold(a, 0.1, 0),
    "without NaN": lambda a: a.nan_to_num(),
    "lower": lambda a: a.tril(),
    "put": without_small,
}


def built(log, *, is_late=False):
    torch.manual_seed(0)
    model = Model(log, is_late=is_late).double().eval()
    return model, torch.randn(2, _TOKENS, _WIDTH).double()


def shown(model, x):
    with torch.no_grad(), gattn.capturing(model) as run:
        output = model(x)
    assert torch.equal(output, model(x))
    return [torch.as_tensor(head.to_dense()) for one in run.traces for head in one.heads()]


def edited(model, x, edit):
    with torch.no_grad(), gattn.edited(model, edit):
        return model(x)


def leaves(logged):
    some = logged if isinstance(logged, tuple) else (logged,)
    return [torch.as_tensor(x).double() for x in some]


@pytest.mark.parametrize("is_late", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("name", LOGS)
def test_a_log_changes_nothing(name, is_late):
    (model, x), (plain, _) = built(LOGS[name], is_late=is_late), built(lambda a: None)
    for found, expected in zip(shown(model, x), shown(plain, x), strict=True):
        torch.testing.assert_close(found, expected)
    for layer in (0, 1):
        edit = gattn.Cut(layer=layer, key=1)
        torch.testing.assert_close(edited(model, x, edit), edited(plain, x, edit))
        q, k, _ = plain.layers[0].qkv(x).unflatten(-1, (3, _HEADS, -1)).permute(2, 0, 3, 1, 4)
        scores = q @ k.mT
        if layer == 0:
            scores[..., 1] = -torch.inf
        expected = LOGS[name](torch.softmax(scores, -1))
        for found, wanted in zip(leaves(model.layers[0].logged), leaves(expected), strict=True):
            torch.testing.assert_close(found, wanted)


class Deciding(Attention):
    """Turns its values round if it attends to many keys."""

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, _HEADS, -1)).permute(2, 0, 3, 1, 4)
        attention = torch.softmax(q @ k.mT, -1)
        if self.log(attention):
            v = v.flip(-2)
        return self.out((attention @ v).transpose(1, 2).flatten(2))


@pytest.mark.parametrize(
    "log",
    [
        lambda a: a[a > 0.2].numel() > 10,
        lambda a: len(a[a > 0.2]) % 2 == 0,
        lambda a: a[a > 0.2].mean() > 0.35,
        lambda a: a[:, a.amax((0, 2, 3)).argmax()].mean() > 0,
    ],
    ids=["count", "parity", "mean", "head"],
)
def test_what_code_decides_by_is_no_log(log):
    model, x = built(log)
    model.layers[0] = Deciding(log, is_late=False).double()
    with pytest.raises(CaptureError):
        shown(model, x)


class Adding(Attention):
    """Adds what it picks of its attention to what it gives."""

    def forward(self, x):
        return super().forward(x) + self.logged


@pytest.mark.parametrize("is_late", [False, True], ids=["before", "after"])
def test_what_reaches_the_output_is_no_log(is_late):
    """It is refused, or the edit reaches it, too."""
    model, x = built(LOGS["masked"])
    model.layers[0] = Adding(lambda a: a[a > 0.2].mean(), is_late=is_late).double()
    edit = gattn.Cut(layer=0, key=1)
    try:
        found = edited(model, x, edit)
    except GattnError:
        return
    layer = model.layers[0]
    with torch.no_grad():
        q, k, v = layer.qkv(x).unflatten(-1, (3, _HEADS, -1)).permute(2, 0, 3, 1, 4)
        scores = q @ k.mT
        scores[..., 1] = -torch.inf
        attention = torch.softmax(scores, -1)
        read = layer.out((attention @ v).transpose(1, 2).flatten(2))
        middle = x + read + attention[attention > 0.2].mean()
        torch.testing.assert_close(found, middle + model.layers[1](middle))
