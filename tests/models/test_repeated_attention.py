"""Attention repeated for each channel of its values, which are then multiplied and summed up."""

import pytest
import torch
from hand_written import DIM, TOKENS, check, made
from test_decoder_steps import WIDTH, Decoder, dense

from gattn import Cut, capturing, edited
from gattn.errors import CaptureError

REPEATS = {
    "repeat": lambda a: a.repeat(1, 1, 1, 1, DIM),
    "torch.tile": lambda a: torch.tile(a, (DIM,)),
    "repeat_interleave": lambda a: a.repeat_interleave(DIM, -1),
    "expand": lambda a: a.expand(-1, -1, -1, -1, DIM),
    "expand_as": lambda a: a.expand_as(a.new_zeros(*a.shape[:-1], DIM)),
    "broadcast_to": lambda a: a.broadcast_to(*a.shape[:-1], DIM),
    "torch.broadcast_to": lambda a: torch.broadcast_to(a, (*a.shape[:-1], DIM)),
}


def attend(q, k, v, repeat, after=lambda a: a):
    attention = (q @ k.mT / DIM**0.5).softmax(-1)[..., None]
    return (v[:, :, None] * after(repeat(attention))).sum(-2)


@pytest.mark.parametrize("repeat", REPEATS.values(), ids=REPEATS)
def test_repeated_attention_is_shown_and_edited(repeat):
    check(lambda q, k, v: attend(q, k, v, repeat))


@pytest.mark.parametrize("repeat", REPEATS.values(), ids=REPEATS)
@pytest.mark.parametrize("after", [lambda a: a * 2, lambda a: a.flip(-1) ** 2])
def test_what_is_changed_once_it_is_repeated_is_refused(repeat, after):
    model, x = made(lambda q, k, v: attend(q, k, v, repeat, after))
    with torch.no_grad(), pytest.raises(CaptureError), capturing(model):
        model(x)


class Begins(Decoder):
    """Its state begins with that of one token, and attention is repeated."""

    def __init__(self, token):
        super().__init__(self.read)
        self.token = token

    def read(self, score, states):
        return (states * score.softmax(1).repeat(1, 1, WIDTH)).sum(1)

    def begin(self, x, states, last):
        return states[:, self.token], torch.zeros_like(states[:, 0]), x[:, 0] * 0


@torch.no_grad()
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("token", [0, -1])
def test_a_decoder_that_begins_with_one_token_is_no_query_of_it(token, batch):
    torch.manual_seed(0)
    model = Begins(token).double().eval()
    x = torch.randn(batch, TOKENS, WIDTH).double()
    with capturing(model) as run:
        plain = model(x)
    torch.testing.assert_close(model(x, dense), plain, rtol=0, atol=1e-12)
    for text, trace in enumerate(run.traces):
        (stack,) = trace.stacks.values()
        assert len(stack.layers) == 1
        wanted = torch.stack([one[text] for one in model.shown]).numpy()
        assert stack[0, 0].to_dense() == pytest.approx(wanted, rel=0, abs=1e-7)
    with edited(model, Cut(query=1, key=3)):
        found = model(x)
    torch.testing.assert_close(found, model(x, dense, cut=1), rtol=0, atol=1e-12)
