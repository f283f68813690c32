"""What code decides by inputs or its own tensors holds while these stay the same, and no longer."""

from __future__ import annotations

import random

import pytest
import torch
from torch import nn

from gattn import capturing
from gattn.errors import CaptureError
from gattn.models.doors.proof import plans

WIDTH, HEADS, TOKENS = 8, 2, 5
CAUSAL = nn.Transformer.generate_square_subsequent_mask(TOKENS)
ALL = torch.zeros(TOKENS, TOKENS)


@pytest.fixture
def proofs(monkeypatch):
    """The models that were proved."""
    found, prove = [], plans._proved

    def counted(model, *rest):
        found.append(model)
        return prove(model, *rest)

    monkeypatch.setattr(plans, "_proved", counted)
    return found


def drawn(seed):
    return torch.randn(2, TOKENS, WIDTH, generator=torch.Generator().manual_seed(seed))


def encoder():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 16, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()


def first_attention(model, x, mask):
    """Give the first layer's attention, (batch, heads, queries, keys), by torch's own weights."""
    attention = model.layers[0].self_attn
    return attention(x, x, x, attn_mask=mask, average_attn_weights=False)[1]


def check(model, inner, x, mask, *given):
    with torch.no_grad(), capturing(model) as run:
        model(x, *given)
    with torch.no_grad():
        wanted = first_attention(inner, x, mask)
    for trace, one in zip(run.traces, wanted, strict=True):
        for head in range(HEADS):
            found = torch.from_numpy(trace[0, head].to_dense())
            torch.testing.assert_close(found, one[head], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("mask", [CAUSAL, CAUSAL < 0])
def test_a_mask_that_is_given_is_compared_and_not_proved_again(proofs, mask):
    model = encoder()
    for seed in range(3):
        check(model, model, drawn(seed), mask, mask.clone())
    assert len(proofs) == 1


def test_another_mask_is_proved_anew(proofs):
    model = encoder()
    for mask in (CAUSAL, ALL, CAUSAL):
        check(model, model, drawn(0), mask, mask)
    assert len(proofs) == 3


class Masked(nn.Module):
    """Makes its mask itself, or holds it."""

    def __init__(self, held):
        super().__init__()
        self.inner = encoder()
        self.register_buffer("mask", CAUSAL.clone() if held is float else CAUSAL < 0)
        self.held = held

    def forward(self, x):
        made = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        return self.inner(x, mask=made if self.held is None else self.mask[:TOKENS, :TOKENS])


@pytest.mark.parametrize("held", [None, float, bool])
def test_a_mask_of_the_model_is_proved_once(proofs, held):
    model = Masked(held).eval()
    for seed in range(3):
        check(model, model.inner, drawn(seed), CAUSAL)
    assert len(proofs) == 1


@pytest.mark.parametrize("held", [float, bool])
def test_a_mask_that_the_model_changes_is_proved_anew(proofs, held):
    model = Masked(held).eval()
    check(model, model.inner, drawn(0), CAUSAL)
    model.mask.data.zero_()
    check(model, model.inner, drawn(0), ALL)
    assert len(proofs) == 2


class Turning(nn.Module):
    """Reads tokens backwards where `decides` says so, and gives them back in order."""

    def __init__(self, decides):
        super().__init__()
        torch.manual_seed(0)
        self.qkv, self.decides = nn.Linear(WIDTH, 3 * WIDTH), decides
        self.register_buffer("known", drawn(3))

    def attention(self, x):
        q, k, _ = self.qkv(x).unflatten(-1, (3, 1, -1)).permute(2, 0, 3, 1, 4)
        return (q @ k.mT / WIDTH**0.5).softmax(-1)

    def forward(self, x):
        turns = self.decides(self, x)
        x = x.flip(1) if turns else x
        q, k, v = self.qkv(x).unflatten(-1, (3, 1, -1)).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v)[:, 0]
        return y.flip(1) if turns else y


def by_listed_numbers(model, x):
    """Make a tensor of Python's numbers."""
    total = sum(x[0].flatten().tolist())
    return bool((torch.full((2,), total) > 0).all())


def by_how_far_apart(model, x):
    """Compare two of Python's numbers, which are close to each other here."""
    one, other = x[0, 0, 0].tolist(), x[0, 0, 1].tolist()
    return one > other + 5


def by_numpy(model, x):
    """Write to memory past torch."""
    given = torch.zeros(2)
    given.numpy()[:] = x.detach().numpy().sum()
    return bool((given > 0).all())


def in_place(model, x):
    """Write values to a part of what was made without them."""
    made = torch.zeros(4)
    made[1:3].copy_(x.sum().expand(2))
    return bool((made.reshape(2, 2) > 0).any())


def among_others(model, x):
    """Make numbers of values and of what the model holds."""
    return bool(((model.known * 0 + x).sum() + torch.arange(3)).sum() > 3)


def beside_its_own(model, x):
    """Compare what the model holds with values."""
    return not torch.equal(model.known, x)


def unlike(model, x):
    return not torch.allclose(x, model.known)


def by_how_many(model, x):
    """Make a tensor of a size that values decide, which code reads past torch."""
    count = (x[0, :, 0] > 0.1).nonzero().shape[0]
    return bool(torch.full((1,), float(count)) > 2)


def by_how_many_differ(model, x):
    return bool(torch.ones(x[0, :, 0].sign().unique().numel()).sum() > 1)


def by_length_of_mask(model, x):
    first = x[0, :, 0]
    return bool(torch.arange(len(first[first > 0.1])).sum() > 1)


@pytest.mark.parametrize(
    "decides",
    [
        *(in_place, among_others, beside_its_own, unlike),
        *(by_how_many, by_how_many_differ),
    ],
)
@torch.no_grad()
def test_what_code_decides_by_values_is_proved_for_these_alone(decides):
    model = Turning(decides).eval()
    for x in (drawn(1), -drawn(1), drawn(3), drawn(2).abs()):
        with capturing(model) as run:
            model(x)
        for trace, one in zip(run.traces, model.attention(x)[:, 0], strict=True):
            found = torch.from_numpy(trace[0, 0].to_dense())
            torch.testing.assert_close(found, one, rtol=1e-5, atol=1e-6)


def by_chance(model, x):
    return bool(torch.full((2,), random.random()).sum() > 1)


@pytest.mark.parametrize(
    "decides", [by_listed_numbers, by_how_far_apart, by_numpy, by_chance, by_length_of_mask]
)
@torch.no_grad()
def test_what_is_decided_past_torch_is_refused(decides):
    model = Turning(decides).eval()
    for x in (drawn(1), -drawn(1)):
        with pytest.raises(CaptureError, match="picks or orders"), capturing(model):
            model(x)
