"""Methods of a model that are called instead of the model itself."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import gattn
from gattn.errors import CaptureError

WIDTH = 8
CUT = gattn.Cut(layer=0, query=1, key=2)
SAID = "outside of a call of the .* Call the model, as in model\\(x\\)"


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.to_q = nn.Linear(WIDTH, WIDTH)

    def attend(self, x):
        return (self.to_q(x) @ x.mT).softmax(-1) @ x

    def forward(self, x):
        return self.attend(x)


class Layers(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Attention() for _ in range(2))

    def attend(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return x

    def forward(self, x):
        return self.attend(x)


class Around(nn.Module):
    """Calls a method of the model in its own forward."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        return self.model.attend(x)


def made(kind):
    torch.manual_seed(0)
    return kind().eval(), torch.randn(2, 5, WIDTH)


@pytest.mark.parametrize("kind", [Attention, Layers])
@pytest.mark.parametrize("method", ["forward", "attend"])
@torch.no_grad()
def test_the_error_says_to_call_the_model(kind, method):
    model, x = made(kind)
    with pytest.raises(CaptureError, match=SAID), gattn.capturing(model):
        getattr(model, method)(x)
    with pytest.raises(CaptureError, match=SAID), gattn.edited(model, CUT):
        getattr(model, method)(x)


@pytest.mark.parametrize("kind", [Attention, Layers])
@torch.no_grad()
def test_a_module_around_the_method_is_read(kind):
    model, x = made(kind)
    around = Around(model)
    with gattn.capturing(model, keep=gattn.All()) as run:
        model(x)
    with gattn.capturing(around, keep=gattn.All()) as other:
        around(x)
    for one, two in zip(run.traces, other.traces, strict=True):
        heads, others = one.only_stack.heads, two.only_stack.heads
        for place, head in heads.items():
            assert (head.to_dense() == others[place].to_dense()).all()


class Checkpointed(Attention):
    def forward(self, x):
        return checkpoint(self.attend, x, use_reentrant=False)


def test_a_part_of_the_model_itself_that_runs_again_keeps_its_edits():
    model, x = made(Checkpointed)
    x.requires_grad_()
    with gattn.edited(model, CUT):
        model(x).square().sum().backward()
    scores = model.to_q(x) @ x.mT
    scores = scores.index_put(
        (torch.tensor([0, 1]), torch.tensor([1, 1]), torch.tensor([2, 2])), torch.tensor(-torch.inf)
    )
    output = scores.softmax(-1) @ x
    (wanted,) = torch.autograd.grad(output.square().sum(), x)
    torch.testing.assert_close(x.grad, wanted)
