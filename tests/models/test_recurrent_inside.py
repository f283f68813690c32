"""Attention in the very module that runs a recurrent network, which may read both ways."""

import warnings

import numpy as np
import pytest
import torch
from torch import nn

import gattn
from gattn.errors import CaptureError

_COUNT, _SIZE, _WORDS = 7, 12, [f"t{n}" for n in range(7)]
_MOVES = {
    "stay": np.arange(_COUNT),
    "back": np.arange(_COUNT),
    "flip": np.arange(_COUNT)[::-1],
    "roll": np.roll(np.arange(_COUNT), -3),
}


class Reader(nn.Module):
    """Reads numbers, or ids, and keeps its attention (texts, queries, keys)."""

    def __init__(self, how, *, has_ids, both_ways, move="stay", layers=1):
        super().__init__()
        torch.manual_seed(0)
        size = 16 if both_ways else 8
        self.embed = nn.Embedding(40, _SIZE) if has_ids else nn.Identity()
        self.rnn = nn.LSTM(_SIZE, 8, layers, batch_first=True, bidirectional=both_ways)
        self.weigh, self.qkv = nn.Linear(size, 1), nn.Linear(size, 3 * size)
        self.scale = nn.Parameter(torch.randn(size))
        self.how, self.move = how, move
        self.double().eval()

    def forward(self, x):
        x = x.flip(1) if self.move == "before" else x
        rows, (state, _) = self.rnn(self.embed(x))
        if self.move == "flip":
            rows = rows.flip(1)
        elif self.move == "roll":
            rows = torch.cat([rows[:, 3:], rows[:, :3]], 1)
        elif self.move == "back":
            rows = rows.flip(1).flip(1)
        return getattr(self, self.how)(rows, state.transpose(0, 1)[:, -2:].flatten(1))

    def taken(self, scores, rows):
        self.kept = scores.softmax(-1)
        return self.kept @ rows

    def pooled(self, rows, state):
        return self.taken(self.weigh(torch.tanh(rows)).mT, rows)

    def by_parameter(self, rows, state):
        return self.taken((torch.tanh(rows) @ self.scale)[:, None], rows)

    def by_state(self, rows, state):
        state = state[:, -rows.shape[-1] :]
        return self.taken((rows @ state[..., None]).mT, rows)

    def by_last(self, rows, state):
        return self.taken((rows @ rows[:, -1, :, None]).mT, rows)

    def by_all(self, rows, state):
        return self.taken(rows @ rows.mT / 4, rows)

    def projected(self, rows, state):
        q, k, v = self.qkv(rows).chunk(3, -1)
        return self.taken(q @ k.mT / 4, v)

    def features(self, rows, state):
        return self.taken(rows.mT @ rows / 4, rows.mT)


_HOWS = ["pooled", "by_parameter", "by_state", "by_last", "by_all", "projected"]


def given(has_ids, batch):
    torch.manual_seed(1)
    if has_ids:
        return torch.randint(40, (batch, _COUNT))
    return torch.randn(batch, _COUNT, _SIZE, dtype=torch.double)


def captured(model, x, tokens=_WORDS):
    with torch.no_grad(), gattn.capturing(model, tokens=tokens) as run:
        model(x)
    assert [len(trace.stacks) for trace in run.traces] == [1] * len(x)
    return [next(iter(trace.stacks.values()))[0, 0] for trace in run.traces]


def in_place(attention, order):
    """Put what the module has as its slots where their tokens are."""
    found = np.zeros_like(attention)
    found[np.ix_(order if len(attention) > 1 else [0], order)] = attention
    return found


@pytest.mark.parametrize("how", _HOWS)
@pytest.mark.parametrize("move", _MOVES)
@pytest.mark.parametrize("has_ids", [False, True], ids=["numbers", "ids"])
@pytest.mark.parametrize("both_ways", [False, True], ids=["one way", "both ways"])
def test_rows_of_a_recurrent_network_are_its_tokens(how, move, has_ids, both_ways):
    model = Reader(how, has_ids=has_ids, both_ways=both_ways, move=move)
    x, order = given(has_ids, 2), _MOVES[move]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        heads = captured(model, x)
    for head, own in zip(heads, model.kept.numpy(), strict=True):
        dense = head.to_dense()
        if len(dense) > len(own):  # The query is a token, too: the last row.
            dense = dense[[order[-1]]]
        np.testing.assert_allclose(dense, in_place(own, order), atol=1e-12)
        assert head.tokens == tuple(_WORDS)


@pytest.mark.parametrize("how", _HOWS)
@pytest.mark.parametrize("layers", [1, 2])
def test_one_text_is_read_as_several(how, layers):
    model = Reader(how, has_ids=False, both_ways=True, layers=layers)
    (head,) = captured(model, given(False, 1))
    np.testing.assert_allclose(head.to_dense()[-1], model.kept[0, -1], atol=1e-12)


@pytest.mark.parametrize("how", _HOWS)
def test_a_cut_reaches_the_row(how):
    model, x = Reader(how, has_ids=False, both_ways=True), given(False, 2)
    with torch.no_grad(), gattn.edited(model, gattn.Cut(key=2)):
        found = model(x)
    taken = model.taken
    shut = torch.arange(_COUNT) == 2
    model.taken = lambda scores, rows: taken(scores.masked_fill(shut, -torch.inf), rows)
    with torch.no_grad():
        torch.testing.assert_close(found, model(x), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("how", ["pooled", "by_all"])
@pytest.mark.parametrize("both_ways", [False, True])
@pytest.mark.parametrize("has_ids", [False, True])
def test_tokens_that_are_moved_before_have_no_wrong_names(how, has_ids, both_ways):
    model, x = Reader(how, has_ids=has_ids, both_ways=both_ways, move="before"), given(has_ids, 2)
    if not (has_ids or both_ways):
        with pytest.raises(CaptureError, match="moves its tokens"):
            captured(model, x)
        return
    with pytest.warns(UserWarning, match="picks or orders tokens"):
        heads = captured(model, x)
    assert not any(head.tokens for head in heads)


@pytest.mark.parametrize("both_ways", [False, True])
@pytest.mark.parametrize("has_ids", [False, True])
@pytest.mark.parametrize("batch", [1, 2])
def test_features_of_all_rows_are_no_tokens(batch, has_ids, both_ways):
    model = Reader("features", has_ids=has_ids, both_ways=both_ways)
    with pytest.raises(CaptureError, match=r"feature of all rows|each token has several of"):
        captured(model, given(has_ids, batch), None)


class Channels(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(40, _SIZE)

    def forward(self, ids):
        rows = self.embed(ids).mT
        return torch.softmax(rows @ rows.mT / 3, -1) @ rows


@pytest.mark.parametrize("batch", [1, 2])
def test_features_of_embeddings_are_no_tokens(batch):
    with pytest.raises(CaptureError, match="feature of all rows"):
        captured(Channels(), given(True, batch), None)


class Stacked(nn.Module):
    """Two recurrent networks, one after the other."""

    def __init__(self):
        super().__init__()
        self.first = nn.GRU(_SIZE, 8, batch_first=True, bidirectional=True)
        self.second = nn.RNN(16, 8, 2, batch_first=True, bidirectional=True)
        self.scale = nn.Parameter(torch.randn(16))
        self.double().eval()

    def forward(self, x):
        rows = self.second(self.first(x)[0])[0]
        self.kept = (torch.tanh(rows) @ self.scale).softmax(-1)
        return (self.kept[..., None] * rows).sum(1)


@pytest.mark.parametrize("batch", [1, 3])
def test_the_last_of_several_networks_tells_tokens(batch):
    model = Stacked()
    heads = captured(model, given(False, batch))
    for head, own in zip(heads, model.kept, strict=True):
        np.testing.assert_allclose(head.to_dense()[0], own, atol=1e-12)
        assert head.tokens == tuple(_WORDS)


class Speller(nn.Module):
    """Writes words, each after what it reads of a recording."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.LSTM(_SIZE, 8, batch_first=True, bidirectional=True)
        self.embed, self.cell = nn.Embedding(40, 12), nn.LSTMCell(28, 16)
        self.double().eval()

    def forward(self, x, words):
        keys, (state, _) = self.encoder(x)
        state = state.transpose(0, 1).flatten(1)
        memory, rows, self.kept = torch.zeros_like(state), [], []
        for word in self.embed(words).unbind(1):
            weights = torch.softmax((keys @ state[..., None])[..., 0], 1)
            read = (weights[:, None] @ keys)[:, 0]
            state, memory = self.cell(torch.cat([word, read], -1), (state, memory))
            rows.append(state)
            self.kept.append(weights)
        return torch.stack(rows, 1)


@pytest.mark.parametrize("batch", [1, 3])
def test_steps_of_a_decoder_read_the_rows_of_its_encoder(batch):
    model, words = Speller(), torch.randint(40, (batch, 4))
    names = {"Speller": {"query": list("abcd"), "key": _WORDS}}
    with torch.no_grad(), gattn.capturing(model, tokens=names) as run:
        model(given(False, batch), words)
    for trace, own in zip(run.traces, torch.stack(model.kept, 1), strict=True):
        head = trace[0, 0]
        np.testing.assert_allclose(head.to_dense(), own, atol=1e-12)
        assert (head.query_tokens, head.tokens) == (tuple("abcd"), tuple(_WORDS))


class OfStates(nn.Module):
    """Attends over the last states of its layers and directions, of which there are four."""

    def __init__(self, *, has_ids, is_pooled):
        super().__init__()
        self.embed = nn.Embedding(40, _SIZE) if has_ids else nn.Identity()
        self.rnn = nn.LSTM(_SIZE, 8, 2, batch_first=True, bidirectional=True)
        self.scale, self.is_pooled = nn.Parameter(torch.randn(8, 1)), is_pooled
        self.double().eval()

    def forward(self, x):
        states = self.rnn(self.embed(x))[1][0].transpose(0, 1)
        scores = (states @ self.scale).mT if self.is_pooled else states @ states.mT
        return scores.softmax(-1) @ states


@pytest.mark.parametrize("is_pooled", [False, True])
@pytest.mark.parametrize("has_ids", [False, True])
@pytest.mark.parametrize("batch", [1, 3])
def test_states_of_layers_are_no_tokens(batch, has_ids, is_pooled):
    model = OfStates(has_ids=has_ids, is_pooled=is_pooled)
    with pytest.raises(CaptureError, match="last state of a layer or a direction"):
        captured(model, given(has_ids, batch)[:, :4], None)


class Sentences(nn.Module):
    """Reads each sentence by itself, and attends over their last states."""

    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(_SIZE, 8, batch_first=True, bidirectional=True)
        self.double().eval()

    def forward(self, x):
        states = self.rnn(x.flatten(0, 1))[1].transpose(0, 1).reshape(*x.shape[:2], -1)
        self.kept = (states @ states.mT).softmax(-1)
        return self.kept @ states


@pytest.mark.parametrize("batch", [1, 3])
def test_states_of_sentences_are_tokens(batch):
    model = Sentences()
    x = torch.randn(batch, 4, _COUNT, _SIZE, dtype=torch.double)
    for head, own in zip(captured(model, x, list("abcd")), model.kept, strict=True):
        np.testing.assert_allclose(head.to_dense(), own, atol=1e-12)
        assert head.tokens == tuple("abcd")


class StatesFirst(nn.GRU):
    """Gives the states of all layers before its rows."""

    def forward(self, x):
        rows, states = super().forward(x)
        return states.transpose(0, 1), rows


class OfStatesFirst(OfStates):
    def __init__(self, *, has_ids):
        super().__init__(has_ids=has_ids, is_pooled=True)
        self.rnn = StatesFirst(_SIZE, 8, 2, batch_first=True, bidirectional=True)
        self.double()

    def forward(self, x):
        states, _ = self.rnn(self.embed(x))
        return (states @ self.scale).mT.softmax(-1) @ states


@pytest.mark.parametrize("has_ids", [False, True])
def test_what_a_recurrent_network_of_ones_own_gives_is_not_taken_for_rows(has_ids):
    with pytest.raises(CaptureError, match=r"runs a recurrent network|depends on all tokens"):
        captured(OfStatesFirst(has_ids=has_ids), given(has_ids, 2)[:, :4], None)
