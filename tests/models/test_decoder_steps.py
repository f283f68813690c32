"""Recurrent decoders, whose steps are the queries of one layer: each makes a row of the output."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from gattn import Cut, capturing, edited
from gattn.errors import CaptureError

WIDTH, TOKENS, STEPS = 8, 6, 3


class Decoder(nn.Module):
    """Its queries are made of all tokens, since the encoder's last state begins them."""

    def __init__(self, way):
        super().__init__()
        self.encoder = nn.LSTM(WIDTH, WIDTH, batch_first=True)
        self.cell = nn.LSTMCell(WIDTH, WIDTH)
        self.key, self.query = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.score, self.way = nn.Linear(WIDTH, 1), way

    def begin(self, x, states, last):
        return last[0][0], last[1][0], x[:, 0]

    def forward(self, x, way=None, cut=None):
        states, last = self.encoder(x)
        h, c, given = self.begin(x, states, last)
        self.shown, found = [], []
        for step in range(STEPS):
            h, c = self.cell(given, (h, c))
            score = self.score(torch.tanh(self.key(states) + self.query(h)[:, None]))
            if cut == step:
                score = score.index_fill(1, torch.tensor(3), -torch.inf)
            given = (way or self.way)(score, states)
            self.shown.append(score.exp()[..., 0] / score.exp().sum(1))
            found.append(given)
        return torch.stack(found, 1)


def product(score, states):
    return torch.bmm(score.squeeze(-1).softmax(-1)[:, None], states)[:, 0]


def sum_of_products(score, states):
    return (score.softmax(1) * states).sum(1)


def dense(score, states):
    """Average states by exponentials of scores, without a softmax."""
    each = score.exp() / score.exp().sum(1, keepdim=True)
    return torch.einsum("btn,btd->bd", each, states)


@pytest.fixture(params=[product, sum_of_products])
def model(request):
    torch.manual_seed(0)
    return Decoder(request.param).double().eval()


class _Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.gru = nn.Embedding(20, WIDTH), nn.GRU(WIDTH, WIDTH, batch_first=True)

    def forward(self, ids):
        return self.gru(self.embed(ids))


class _Additive(nn.Module):
    """Bahdanau's attention, the keys first or second in memory."""

    def __init__(self, dim):
        super().__init__()
        self.query, self.key = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.score, self.dim = nn.Linear(WIDTH, 1, bias=False), dim
        self.shown: list[torch.Tensor] = []
        self.cut: int | None = None

    def forward(self, query, states):
        score = self.score(torch.tanh(self.query(query).unsqueeze(self.dim) + self.key(states)))
        if self.cut == len(self.shown):
            score = score.index_fill(self.dim, torch.tensor(3), -torch.inf)
        attention = score.squeeze(-1).softmax(self.dim)
        self.shown.append((attention if self.dim else attention.T).detach().clone())
        return self._read(attention, states)

    def _read(self, attention, states):
        if not self.dim:
            return torch.bmm(attention.T[:, None], states.transpose(0, 1))[:, 0]
        return torch.bmm(attention[:, None], states)[:, 0]


class _Pooling(_Additive):
    """Attention that shows where to look, as in captions of images."""

    def _read(self, attention, states):
        return (states * attention.unsqueeze(2)).sum(1)


class _Greedy(nn.Module):
    """Decodes greedily, or as it is told, until it would end."""

    def __init__(self):
        super().__init__()
        self.encoder, self.attention = _Encoder(), _Additive(1)
        self.embed, self.cell = nn.Embedding(20, WIDTH), nn.GRUCell(2 * WIDTH, WIDTH)
        self.out = nn.Linear(WIDTH, 20)
        self.length, self.ends = 5, -1

    def forward(self, ids, target=None):
        states, hidden = self.encoder(ids)
        hidden, given, found = hidden[0], torch.zeros(len(ids), dtype=torch.long), []
        self.attention.shown = []
        for n in range(self.length):
            read = self.attention(hidden, states)
            hidden = self.cell(torch.cat((self.embed(given), read), 1), hidden)
            found.append(self.out(hidden))
            given = found[-1].topk(1)[1][:, 0].detach() if target is None else target[:, n]
            if bool((given == self.ends).any()):
                break
        return torch.stack(found, 1), hidden


class _SequenceFirst(_Greedy):
    """Begins with nothing, and writes rows into an output whose first one stays zero."""

    def __init__(self):
        super().__init__()
        self.attention = _Additive(0)

    def forward(self, ids, target):
        states, hidden = self.encoder(ids)
        states, hidden = states.transpose(0, 1), torch.zeros_like(hidden[0])
        self.attention.shown = []
        found = torch.zeros(target.shape[1], len(ids), 20, dtype=states.dtype)
        for n in range(1, target.shape[1]):
            read = self.attention(hidden, states)
            hidden = self.cell(torch.cat((self.embed(target[:, n - 1]), read), 1), hidden)
            found[n] = self.out(hidden)
        return found


class _Captions(_Greedy):
    """Pools an image at each step; its mean begins."""

    def __init__(self):
        super().__init__()
        self.attention = _Pooling(1)

    def count(self):
        return self.length

    def forward(self, ids, target):
        length = self.count()
        states, self.attention.shown = self.encoder.embed(ids), []
        hidden = states.mean(1)
        found = torch.zeros(len(ids), length, 20, dtype=states.dtype)
        for n in range(length):
            read = self.attention(hidden, states)
            hidden = self.cell(torch.cat((self.embed(target[:, n]), read), 1), hidden)
            found[:, n] = self.out(hidden)
        return found


class _Listing(_Greedy):
    """Gives lists of its attention, as copied before an edit, and of its rows."""

    def forward(self, ids, target):
        found, hidden = super().forward(ids, target)
        return self.attention.shown, list(found.unbind(1)), hidden


class _Iterating(_Greedy):
    """Reads a set several times before it answers once, as Set2Set does."""

    def forward(self, ids):
        states, hidden = self.encoder(ids)
        hidden, self.attention.shown = hidden[0], []
        for _ in range(self.length):
            read = self.attention(hidden, states)
            hidden = self.cell(torch.cat((hidden, read), 1), hidden)
        return self.out(hidden)


def _ids(size=2):
    return torch.randint(0, 20, (size, TOKENS)), torch.randint(0, 20, (size, 6))


def _check(trace, shown, n):
    (stack,) = trace.stacks.values()
    expected = torch.stack([one[n] for one in shown if n < len(one)])
    assert len(stack.layers) == 1
    np.testing.assert_allclose(stack[0, 0].to_dense(), expected, atol=1e-6)


@torch.no_grad()
def test_steps_are_the_queries_of_a_layer(model):
    x = torch.randn(2, TOKENS, WIDTH, dtype=torch.float64)
    with capturing(model) as run:
        found = model(x)
    torch.testing.assert_close(found, model(x, dense))
    for n, trace in enumerate(run.traces):
        _check(trace, model.shown, n)


@torch.no_grad()
def test_an_edge_of_one_step_is_cut(model):
    x = torch.randn(2, TOKENS, WIDTH, dtype=torch.float64)
    with edited(model, Cut(layer=0, query=1, key=3)):
        found = model(x)
    torch.testing.assert_close(found, model(x, dense, cut=1))


class _Both(nn.Module):
    """Reads words both ways, which mixes them, and attends in the same module."""

    def __init__(self, way, begin):
        super().__init__()
        self.embed, self.way, self.begin = nn.Embedding(20, WIDTH), way, begin
        self.encoder = nn.GRU(WIDTH, WIDTH // 2, bidirectional=True, batch_first=True)
        self.score = nn.Sequential(nn.Linear(2 * WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1))
        self.cell, self.out = nn.GRUCell(2 * WIDTH, WIDTH), nn.Linear(WIDTH, 20)

    def forward(self, ids, target, way=None, cut=None):
        states, last = self.encoder(self.embed(ids))
        hidden = {
            "last": torch.cat([*last], -1),
            "mean": states.mean(1),
            "zero": torch.zeros_like(states[:, 0]),
        }[self.begin]
        self.shown, found = [], []
        for step in range(target.shape[1]):
            score = self.score(torch.cat((states, hidden[:, None].expand_as(states)), -1))
            if cut == step:
                score = score.index_fill(1, torch.tensor(3), -torch.inf)
            read = (way or self.way)(score, states)
            self.shown.append(score.exp()[..., 0] / score.exp().sum(1))
            hidden = self.cell(torch.cat((self.embed(target[:, step]), read), -1), hidden)
            found.append(self.out(hidden))
        return torch.stack(found, 1)


@torch.no_grad()
@pytest.mark.parametrize("texts", [1, 3])
@pytest.mark.parametrize("begin", ["last", "mean", "zero"])
@pytest.mark.parametrize("way", [product, sum_of_products])
def test_steps_beside_what_mixes_their_keys(way, begin, texts):
    torch.manual_seed(0)
    model = _Both(way, begin).double().eval()
    ids, target = torch.randint(20, (texts, TOKENS)), torch.randint(20, (texts, STEPS))
    with capturing(model) as run:
        found = model(ids, target)
    torch.testing.assert_close(found, model(ids, target, dense))
    assert len(run.traces) == texts
    for n, trace in enumerate(run.traces):
        _check(trace, model.shown, n)
    with edited(model, Cut(layer=0, query=-1, key=3)):
        found = model(ids, target)
    torch.testing.assert_close(found, model(ids, target, dense, cut=STEPS - 1))


class _Turning(_Both):
    """Reads its keys from the end at each other step."""

    def forward(self, ids, target):
        turned = iter([False, True] * STEPS)

        def way(score, states):
            return product(score.flip(1), states.flip(1) if next(turned) else states)

        return super().forward(ids, target, way)


@torch.no_grad()
def test_steps_that_read_other_values_are_not_taken_for_the_first_one():
    torch.manual_seed(0)
    model = _Turning(product, "last").double().eval()
    ids, target = torch.randint(20, (2, TOKENS)), torch.randint(20, (2, STEPS))
    says = "values are those of other tokens"
    with pytest.warns(UserWarning, match=says), capturing(model) as run:
        model(ids, target)
    for n, trace in enumerate(run.traces):
        own = [shown[n] for shown in model.shown[1::2]]  # Their values are turned, too.
        for stack, expected in zip(trace.stacks.values(), own, strict=True):
            np.testing.assert_allclose(stack[0, 0].to_dense()[0], expected, atol=1e-12)


@pytest.mark.filterwarnings("ignore:.*is edited where its attention meets the values")
@torch.no_grad()
@pytest.mark.parametrize("kind", [_Greedy, _SequenceFirst, _Captions, _Listing])
def test_steps_of_modules(kind):
    torch.manual_seed(0)
    model = kind().double().eval()
    ids, target = _ids()
    plain = model(ids, target)
    with capturing(model) as run:
        found = model(ids, target)
    torch.testing.assert_close(found, plain, rtol=0, atol=0)
    for n, trace in enumerate(run.traces):
        _check(trace, model.attention.shown, n)
    with edited(model, Cut(layer=0, query=2, key=3)):
        found = model(ids, target)
    model.attention.cut = 2
    expected = model(ids, target)
    are_listed = kind is _Listing
    torch.testing.assert_close(found[are_listed:], expected[are_listed:])


@pytest.mark.filterwarnings("ignore:.*is edited where its attention meets the values")
@torch.no_grad()
def test_steps_have_names_and_are_counted_from_the_end():
    torch.manual_seed(0)
    model = _Greedy().double().eval()
    ids, target = _ids(1)
    source, words = [f"s{n}" for n in range(TOKENS)], [f"t{n}" for n in range(model.length)]
    tokens = {"attention": {"query": words, "key": source}}
    with capturing(model, tokens=tokens) as run:
        model(ids, target)
    assert run.trace[0, 0].tokens == tuple(source)
    assert run.trace[0, 0].query_tokens == tuple(words)
    with edited(model, Cut(layer=0, query=4, key=3)):
        wanted, _ = model(ids, target)
    with edited(model, Cut(layer=0, query="t4", key="s3"), tokens=tokens):
        named, _ = model(ids, target)
    with edited(model, Cut(layer=0, query=-1, key=-3)):
        counted, _ = model(ids, target)
    assert not torch.equal(wanted, model(ids, target)[0])
    torch.testing.assert_close(named, wanted, rtol=0, atol=0)
    torch.testing.assert_close(counted, wanted, rtol=0, atol=0)


@torch.no_grad()
def test_what_is_decoded_decides_how_many_steps_there_are():
    torch.manual_seed(0)
    model = _Greedy().double().eval()
    counts = set()
    for n in range(6):
        ids, _ = _ids(1)
        model.ends = -1
        model.ends = int(model(ids)[0].argmax(-1)[0, n % 4 + 1])
        with capturing(model) as run:
            model(ids)
        counts.add(len(model.attention.shown))
        _check(run.trace, model.attention.shown, 0)
    assert len(counts) > 1


class _AsWritten(_Captions):
    """Takes as many steps as a file says, which nothing that is compared tells."""

    def count(self):
        with open(self.path) as file:
            return int(file.read())


@torch.no_grad()
def test_more_steps_than_were_proved_are_proved_anew(tmp_path):
    torch.manual_seed(0)
    model = _AsWritten().double().eval()
    model.path = str(tmp_path / "length")
    ids, target = _ids()
    for length in (5, 3, 6):
        (tmp_path / "length").write_text(str(length))
        model.attention.shown = []
        if length == 6:
            refused = pytest.raises(CaptureError, match=r"call 5 with .* did not run")
            with refused, capturing(model):
                model(ids, target)
            model.attention.shown = []
        with capturing(model) as run:
            model(ids, target)
        for n, trace in enumerate(run.traces):
            assert len(model.attention.shown) == length
            _check(trace, model.attention.shown, n)


@torch.no_grad()
def test_reads_before_one_answer_are_layers():
    torch.manual_seed(0)
    model = _Iterating().double().eval()
    model.cell = nn.GRUCell(2 * WIDTH, WIDTH).double()
    ids, _ = _ids()
    with capturing(model) as run:
        model(ids)
    for n, trace in enumerate(run.traces):
        (stack,) = trace.stacks.values()
        assert len(stack.layers) == model.length
        for layer, shown in enumerate(model.attention.shown):
            np.testing.assert_allclose(stack[layer, 0].to_dense(), shown[n, None], atol=1e-6)


@torch.no_grad()
def test_padded_keys_of_steps_need_names():
    torch.manual_seed(0)
    model, words = _Greedy().double().eval(), [f"t{n}" for n in range(5)]
    ids, target = _ids(2)
    named = [{"attention": {"query": words, "key": list("abcdefgh")[:n]}} for n in (TOKENS, 2)]
    says = f"gives 2 texts, but .* has {TOKENS} keys.* reads padded keys step by step"
    with pytest.raises(CaptureError, match=says), capturing(model, tokens=named):
        model(ids, target)
