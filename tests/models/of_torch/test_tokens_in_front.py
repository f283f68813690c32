"""A learned token that the attending module puts beside its tokens itself is one on both sides."""

import pytest
import torch
from torch import nn

from gattn import Cut, capturing, edited

WIDTH, TOKENS = 8, 5


class Model(nn.Module):
    def __init__(self, is_first):
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.is_first = nn.Embedding(9, WIDTH), is_first
        self.learned = nn.Parameter(torch.randn(1, 1, WIDTH))
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.cut = None
        self.double().eval()

    def forward(self, ids):
        x, learned = self.embedding(ids), self.learned.expand(len(ids), -1, -1)
        x = torch.cat([learned, x] if self.is_first else [x, learned], 1)
        attention = (self.query(x) @ self.key(x).mT / 3).softmax(-1)
        if self.cut is not None:  # The oracle cuts an edge by hand.
            attention = attention.clone()
            attention[:, *self.cut] = 0
            attention = attention / attention.sum(-1, keepdim=True)
        self.attention = attention
        return attention @ self.value(x)


@pytest.mark.parametrize("is_first", [True, False])
@torch.no_grad()
def test_it_has_one_number_after_those_of_the_tokens(is_first):
    model, ids = Model(is_first), torch.tensor([[1, 2, 3, 4, 5], [5, 4, 8, 7, 6]])
    with capturing(model) as run:
        plain = model(ids)
    slots = [*range(1, TOKENS + 1), 0] if is_first else [*range(TOKENS + 1)]
    for trace, attention in zip(run.traces, model.attention, strict=True):
        head = trace.only_stack[0, 0]
        assert not head.graph.is_bipartite
        found, wanted = torch.tensor(head.to_dense()), attention[slots][:, slots]
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)
    model.cut = slots[2], slots[TOKENS]
    wanted, model.cut = model(ids), None
    with edited(model, Cut(query=2, key=TOKENS)):
        torch.testing.assert_close(model(ids), wanted, rtol=0, atol=1e-12)
    assert not torch.allclose(wanted, plain)
