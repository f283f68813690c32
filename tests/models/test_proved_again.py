"""A proof holds for nothing but what was proved: other state, layers or inputs are proved again."""

from __future__ import annotations

import dataclasses
import enum
import functools
import types

import numpy as np
import pytest
import torch
from torch import nn

from gattn import capturing
from gattn.errors import CaptureError

WIDTH, TOKENS = 16, 6
ORDER, REVERSED = list(range(TOKENS)), list(range(TOKENS))[::-1]
IS_REVERSED = False
SETTINGS = {"reverse": False}


class Attention(nn.Module):
    """Reads tokens in an order of its own, and gives them back in theirs."""

    def __init__(self):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.begin()

    def begin(self):
        pass

    def attend(self, x):
        return (self.query(x) @ self.key(x).mT).softmax(-1) @ self.value(x)

    def forward(self, x):
        return self.attend(x.flip(1)).flip(1) if self.is_reversed() else self.attend(x)


@torch.no_grad()
def dense(layer, x):
    return (layer.query(x) @ layer.key(x).mT).softmax(-1)[0]


@torch.no_grad()
def error(model, given, wanted, layer=0):
    with capturing(model) as run:
        model(given)
    assert len(run.traces) == 1
    found = torch.tensor(run.trace[layer, 0].to_dense())
    return float((found - wanted).abs().max())


class Mode(enum.Enum):
    FORWARDS = 0
    BACKWARDS = 1


@dataclasses.dataclass
class Options:
    inner: types.SimpleNamespace


class Dict(Attention):
    def begin(self):
        self.options = {"reverse": False}

    def is_reversed(self):
        return self.options["reverse"]

    def change(self):
        self.options["reverse"] = True


class Nested(Attention):
    def begin(self):
        self.options = Options(types.SimpleNamespace(modes=[{Mode.FORWARDS}]))

    def is_reversed(self):
        return Mode.BACKWARDS in self.options.inner.modes[0]

    def change(self):
        self.options.inner.modes[0].add(Mode.BACKWARDS)


class Long(Attention):
    def begin(self):
        self.places = [0] * 200

    def is_reversed(self):
        return self.places[150]

    def change(self):
        self.places[150] = 1


class Array(Attention):
    def begin(self):
        self.order = np.arange(TOKENS)

    def is_reversed(self):
        return self.order[0] > 0

    def change(self):
        self.order[:] = REVERSED


class Data(Attention):
    def begin(self):
        self.order = torch.arange(TOKENS)

    def forward(self, x):
        return self.attend(x[:, self.order])[:, self.order.argsort()]

    def change(self):
        self.order.data.copy_(torch.tensor(REVERSED))


class OfClass(Attention):
    reverses = False

    def is_reversed(self):
        return self.reverses

    def change(self):
        type(self).reverses = True


class Patched(Attention):
    def is_reversed(self):
        return False

    def change(self):
        type(self).is_reversed = lambda self: True


class Global(Attention):
    def is_reversed(self):
        return IS_REVERSED

    def change(self):
        globals()["IS_REVERSED"] = True


class GlobalDict(Attention):
    def is_reversed(self):
        return SETTINGS["reverse"]

    def change(self):
        SETTINGS["reverse"] = True


class Closure(Attention):
    def begin(self):
        shift = 0

        def moved(x, sign):
            return x.roll(sign * shift, 1)

        def change():
            nonlocal shift
            shift = 2

        self.moved, self.change = moved, change

    def forward(self, x):
        return self.moved(self.attend(self.moved(x, 1)), -1)


KINDS = (Dict, Nested, Long, Array, Data, OfClass, Patched, Global, GlobalDict, Closure)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_model_whose_state_changed_is_proved_again(kind):
    torch.manual_seed(0)
    model, x = kind().eval(), torch.randn(1, TOKENS, WIDTH)
    wanted = dense(model, x)
    assert error(model, x, wanted) < 1e-5
    model.change()  # It only reads its tokens in another order.
    assert error(model, x, wanted) < 1e-5


class ByBuffer(Attention):
    def __init__(self, order):
        super().__init__()
        self.register_buffer("order", torch.tensor(order))

    def forward(self, x, order=None):
        order = self.order if order is None else order
        return self.attend(x[:, order])[:, order.argsort()]


class Shifted(nn.Module):
    """Shifts tokens, by an integer that it is given, before a module attends to them."""

    def __init__(self, read):
        super().__init__()
        self.attention, self.read = ByBuffer(ORDER), read

    def forward(self, x, shift):
        by = self.read(shift)
        return self.attention(x.roll(by, 1) if by else x).roll(-by, 1)


@pytest.mark.parametrize("read", [int, lambda shift: shift[None].tolist()[0]], ids=["int", "list"])
def test_an_integer_that_is_given_decides_the_order_each_time(read):
    torch.manual_seed(0)
    model, x = Shifted(read).eval(), torch.randn(1, TOKENS, WIDTH)
    wanted = dense(model.attention, x)
    for shift in (0, 2, 0):
        with capturing(model) as run, torch.no_grad():
            model(x, torch.tensor(shift))
        found = torch.tensor(run.trace[0, 0].to_dense())
        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=0)


class ByFunction(Attention):
    def __init__(self, order):
        super().__init__()
        self.moved = (lambda x: x) if order == ORDER else (lambda x: x.flip(1))

    def forward(self, x):
        return self.moved(self.attend(self.moved(x)))


class ByPartial(ByFunction):
    def __init__(self, order):
        super().__init__(order)
        self.moved = functools.partial(torch.Tensor.flip, dims=(1,) if order != ORDER else ())


class ByConfig(ByFunction):
    def __init__(self, order):
        super().__init__(order)
        self.config = {"reverse": order != ORDER}
        del self.moved

    def moved(self, x):
        return x.flip(1) if self.config["reverse"] else x


class Layers(nn.Module):
    def __init__(self, kind, gives_order=False):
        super().__init__()
        orders = (ORDER, REVERSED, ORDER[1:] + ORDER[:1]) if kind is ByBuffer else (ORDER, REVERSED)
        self.layers = nn.ModuleList(map(kind, orders))
        self.orders = orders if gives_order else None

    def forward(self, x):
        for n, layer in enumerate(self.layers):
            x = x + (layer(x, torch.tensor(self.orders[n])) if self.orders else layer(x))
        return x


@pytest.mark.parametrize("kind", [ByBuffer, ByFunction, ByPartial, ByConfig, None])
def test_layers_that_differ_in_more_than_shapes_are_proved_by_themselves(kind):
    torch.manual_seed(0)
    model = Layers(kind or ByBuffer, gives_order=kind is None).eval()
    if kind is None:  # The order is given to layers that are alike.
        for layer in model.layers:
            layer.order = torch.arange(TOKENS)
    x = given = torch.randn(1, TOKENS, WIDTH)
    with torch.no_grad():
        for number, layer in enumerate(model.layers):
            assert error(model, x, dense(layer, given), number) < 1e-5
            order = torch.tensor(model.orders[number]) if model.orders else None
            given = given + (layer(given) if order is None else layer(given, order))


class ByDefault(Attention):
    """Has an order of its own only where it has an attribute."""

    reverse = False

    def is_reversed(self):
        return self.reverse


@torch.no_grad()
def test_an_attribute_that_one_layer_had_and_another_has_now_is_proved_again():
    torch.manual_seed(0)
    model, x = nn.Sequential(ByDefault(), ByDefault()).eval(), torch.randn(1, TOKENS, WIDTH)
    first, second = model
    first.reverse = True
    assert error(model, x, dense(first, x)) < 1e-5
    del first.reverse
    second.reverse = True
    assert error(model, x, dense(first, x)) < 1e-5
    assert error(model, x, dense(second, first(x)), 1) < 1e-5


class TwoDefaults(ByDefault):
    """Has two attributes, of which one says nothing."""

    other = False


@torch.no_grad()
def test_an_attribute_with_another_name_is_proved_again():
    torch.manual_seed(0)
    model, x = nn.Sequential(TwoDefaults()).eval(), torch.randn(1, TOKENS, WIDTH)
    model[0].other = True
    assert error(model, x, dense(model[0], x)) < 1e-5
    del model[0].other
    model[0].reverse = True
    assert error(model, x, dense(model[0], x)) < 1e-5


class ByGradients(Attention):
    def is_reversed(self):
        return torch.is_grad_enabled()


def test_code_that_asks_for_gradients_is_proved_with_them():
    model, x = ByGradients().eval(), torch.randn(1, TOKENS, WIDTH)
    for enabled in (False, True, False):
        with torch.set_grad_enabled(enabled), capturing(model) as run:
            model(x)
        found = torch.tensor(run.trace[0, 0].to_dense())
        torch.testing.assert_close(found, dense(model, x), rtol=0, atol=1e-5)
        assert all(parameter.grad is None for parameter in model.parameters())


class Forwards(Attention):
    def is_reversed(self):
        return False


class ByLambda(nn.Module):
    """Calls its layer through a function that holds the model, in a list or a set."""

    def __init__(self, kind):
        super().__init__()
        self.layer = Forwards()
        self.call = kind([lambda x: self.layer(x)])

    def forward(self, x):
        (call,) = self.call
        return call(x)


def test_a_function_in_a_list_holds_the_copy():
    model, x = ByLambda(list).eval(), torch.randn(1, TOKENS, WIDTH)
    assert error(model, x, dense(model.layer, x), 0) < 1e-5


def test_a_copy_that_calls_the_model_itself_is_told():
    model, x = ByLambda(frozenset).eval(), torch.randn(1, TOKENS, WIDTH)
    for _ in range(2):
        told = pytest.raises(
            CaptureError, match="the copy still calls layer of the original, since"
        )
        with told, torch.no_grad(), capturing(model):
            model(x)
    model.call = [model.layer.forward]
    assert error(model, x, dense(model.layer, x), 0) < 1e-5
