"""Zeros that a model puts into its attention through views of one number, row, column or diagonal.

The oracle is dense algebra: the softmax without the cut keys, with the same zeros.
"""

import pytest
import torch
from torch import nn

import gattn
from gattn.errors import GattnError

_WIDTH, _TOKENS = 8, 6


def divided(attention):
    attention[..., 1].zero_()
    attention.div_(attention.sum(-1, keepdim=True))


PUTS = {
    "diagonal": lambda a: a.diagonal(dim1=-2, dim2=-1).fill_(0),
    "element": lambda a: a[0, 1, 2, 3].zero_(),
    "column of a row": lambda a: a[..., 2, :][..., 1].zero_(),
    "column": lambda a: a[..., 1].zero_(),
    "select": lambda a: a.select(-1, 1).fill_(0.0),
    "unbind": lambda a: a.unbind(-1)[1].zero_(),
    "turned": lambda a: a.mT[..., 1, :].zero_(),
    "product": lambda a: a[..., 1].mul_(0),
    "divided": divided,
}
WITHOUT_A_TOKEN = [*PUTS][3:]


def without(key):
    """Name the edges from a key, but for that to itself, of which some models leave nothing."""
    return [n for n in range(_TOKENS) if n != key], key


class Attention(nn.Module):
    def __init__(self, put):
        super().__init__()
        self.qkv, self.put = nn.Linear(_WIDTH, 3 * _WIDTH), put

    def forward(self, x, cut=None):
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
        scores = q @ k.mT
        if cut is not None:
            scores[..., *without(cut)] = -torch.inf
        attention = torch.softmax(scores, -1)
        self.put(attention)
        return (attention @ v).transpose(1, 2).flatten(2)


def built(put):
    torch.manual_seed(0)
    return Attention(put).double().eval(), torch.randn(1, _TOKENS, _WIDTH).double()


@pytest.mark.filterwarnings("ignore:.*has a mask that takes tokens between others")
@pytest.mark.parametrize("name", PUTS)
def test_edits_reach_attention_with_zeros(name):
    model, x = built(PUTS[name])
    is_one_less = name in WITHOUT_A_TOKEN  # Positions count those that some query reads.
    rows = [0, 2, 3, 4, 5] if is_one_less else slice(None)
    key, others = (3, [0, 1, 2, 4]) if is_one_less else (4, [0, 1, 2, 3, 5])
    with torch.no_grad():
        with gattn.edited(model, gattn.Cut(layer=0, query=others, key=key)):
            found = model(x)
        torch.testing.assert_close(found[:, rows], model(x, cut=4)[:, rows])
        assert not torch.equal(found, model(x))


READS = {
    "mean": lambda view: view.mean(),
    "number": lambda view: float(view.sum()),
    "copy": lambda view: view.clone(),
    "view": lambda view: view,
    "slice": lambda view: view[0],
}


@pytest.mark.parametrize("is_late", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("puts", [False, True])
@pytest.mark.parametrize("read", READS)
def test_a_view_that_is_read_holds_what_edits_wrote_or_is_told(read, puts, is_late):
    """Nothing is read as it was before an edit without an error or a warning."""

    class Reading(Attention):
        def forward(self, x, cut=None):
            q, k, v = self.qkv(x).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
            scores = q @ k.mT
            if cut is not None:
                scores[..., *without(cut)] = -torch.inf
            attention = torch.softmax(scores, -1)
            if puts:
                attention.diagonal(dim1=-2, dim2=-1).zero_()
            view = attention[..., 1]
            if not is_late:
                self.seen = READS[read](view)
            out = attention @ v
            if is_late:
                self.seen = READS[read](view)
            return out.transpose(1, 2).flatten(2)

    torch.manual_seed(0)
    model, x = Reading(None).double().eval(), torch.randn(1, _TOKENS, _WIDTH).double()
    with torch.no_grad():
        wanted = model(x, cut=4)
        seen = torch.as_tensor(model.seen).clone()
        try:
            with gattn.edited(model, gattn.Cut(layer=0, query=[0, 1, 2, 3, 5], key=4)):
                found = model(x)
        except (GattnError, UserWarning):
            return
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(torch.as_tensor(model.seen).clone(), seen)
