"""Attention to what a recurrent network gives that is given texts packed, without their padding."""

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from gattn import Cut, capturing, edited
from gattn.errors import CaptureError

WIDTH, STEPS = 8, 3


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.score, self.kept, self.cut = nn.Linear(2 * WIDTH, WIDTH), [], None
        self.sum = nn.Linear(WIDTH, 1)

    def forward(self, state, memory, mask):
        both = torch.cat([state[:, None].expand_as(memory), memory], 2)
        weights = self.sum(self.score(both).tanh())[..., 0].masked_fill(~mask, -1e10).softmax(1)
        if self.cut == len(self.kept):  # The oracle cuts an edge by hand.
            weights = weights.clone()
            weights[:, 1] = 0
            weights = weights / weights.sum(1, keepdim=True)
        self.kept.append(weights)
        return (weights[:, None] @ memory)[:, 0]


class Translator(nn.Module):
    def __init__(self, shift=0):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.attend, self.shift = nn.Embedding(20, WIDTH), Attention(), shift
        self.encode = nn.GRU(WIDTH, WIDTH // 2, bidirectional=True, batch_first=True)
        self.decode = nn.GRUCell(WIDTH, WIDTH)
        self.double().eval()

    def forward(self, ids, lengths):
        self.attend.kept = []
        packed = pack_padded_sequence(
            self.embed(ids), lengths, batch_first=True, enforce_sorted=False
        )
        memory, _ = pad_packed_sequence(self.encode(packed)[0], True, total_length=ids.shape[1])
        if self.shift:
            shifted = memory.roll(self.shift, 1)
            shifted[:, 0 if self.shift > 0 else -1] = 0
            memory = shifted
        state, given = memory.new_zeros(len(ids), WIDTH), []
        for _ in range(STEPS):
            state = self.decode(self.attend(state, memory, ids != 0), state)
            given.append(state)
        return torch.stack(given, 1)


def texts(*lengths):
    ids = torch.randint(1, 20, (len(lengths), 7), generator=torch.Generator().manual_seed(1))
    lengths = torch.tensor(lengths)
    return ids.where(torch.arange(7) < lengths[:, None], 0), lengths


@torch.no_grad()
def test_each_text_is_read_with_its_length():
    model = Translator()
    with capturing(model) as run:
        for lengths in ((7, 5), (4, 7), (7, 7), (3, 2)):
            given = texts(*lengths)
            model(*given)
            wanted = torch.stack(model.attend.kept, 1)
            for own, trace in zip(wanted, run.traces[-2:], strict=True):
                found = torch.tensor(trace.only_stack[trace.only_stack.layers[0], 0].to_dense())
                torch.testing.assert_close(found, own, rtol=0, atol=1e-12)
    given = texts(7, 5)
    plain = model(*given)
    with edited(model, Cut(layer=0, query=2, key=1)):
        found = model(*given)
    model.attend.cut = 2
    wanted = model(*given)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)
    assert not torch.allclose(wanted, plain)


@pytest.mark.parametrize("shift", [1, -1])
@torch.no_grad()
def test_memories_that_are_shifted_are_refused(shift):
    with (
        pytest.raises(CaptureError, match="moves its tokens"),
        capturing(model := Translator(shift)),
    ):
        model(*texts(7, 5))
