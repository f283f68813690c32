"""Attention to what a recurrent network gives that is given texts packed, without their padding."""

import re
import warnings

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


class Tagger(nn.Module):
    """Attends from each word of a text to all of it, once a recurrent network has read it."""

    def __init__(self, both_ways, move=lambda x, lengths: x):
        super().__init__()
        torch.manual_seed(0)
        width = WIDTH // (1 + both_ways)
        self.embed, self.move = nn.Embedding(20, WIDTH), move
        self.encode = nn.LSTM(WIDTH, width, bidirectional=both_ways, batch_first=True)
        self.attend, self.cut = (
            nn.MultiheadAttention(WIDTH, 2, batch_first=True),
            torch.tensor([], dtype=int),
        )
        self.double().eval()

    def forward(self, ids, lengths):
        packed = pack_padded_sequence(
            self.embed(ids), lengths, batch_first=True, enforce_sorted=False
        )
        states = pad_packed_sequence(self.encode(packed)[0], True)[0]
        states = self.move(states, lengths)
        padding = (ids == 0)[:, : states.shape[1]].index_fill(1, self.cut, True)
        return self.attend(states, states, states, key_padding_mask=padding)


@pytest.mark.parametrize("both_ways", [False, True])
@pytest.mark.parametrize("lengths", [(7, 3, 4), (4, 6, 2, 5), (2, 6)])
def test_padding_that_packed_texts_lose_is_no_moved_token(both_ways, lengths):
    model, given = Tagger(both_ways), texts(*lengths)
    others = texts(*reversed(lengths))
    with torch.no_grad(), capturing(model) as run:
        wanted = [model(*one)[1] for one in (given, others, given)]
    sizes = [*lengths, *reversed(lengths), *lengths]
    found = [trace[0, 0].to_dense() for trace in run.traces]
    assert [len(x) for x in found] == sizes
    for trace, dense, size in zip(run.traces, torch.cat(wanted), sizes, strict=True):
        mean = (trace[0, 0].to_dense() + trace[0, 1].to_dense()) / 2
        assert mean == pytest.approx(dense[:size, :size].numpy(), rel=0, abs=1e-12)
    with torch.no_grad(), edited(model, Cut(key=1)):
        cut = model(*given)[0]
    model.cut = torch.tensor([1])
    with torch.no_grad():
        by_hand = model(*given)[0]
    for row, (one, other) in enumerate(zip(cut, by_hand, strict=True)):
        torch.testing.assert_close(one[: lengths[row]], other[: lengths[row]])


def _reversed(states, lengths):
    """Let each text be read from its end, its padding apart."""
    steps = torch.arange(states.shape[1])
    index = torch.where(steps < lengths[:, None], lengths[:, None] - 1 - steps, steps)
    return states.gather(1, index[..., None].expand_as(states))


MOVES = {
    "rolled": lambda x, _: x.roll(1, 1),
    "flipped": lambda x, _: x.flip(1),
    "reversed": _reversed,
}


@pytest.mark.parametrize("both_ways", [False, True])
@pytest.mark.parametrize("move", MOVES)
def test_states_of_packed_texts_that_move_are_refused_or_have_no_names(both_ways, move):
    model, given = Tagger(both_ways, MOVES[move]), texts(7, 3, 4)
    names, says = list("abcdefg"), "moves.* and mixes them"
    found = []
    with warnings.catch_warnings(record=True) as told, torch.no_grad():
        warnings.simplefilter("always")
        try:
            with capturing(model, tokens=[names, names[:3], names[:4]]) as run:
                model(*given)
            found = [str(x) for trace in run.traces for x in trace[0, 0].tokens]
        except CaptureError as error:
            told = [error]
    assert re.search(says, str(getattr(told[0], "message", told[0])))
    assert "a" not in found
