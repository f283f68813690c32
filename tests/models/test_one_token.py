"""A text of one token attends to itself alone, however its softmax is written."""

import numpy as np
import pytest
import torch
from torch import nn

import gattn
from gattn.errors import CaptureError

WIDTH = 6
SOFTMAXES = {
    "sum": lambda s: s.exp() / s.exp().sum(-1, keepdim=True),
    "shifted": lambda s: (
        (s - s.amax(-1, keepdim=True)).exp()
        / (s - s.amax(-1, keepdim=True)).exp().sum(-1, keepdim=True)
    ),
    "ones": lambda s: s.exp() / (s.exp() @ torch.ones(s.shape[-1], 1, dtype=s.dtype)),
}


class Layer(nn.Module):
    def __init__(self, attend):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.attend = attend

    def forward(self, x):
        query, key, value = self.query(x), self.key(x), self.value(x)
        return x + self.attend(query @ key.mT / WIDTH**0.5, value)


def model_of(attend):
    torch.manual_seed(0)
    return nn.Sequential(Layer(attend), Layer(attend)).double().eval()


@pytest.mark.parametrize("softmax", SOFTMAXES.values(), ids=SOFTMAXES)
@torch.no_grad()
def test_one_token_attends_to_itself(softmax):
    model = model_of(lambda scores, value: softmax(scores) @ value)
    x = torch.randn(1, 1, WIDTH).double()
    with gattn.capturing(model) as run:
        model(x)
    for layer in range(2):
        assert run.trace[layer, 0].to_dense().tolist() == [[pytest.approx(1, abs=1e-12)]]
    with gattn.edited(model, gattn.Cut(layer=1, query=0, key=0)):
        cut = model(x)
    torch.testing.assert_close(cut, model[0](x), rtol=0, atol=1e-12)


def by_single_keys(scores, value):
    """Merge softmaxes over one key each."""
    output = torch.zeros_like(value).expand(*scores.shape[:-1], WIDTH)
    total = torch.zeros_like(scores[..., :1])
    for n in range(scores.shape[-1]):
        e = scores[..., n : n + 1].exp()
        part = e.sum(-1, keepdim=True)
        now = total + part
        output = output * (total / now) + (e / part) @ value[:, n : n + 1] * (part / now)
        total = now
    return output


@torch.no_grad()
def test_softmaxes_over_single_keys_that_are_merged_are_refused():
    model, x = model_of(by_single_keys), torch.randn(1, 4, WIDTH).double()
    with pytest.raises(CaptureError), gattn.capturing(model):
        model(x)


@pytest.mark.parametrize("tokens", [1, 5])
@pytest.mark.parametrize("batch", [1, 2])
@torch.no_grad()
def test_a_softmax_that_is_turned_round_or_squeezed_is_followed(tokens, batch):
    def turned(scores, value):
        return scores.mT.softmax(-2).mT @ value

    def squeezed(scores, value):
        return (scores[:, None].softmax(-1).squeeze() @ value.squeeze()).reshape(value.shape)

    for attend in (turned, squeezed) if tokens > 1 else (turned,):
        model, x = model_of(attend), torch.randn(batch, tokens, WIDTH).double()
        with gattn.capturing(model) as run:
            model(x)
        wanted = (model[0].query(x) @ model[0].key(x).mT / WIDTH**0.5).softmax(-1)
        for row, trace in enumerate(run.traces):
            found = torch.tensor(trace.only_stack[0, 0].to_dense())
            torch.testing.assert_close(found, wanted[row], rtol=0, atol=1e-12)


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize("is_batch_first", [False, True])
def test_texts_of_one_token_are_no_text_whose_tokens_attend_to_themselves(is_batch_first):
    """Texts of a batch that comes second, as where `batch_first` is forgotten."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=is_batch_first)
    encoder = nn.TransformerEncoder(layer, 2).eval()
    x = torch.randn(1, 6, 8)
    with torch.no_grad(), gattn.capturing(encoder) as run:
        encoder(x.transpose(0, 1) if is_batch_first else x)
    assert len(run.traces) == 6
    assert {trace[1, 1].to_dense().shape for trace in run.traces} == {(1, 1)}


@torch.no_grad()
def test_traces_are_made_once_when_no_more_can_run():
    model = model_of(lambda scores, value: scores.softmax(-1) @ value)
    with gattn.capturing(model) as run:
        model(torch.randn(2, 3, WIDTH).double())
        assert len(run.traces) == 2
        model(torch.randn(1, 3, WIDTH).double())
    assert len(run.traces) == 3
    assert all(one is same for one, same in zip(run.traces, run.traces, strict=True))


class _Core(nn.Module):
    """Attention that is given heads, and the mask of a cache."""

    def forward(self, q, k, v, sees):
        scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~sees, -torch.inf)
        return scores.softmax(-1) @ v


class _FromOneToken(nn.Module):
    """A decoder whose text begins with a single token."""

    def __init__(self):
        super().__init__()
        self.qkv, self.core, self.out = nn.Linear(16, 48), _Core(), nn.Linear(16, 16)

    def forward(self, x, past=None):
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        if past is not None:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        sees = torch.ones(x.shape[1], k.shape[2], dtype=torch.bool).tril(k.shape[2] - x.shape[1])
        return self.out(self.core(q, k, v, sees).transpose(1, 2).flatten(2)), (k, v)


@pytest.mark.parametrize("texts", [1, 3])
def test_heads_given_to_the_attending_module_are_no_tokens(texts):
    torch.manual_seed(0)
    model, x = _FromOneToken().double().eval(), torch.randn(texts, 4, 16, dtype=torch.float64)
    with torch.no_grad(), gattn.capturing(model) as run:
        past = None
        for n in range(4):
            _, past = model(x[:, n : n + 1], past)
        q, k, _ = model.qkv(x).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
    hides = torch.ones(4, 4, dtype=torch.bool).triu(1)
    attention = (q @ k.mT / 8**0.5).masked_fill(hides, -torch.inf).softmax(-1)
    assert len(run.traces) == texts
    for trace, wanted in zip(run.traces, attention, strict=True):
        assert trace.generated == 3
        for head, dense in enumerate(wanted):
            np.testing.assert_allclose(trace[0, head].to_dense(), dense, atol=1e-12)
