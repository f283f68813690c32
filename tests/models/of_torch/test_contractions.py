"""Attention meets its values in whatever function contracts two tensors over one dimension."""

import pytest
import torch
from torch import nn

import gattn

TOKENS, WIDTH = 5, 6


def by_vectors(multiply):
    """Multiply each row of the attention with each column of the values."""
    return lambda a, v: torch.stack([torch.stack([multiply(row, x) for x in v.mT]) for row in a])


CONTRACTIONS = {
    "dot": by_vectors(torch.dot),
    "vdot": by_vectors(torch.vdot),
    "inner of vectors": by_vectors(torch.inner),
    "vectors": by_vectors(torch.matmul),
    "vectors, turned": by_vectors(lambda row, x: x @ row),
    "a vector and a matrix": lambda a, v: torch.stack([row @ v for row in a]),
    "a matrix and a vector": lambda a, v: torch.stack([torch.matmul(v.mT, row) for row in a]),
    "tensordot": lambda a, v: torch.tensordot(a, v, dims=1),
    "tensordot of pairs": lambda a, v: torch.tensordot(v, a, dims=([0], [1])).mT,
    "tensordot of a dimension": lambda a, v: torch.tensordot(a, v.mT, ((1,), (-1,))),
    "inner": lambda a, v: torch.inner(a, v.mT),
    "inner, turned": lambda a, v: v.mT.inner(a).mT,
    "multi_dot": lambda a, v: torch.linalg.multi_dot([a, v]),
    "multi_dot, turned": lambda a, v: torch.linalg.multi_dot((v.mT, a.mT)).mT,
    "chain": torch.chain_matmul,
}


class Layer(nn.Module):
    def __init__(self, contract):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.contract, self.cut = contract, None

    def forward(self, x):
        scores = self.query(x[0]) @ self.key(x[0]).mT / WIDTH**0.5
        if self.cut is not None:
            scores[self.cut] = -torch.inf
        self.attention = scores.softmax(-1)
        return x + self.contract(self.attention, self.value(x[0]))


@pytest.mark.filterwarnings("ignore:.*chain_matmul:UserWarning")
@pytest.mark.parametrize("contract", CONTRACTIONS.values(), ids=CONTRACTIONS)
@torch.no_grad()
def test_contractions_are_read_and_edited(contract):
    torch.manual_seed(0)
    model, x = nn.Sequential(Layer(contract), Layer(contract)), torch.randn(1, TOKENS, WIDTH)
    model, x = model.double(), x.double()
    plain = model(x)
    with gattn.capturing(model) as run:
        assert torch.equal(model(x), plain)
    for n, layer in enumerate(model):
        found = torch.tensor(run.trace[n, 0].to_dense())
        torch.testing.assert_close(found, layer.attention, rtol=0, atol=1e-12)
    with gattn.edited(model, gattn.Cut(layer=1, query=3, key=1)):
        changed = model(x)
    model[1].cut = 3, 1
    torch.testing.assert_close(changed, model(x), rtol=0, atol=1e-12)
    assert not torch.equal(changed, plain)
