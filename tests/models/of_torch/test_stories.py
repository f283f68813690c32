"""A question attends to sentences of a story, each a sum of words, as in memory networks."""

import pytest
import torch
from torch import nn

import gattn

WIDTH, WORDS, HOPS = 8, 4, 2


class MemoryNetwork(nn.Module):
    """Keys and values have embeddings of their own; `cut` is a key that the first hop lacks."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embeddings = nn.ModuleList([nn.Embedding(20, WIDTH) for _ in range(HOPS + 1)])
        self.cut, self.own = None, []

    def forward(self, story, question):
        state, self.own = self.embeddings[0](question).sum(1), []
        for hop in range(HOPS):
            key, value = (self.embeddings[hop + n](story).sum(2) for n in (0, 1))
            scores = (key @ state[..., None])[..., 0]
            if self.cut is not None and not hop:
                scores[:, self.cut] = -torch.inf
            self.own.append(scores.softmax(-1))
            state = state + (self.own[-1][:, None] @ value)[:, 0]
        return state


def given(batch, sentences):
    generator = torch.Generator().manual_seed(0)
    story = torch.randint(0, 20, (batch, sentences, WORDS), generator=generator)
    return story, torch.randint(0, 20, (batch, WORDS), generator=generator)


@torch.no_grad()
@pytest.mark.parametrize(("batch", "sentences"), [(1, 5), (2, 5), (3, WORDS), (5, 5)])
def test_each_sentence_is_a_key(batch, sentences):
    model, inputs = MemoryNetwork().double().eval(), given(batch, sentences)
    with gattn.capturing(model) as run:
        model(*inputs)
    assert len(run.traces) == batch
    for element, trace in enumerate(run.traces):
        heads = [stack[0, 0] for stack in trace.stacks.values()]
        assert len(heads) == HOPS
        for head, own in zip(heads, model.own, strict=True):
            found = torch.as_tensor(head.to_dense())
            torch.testing.assert_close(found.double(), own[element, None], rtol=0, atol=1e-6)


@torch.no_grad()
def test_a_sentence_is_cut():
    model, inputs = MemoryNetwork().double().eval(), given(2, 5)
    plain = model(*inputs)
    with gattn.edited(model, gattn.Cut(layer=0, key=1, stack="MemoryNetwork")):
        found = model(*inputs)
    model.cut = 1
    wanted = model(*inputs)
    assert (wanted - plain).abs().max() > 1e-3
    torch.testing.assert_close(found, wanted)
