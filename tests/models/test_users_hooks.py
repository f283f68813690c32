"""The user's hooks that change something are part of what is proved, and others run only once."""

import numpy as np
import pytest
import torch
from torch import nn

import gattn
from gattn.errors import CaptureError

TOKENS, WIDTH = 6, 8
X = torch.randn(1, TOKENS, WIDTH, generator=torch.Generator().manual_seed(0))
IN_ORDER = list(range(TOKENS))
FLIPPED = IN_ORDER[::-1]


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x):
        self.shown = (self.query(x) @ self.key(x).mT / WIDTH**0.5).softmax(-1)
        return self.shown @ self.value(x)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList([Head(), Head(), Head()])

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return x


def captured(model):
    with torch.no_grad(), gattn.capturing(model, keep=gattn.All()) as run:
        model(X)
    return run.trace


def check(model, orders, trace=None):
    trace = captured(model) if trace is None else trace
    for number, (layer, order) in enumerate(zip(model.layers, orders, strict=True)):
        wanted = np.zeros((TOKENS, TOKENS), dtype=np.float32)
        wanted[np.ix_(order, order)] = layer.shown[0].detach()
        np.testing.assert_allclose(trace[number, 0].to_dense(), wanted, atol=1e-6)


def flip_given(module, given):
    return (given[0].flip(1),)


def flip_in_place(module, given):
    given[0].copy_(given[0].flip(1))


class FlipOutput:
    """A hook with a state."""

    def __init__(self):
        self.calls = 0

    def __call__(self, module, given, output):
        self.calls += 1
        return output.flip(1)


HOOKS = {
    "what a layer is given": ("register_forward_pre_hook", flip_given, [0, 1, 0]),
    "in place": ("register_forward_pre_hook", flip_in_place, [0, 1, 1]),
    "what a layer gives": ("register_forward_hook", FlipOutput(), [0, 0, 0]),
}


@pytest.mark.parametrize(("register", "hook", "flips"), HOOKS.values(), ids=HOOKS)
def test_a_hook_that_moves_tokens_is_part_of_the_model(register, hook, flips):
    model = Model().eval()
    check(model, [IN_ORDER] * 3)
    handle = getattr(model.layers[1], register)(hook)
    check(model, [FLIPPED if is_flipped else IN_ORDER for is_flipped in flips])
    handle.remove()
    check(model, [IN_ORDER] * 3)


def test_a_hook_that_moves_tokens_between_layers_for_good():
    """What the second layer gives takes the residual stream's place."""
    model = Model().eval()
    outer = nn.Sequential(*(nn.Sequential(layer) for layer in model.layers))
    outer[0].register_forward_hook(lambda module, given, output: output.flip(1))
    with torch.no_grad(), gattn.capturing(outer, keep=gattn.All()) as run:
        outer(X)
    check(model, [IN_ORDER, FLIPPED, FLIPPED], run.trace)


def test_a_hook_that_is_added_within_the_context():
    model = Model().eval()
    with torch.no_grad(), gattn.capturing(model, keep=gattn.All()) as run:
        handle = model.layers[1].register_forward_pre_hook(flip_given)
        model(X)
    handle.remove()
    check(model, [IN_ORDER, FLIPPED, IN_ORDER], run.trace)


def test_what_hooks_hold_is_as_after_one_call():
    model, seen, count = Model().eval(), [], 0
    sums = torch.zeros(WIDTH)

    def observe(module, given, output):
        nonlocal count
        count += 1
        seen.append(output)
        sums.add_(output[0, 0])

    def steer(module, given, output):
        seen.append("steered")
        return output + 1

    model.layers[0].register_forward_hook(observe)
    model.layers[1].register_forward_hook(steer)
    flip = FlipOutput()
    model.layers[2].register_forward_hook(flip)
    check(model, [IN_ORDER] * 3)
    assert (count, flip.calls, len(seen)) == (1, 1, 2)
    torch.testing.assert_close(sums, seen[0][0, 0])
    assert seen[1] == "steered"


def test_hooks_that_take_gradients_are_read():
    model, seen = Model().eval(), []

    def keep(module, given, output):
        output.retain_grad()
        output.register_hook(seen.append)

    model.layers[1].register_forward_hook(keep)
    with gattn.capturing(model, keep=gattn.All()) as run:
        model(X).sum().backward()
    check(model, [IN_ORDER] * 3, run.trace)
    assert len(seen) == 1


def test_a_hook_that_fails_on_a_copy_is_named():
    model = Model().eval()
    own = model.layers[1]

    def only_own(module, given):
        if module is not own:
            raise ValueError("not mine")

    own.register_forward_pre_hook(only_own)
    with pytest.raises(CaptureError, match=r"hook of yours on layers\.1.*not mine.*remove it"):
        captured(model)
