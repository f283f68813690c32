"""The runs that prove a model's attention leave the model alone, whatever it does or holds."""

from __future__ import annotations

import copy
import itertools
import threading
from typing import ClassVar

import pytest
import torch
from torch import nn

from gattn import Cut, capturing, edited
from gattn.errors import CaptureError
from gattn.models.doors.proof import plans

HEADS, DIM = 2, 4
WIDTH = HEADS * DIM


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, DIM)).permute(2, 0, 3, 1, 4)
        return ((q @ k.mT / DIM**0.5).softmax(-1) @ v).transpose(1, 2).flatten(2)


def multiply(model):
    model.slow.mul_(0.5)


def multiply_data(model):
    model.slow.data.mul_(0.5)


def exchange(model):
    model.slow.data = model.slow.data * 0.5


def multiply_a_view(model):
    model.slow.detach()[1:3].mul_(0.5)


def mix(model):
    """A momentum encoder follows its other weights."""
    for slow, fast in zip(model.other.parameters(), model.layer.parameters(), strict=True):
        slow.data.lerp_(fast.data, 0.1)


def count(model):
    model.counts += 1
    model.plain[0] += 1


def draw(model):
    model.slow.data.copy_(torch.randn(WIDTH, generator=model.generator))


class Changing(nn.Module):
    def __init__(self, change):
        super().__init__()
        self.layer, self.other, self.change = Layer(), Layer(), change
        self.slow = nn.Parameter(torch.ones(WIDTH))
        self.register_buffer("counts", torch.zeros(2))
        self.plain = [torch.zeros(2)]
        self.generator = torch.Generator().manual_seed(0)
        self.norm = nn.BatchNorm1d(WIDTH)

    def forward(self, x):
        with torch.no_grad():
            self.change(self)
        x = self.norm(x.mT).mT
        return self.layer(x * self.slow) + self.other(x)


def made(kind, *given):
    torch.manual_seed(0)
    return kind(*given).eval(), torch.randn(2, 6, WIDTH)


@pytest.mark.parametrize(
    "change", [multiply, multiply_data, exchange, multiply_a_view, mix, count, draw]
)
def test_what_a_run_changes_is_changed_once(change):
    model, x = made(Changing, change)
    model.norm.train()
    other = copy.deepcopy(model)
    with capturing(model) as run, torch.no_grad():
        seen = model(x)
    assert len(run.traces) == 2
    with torch.no_grad():
        assert torch.equal(seen, other(x))
    for name, value in model.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name
    assert torch.equal(model.plain[0], other.plain[0])
    assert torch.equal(model.generator.get_state(), other.generator.get_state())


class Counted:
    """Holds a lock and a part of the model."""

    def __init__(self, layer):
        self.lock, self.layers, self.calls = threading.Lock(), [layer], 0


class Holding(nn.Module):
    def __init__(self, held):
        super().__init__()
        self.layer = Layer()
        self.held = held(self.layer)

    def forward(self, x):
        if not isinstance(self.held, dict):
            return self.layer(x)
        self.held["counted"].calls += 1
        return self.held["counted"].layers[0](x)


@pytest.mark.parametrize(
    "held",
    [
        lambda layer: threading.Lock(),
        lambda layer: threading.local(),
        lambda layer: open(__file__),  # noqa: SIM115
        lambda layer: [layer.qkv.weight * 2],
        lambda layer: {"counted": Counted(layer)},
    ],
)
def test_a_model_may_hold_what_cannot_be_copied(held):
    model, x = made(Holding, held)
    with capturing(model) as run, torch.no_grad():
        output = model(x)
    assert torch.equal(output, model.layer(x))
    q, k, _ = model.layer.qkv(x).unflatten(-1, (3, HEADS, DIM)).permute(2, 0, 3, 1, 4)
    wanted = (q @ k.mT / DIM**0.5).softmax(-1)[1, 0].detach().numpy()
    assert run.traces[1][0, 0].to_dense() == pytest.approx(wanted, rel=1e-5)
    if isinstance(model.held, dict):
        assert model.held["counted"].calls == 1
    getattr(model.held, "close", list)()


def test_a_generator_that_a_run_would_use_up_is_refused():
    model, x = made(Holding, lambda layer: (n for n in range(3)))
    says = r"Holding\.held is a generator, which cannot be copied.* hold what it gives in a list"
    with pytest.raises(CaptureError, match=says), capturing(model):
        model(x)
    assert list(model.held) == [0, 1, 2]


class Embedded(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.layer = nn.Embedding(5, WIDTH), Layer()

    def forward(self, ids):
        x = self.layer(self.table(ids.clamp(max=4)))
        return x + self.table(ids)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("context", [capturing, lambda model: edited(model, Cut(key=0))])
def test_a_models_own_exception_comes_out(context):
    model, _ = made(Embedded)
    with pytest.raises(IndexError, match="out of range"), context(model):
        model(torch.tensor([[1, 2, 9]]))
    with context(model):  # Inputs of the same shape are proved anew.
        model(torch.tensor([[1, 2, 3]]))


def test_a_model_that_fails_only_when_it_is_proved_is_refused():
    model, x = made(Layer)
    forward = model.forward
    model.forward = lambda x: _only(model, forward, x)
    runs = itertools.count()  # A list would be put back.

    def _only(known, function, x):
        if next(runs) == 0:
            raise ValueError("not yet")
        return function(x)

    says = r"a copy of it.* failed \(ValueError: not yet\)"
    with pytest.raises(CaptureError, match=says), capturing(model), torch.no_grad():
        model(x)
    assert next(runs) == 2


LOG, KEPT = [], {}


class Logging(Layer):
    """Changes what lies around it: globals, and what its class holds."""

    seen: ClassVar = {"runs": 0}

    def forward(self, x):
        LOG.append(len(x))
        KEPT[x.shape] = KEPT.get(x.shape, 0) + 1
        self.seen["runs"] += 1
        return super().forward(x)


@torch.no_grad()
def test_what_lies_around_a_model_is_as_if_it_had_run_once():
    LOG.clear()
    KEPT.clear()
    model, x = made(Logging)
    for number in (1, 2):
        with capturing(model):
            model(x)
        assert (len(LOG), KEPT[x.shape], Logging.seen["runs"]) == (number, number, number)


class Masked(nn.Module):
    """Looks up ids, or makes tokens of the mask beside them, and counts its own runs."""

    runs = itertools.count()  # A number would be put back.

    def __init__(self, has_ids):
        super().__init__()
        torch.manual_seed(0)
        self.has_ids, self.embedding, self.lin = has_ids, nn.Embedding(9, 8), nn.Linear(1, 8)
        self.layer = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, input_ids, mask):
        next(Masked.runs)
        own, others = self.embedding(input_ids), self.lin(mask[..., None].float())
        x = own if self.has_ids else others + 0 * own.mean(1, keepdim=True)
        return self.layer(x, x, x, need_weights=False)[0]


@torch.no_grad()
@pytest.mark.parametrize("has_ids", [True, False])
def test_ids_beside_a_mask_need_few_runs_and_name_their_own_tokens(has_ids):
    model, ids = Masked(has_ids).eval(), torch.arange(8)[None]
    Masked.runs = itertools.count()
    with capturing(model):
        model(ids, torch.tensor([[True, False] * 4]))
    assert 1 < next(Masked.runs) <= 13
    ((_, plan),) = plans._plans[model]
    assert bool(plan.beside) != has_ids
