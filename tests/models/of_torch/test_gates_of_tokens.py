"""Gates that may put one token in another's place: where they lie, such tokens have no names."""

import pytest
import torch
from test_moved_without_an_index import NAMES, TOKENS, TURNED, WIDTH, Layer, Model, captured
from torch import nn


def _parts(x, gate):
    return torch.stack([x, x.flip(1)], -1), torch.stack([gate, 1 - gate], -1)


def _in_place(x, gate):
    return x.clone().mul_(gate).add_(x.flip(1).mul_(1 - gate))


def _joined(x, gate):
    return torch.cat([x * gate, x.flip(1) * (1 - gate)], -1)


MIXES = torch.randn(2 * WIDTH, WIDTH, generator=torch.Generator().manual_seed(1)).double()
EXCHANGES = {
    "of both": lambda x, gate: x * gate + x.flip(1) * (1 - gate),
    "halved": lambda x, gate: x * gate * 0.5 + x.flip(1) * (1 - gate) * 0.5,
    "taken away": lambda x, gate: x * gate - x.flip(1) * (gate - 1),
    "difference": lambda x, gate: x + (x.flip(1) - x) * gate,
    "of a difference": lambda x, gate: x - (x - x.flip(1)) * gate,
    "lerp": lambda x, gate: torch.lerp(x, x.flip(1), gate.expand_as(x)),
    "addcmul": lambda x, gate: torch.addcmul(x, x.flip(1) - x, gate.expand_as(x)),
    "stacked": lambda x, gate: torch.mul(*_parts(x, gate)).sum(-1),
    "side by side": lambda x, gate: (
        torch.cat([x * gate, x.flip(1) * (1 - gate)], -1).unflatten(-1, (2, WIDTH)).sum(-2)
    ),
    "in place": _in_place,
    "rounded": lambda x, gate: x + (x.flip(1) - x) * gate.round(),
    "three parts": lambda x, gate: x * gate + x.sin() * gate**2 + x.flip(1) * (1 - gate),
    "flipped twice": lambda x, gate: x.flip(1) + (x - x.flip(1)) * gate,
    "einsums": lambda x, gate: sum(
        torch.einsum("bnd,bnd->bnd", weight.expand_as(x), one)
        for weight, one in ((gate, x), (1 - gate, x.flip(1)))
    ),
    "einsums of tokens": lambda x, gate: (
        torch.einsum("...nd,...n->...nd", x, gate[..., 0])
        + torch.einsum("bn,bnd->bnd", 1 - gate[..., 0], x.flip(1))
    ),
    "einsum of a stack": lambda x, gate: torch.einsum(
        "bnds,bnds->bnd", *(one.expand(*x.shape, 2) for one in _parts(x, gate))
    ),
    "einsum of a stack, by token": lambda x, gate: torch.einsum(
        "bns,bnds->bnd", _parts(x, gate)[1][:, :, 0], _parts(x, gate)[0]
    ),
    "linear": lambda x, gate: nn.functional.linear(_joined(x, gate), MIXES.T),
    "matrix": lambda x, gate: _joined(x, gate) @ MIXES,
    "linear, rounded": lambda x, gate: _joined(x, gate.round()) @ MIXES,
    "linear, compared": lambda x, gate: _joined(x, (gate > 0.5).to(x)) @ MIXES,
    "convolution": lambda x, gate: nn.functional.conv1d(_joined(x, gate).mT, MIXES.T[..., None]).mT,
    "next": lambda x, gate: x * gate + x.roll(1, 1) * (1 - gate),
}
GATES = {
    "of a token": lambda model, x: model.score(x).sigmoid(),
    "of a channel": lambda model, x: (x * 3).sigmoid(),
    "of a token, far": lambda model, x: (model.score(x) * 1e6).sigmoid(),
}


def _between(move, gate):
    model = Model(None)
    model.move = lambda x, score: move(x, gate(model, x))
    return model


@pytest.mark.parametrize("gate", GATES.values(), ids=GATES)
@pytest.mark.parametrize("move", EXCHANGES.values(), ids=EXCHANGES)
def test_tokens_that_a_gate_may_exchange_have_no_names(move, gate):
    stack, said = captured(_between(move, gate), torch.randn(1, TOKENS, WIDTH).double())
    assert list(stack[0, 0].tokens) == NAMES or not stack[0, 0].tokens
    assert stack[1, 0].tokens == ()
    assert any("picks or orders tokens" in one for one in said)


CHOICES = {
    "maximum": lambda x, score: torch.maximum(x, x.flip(1)),
    "max": lambda x, score: torch.max(x, x.flip(1)),
    "minimum": lambda x, score: torch.minimum(x.roll(1, 1), x),
    "clamp": lambda x, score: x.clamp(max=x.flip(1)),
    "amax": lambda x, score: torch.stack([x, x.flip(1)]).amax(0),
    "max of a stack": lambda x, score: torch.stack([x, x.flip(1)], 2).max(2).values,
    "median": lambda x, score: torch.cat([x, x.flip(1)], -1).unflatten(-1, (2, -1)).median(2)[0],
    "more": lambda x, score: x.flip(1) + (x - x.flip(1)).relu(),
}


@pytest.mark.parametrize("move", CHOICES.values(), ids=CHOICES)
def test_tokens_of_which_the_larger_numbers_are_taken_have_no_names(move):
    stack, said = captured(Model(move), torch.randn(1, TOKENS, WIDTH).double())
    assert stack[1, 0].tokens == ()
    assert any("picks or orders tokens" in one for one in said)


def _averaged(x):
    return nn.functional.avg_pool1d(x.mT, 3, 1, 1).mT


def _lengths(x):
    """One, from the largest position and the number of tokens that a mask of integers holds."""
    mask = torch.ones(x.shape[:2], dtype=torch.int64)
    last = (mask * torch.arange(x.shape[1])).max(dim=1).values + 1
    return (last / mask.sum(1, dtype=x.dtype))[:, None, None]


STAYS = {
    "gated": lambda x, gate: x * gate,
    "residual": lambda x, gate: x + x.flip(1) * gate,
    "convolution": lambda x, gate: x * gate + _averaged(x) * (1 - gate),
    "two gates": lambda x, gate: x * gate + x.sin() * (1 - gate),
    "joined": lambda x, gate: torch.cat([x * gate, x.sin() * (1 - gate)], -1) @ MIXES,
    "joined, residual": lambda x, gate: torch.cat([x, x.flip(1) * gate], -1) @ MIXES,
    "einsum": lambda x, gate: (
        torch.einsum("bnd,bnd->bnd", x, gate.expand_as(x)) + torch.einsum("bnd,d->bnd", x, MIXES[0])
    ),
    "largest of all": lambda x, gate: torch.maximum(x, x.amax(1, keepdim=True).expand_as(x)) + x,
    "largest of neighbours": lambda x, gate: torch.maximum(x, _averaged(x)),
    "largest channel": lambda x, gate: x - x.amax(-1, keepdim=True) + x.relu(),
    "weights of all": lambda x, gate: x @ (x.mT @ x),
    "lengths of masks": lambda x, gate: x * _lengths(x),
    "product of gates, joined": lambda x, gate: torch.cat(
        [(x @ x.mT).mean(2, keepdim=True) * (x.mT @ x).mean(), x], -1
    )[..., 1:],
}


@pytest.mark.parametrize("gate", GATES.values(), ids=GATES)
@pytest.mark.parametrize("move", STAYS.values(), ids=STAYS)
def test_tokens_that_keep_their_own_content_keep_their_names(move, gate):
    model = _between(move, gate)
    stack, said = captured(model, torch.randn(1, TOKENS, WIDTH).double())
    wanted = model.layers[1].attention[0].detach()
    torch.testing.assert_close(torch.tensor(stack[1, 0].to_dense()), wanted, rtol=0, atol=1e-12)
    assert not said
    assert list(stack[1, 0].tokens) == NAMES


class Sided(Layer):
    """Attention whose queries or keys are of tokens that a gate may exchange before."""

    def __init__(self, move, side, is_kernel):
        super().__init__()
        self.move, self.side, self.is_kernel = move, side, is_kernel

    def forward(self, x, gate):
        moved = self.move(x, gate)
        query = self.query(moved if self.side == "queries" else x)
        key = self.key(moved if self.side == "keys" else x)
        self.attention = (query @ key.mT / WIDTH**0.5).softmax(-1)
        if self.is_kernel:
            one = nn.functional.scaled_dot_product_attention
            return x + one(query[:, None], key[:, None], self.value(x)[:, None])[:, 0]
        return x + self.attention @ self.value(x)


class OneSide(Model):
    def __init__(self, move, side, is_kernel):
        super().__init__(None)
        self.layers[1] = Sided(move, side, is_kernel).double()

    def forward(self, x):
        x = self.layers[0](x)
        return self.layers[1](x, (self.score(x).mean() * 1e6).sigmoid())


EYE = torch.eye(TOKENS).double()
MOVES = {
    "matrix": lambda x, gate: (gate * EYE + (1 - gate) * TURNED) @ x,
    "chosen matrix": lambda x, gate: torch.where(gate > 0.5, EYE, TURNED) @ x,
    "einsum of a chosen matrix": lambda x, gate: torch.einsum(
        "ij,bjd->bid", torch.where(gate > 0.5, EYE, TURNED), x
    ),
    "side by side": EXCHANGES["side by side"],
    "einsum": lambda x, gate: torch.einsum(
        "g,gbnd->bnd", torch.stack([gate, 1 - gate]), torch.stack([x, x.flip(1)])
    ),
    "convolution": lambda x, gate: (
        nn.functional.conv1d(
            torch.cat([x, x.flip(1)], -1).mT,
            torch.cat([EYE[:WIDTH, :WIDTH] * gate, EYE[:WIDTH, :WIDTH] * (1 - gate)], 1)[..., None],
        ).mT
    ),
}


@pytest.mark.parametrize("is_kernel", [False, True])
@pytest.mark.parametrize("side", ["queries", "keys"])
@pytest.mark.parametrize("move", MOVES.values(), ids=MOVES)
def test_one_side_that_a_gate_of_all_tokens_exchanges_has_no_names(move, side, is_kernel):
    """The gate is open for some inputs and closed for others, and the model is proved once."""
    model = OneSide(move, side, is_kernel)
    for seed in range(3):
        x = torch.randn(1, TOKENS, WIDTH, generator=torch.Generator().manual_seed(seed)).double()
        stack, said = captured(model, x)
        assert stack[1, 0].tokens == ()
        assert said


@pytest.mark.parametrize("is_kernel", [False, True])
@pytest.mark.parametrize("side", ["queries", "keys"])
def test_one_side_that_a_gate_of_all_tokens_weighs_keeps_its_names(side, is_kernel):
    model = OneSide(lambda x, gate: x * gate + x.sin(), side, is_kernel)
    stack, said = captured(model, torch.randn(1, TOKENS, WIDTH).double())
    wanted = model.layers[1].attention[0].detach()
    torch.testing.assert_close(torch.tensor(stack[1, 0].to_dense()), wanted, rtol=0, atol=1e-12)
    assert not said
    assert list(stack[1, 0].tokens) == NAMES
