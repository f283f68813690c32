"""Edits of attention inside autograd functions of the user's own."""

import pytest
import torch
from torch import nn

from gattn import Cut, Scale, edited
from gattn.errors import EditError

WIDTH = 8


class Attend(torch.autograd.Function):
    """Attention with a backward pass of its own."""

    @staticmethod
    def forward(ctx, query, key, value):
        attention = (query @ key.mT).softmax(-1)
        ctx.save_for_backward(query, key, value, attention)
        return attention @ value

    @staticmethod
    def backward(ctx, gradient):
        query, key, value, attention = ctx.saved_tensors
        of = gradient @ value.mT
        of = attention * (of - (attention * of).sum(-1, keepdim=True))
        return of @ key, of.mT @ query, attention.mT @ gradient


class AttendApart(torch.autograd.Function):
    """The same, whose forward is given no context."""

    @staticmethod
    def forward(query, key, value):
        return (query @ key.mT).softmax(-1) @ value

    @staticmethod
    def setup_context(ctx, inputs, output):
        query, key, _ = inputs
        ctx.save_for_backward(*inputs, (query @ key.mT).softmax(-1))

    backward = Attend.backward


class Model(nn.Module):
    def __init__(self, function):
        super().__init__()
        torch.manual_seed(0)
        self.qkv, self.function = nn.Linear(WIDTH, 3 * WIDTH), function

    def forward(self, x):
        return self.function.apply(*self.qkv(x).chunk(3, -1))

    def scaled(self, x, factor):
        """Compute the output by the formula, with one edge's attention scaled."""
        query, key, value = self.qkv(x).chunk(3, -1)
        factors = torch.ones(5, 5, dtype=x.dtype)
        factors[2, 1] = factor
        return (query @ key.mT).softmax(-1) * factors @ value


@pytest.mark.filterwarnings("ignore:Beside the softmax that meets the values")  # For backward.
@pytest.mark.parametrize("function", [Attend, AttendApart])
def test_what_is_edited_without_gradients_is_right(function):
    model, x = Model(function).double().eval(), torch.randn(2, 5, WIDTH).double()
    with torch.no_grad(), edited(model, Scale(0.5, layer=0, query=2, key=1)):
        found = model(x)
    torch.testing.assert_close(found, model.scaled(x, 0.5).detach())


@pytest.mark.parametrize("edit", [Scale(0.5, layer=0, query=2, key=1), Cut(layer=0, key=1)])
@pytest.mark.parametrize("function", [Attend, AttendApart])
def test_gradients_of_what_is_edited_are_refused(function, edit):
    model, x = Model(function).eval(), torch.randn(2, 5, WIDTH)
    says = rf"inside the autograd function {function.__name__}, whose own backward"
    with pytest.raises(EditError, match=says), edited(model, edit):
        model(x).sum().backward()


def test_gradients_without_edits_are_the_functions_own():
    model, x = Model(Attend).double().eval(), torch.randn(2, 5, WIDTH).double()
    with edited(model, Cut(layer=0, key=1)), torch.no_grad():
        model(x)
    found, wanted = (
        torch.autograd.grad(y.square().sum(), model.qkv.weight)[0]
        for y in (model(x), model.scaled(x, 1.0))
    )
    torch.testing.assert_close(found, wanted)


@pytest.mark.filterwarnings("ignore:Beside the softmax that meets the values")  # For backward.
@pytest.mark.parametrize("function", [Attend, AttendApart])
def test_gradients_of_leaves_are_refused_unless_none_are_taken(function):
    class Bare(nn.Module):
        def forward(self, query, key, value):
            return function.apply(query, key, value)

    given = [torch.randn(2, 5, WIDTH).requires_grad_() for _ in range(3)]
    model, cut = Bare(), Cut(layer=0, query=2, key=1)
    with pytest.raises(EditError, match="own backward"), edited(model, cut):
        model(*given).sum().backward()
    with torch.no_grad(), edited(model, cut):
        assert not model(*given).requires_grad


class Again(torch.autograd.Function):
    """A checkpoint written by hand: its backward pass runs a module again."""

    @staticmethod
    def forward(ctx, x, module):
        ctx.module = module
        ctx.save_for_backward(x)
        return module(x)

    @staticmethod
    def backward(ctx, gradient):
        with torch.enable_grad():
            x = ctx.saved_tensors[0].detach().requires_grad_()
            y = ctx.module(x)
        return torch.autograd.grad(y, x, gradient)[0], None


class Reversible(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.inner = Inner()

    def forward(self, x):
        return Again.apply(x, self.inner)


class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x):
        query, key, value = self.qkv(x).chunk(3, -1)
        return (query @ key.mT).softmax(-1) @ value


def test_a_function_that_runs_a_module_again_needs_the_context_open():
    model, x = Reversible().double().eval(), torch.randn(2, 5, WIDTH).double().requires_grad_()
    cut = Cut(layer=0, query=2, key=1)
    with edited(model, cut):
        (found,) = torch.autograd.grad(model(x).square().sum(), x)
    with edited(model.inner, cut):
        (wanted,) = torch.autograd.grad(model.inner(x).square().sum(), x)
    torch.testing.assert_close(found, wanted)
    with edited(model, cut):
        late = model(x).square().sum()
    with pytest.raises(EditError, match=r"call backward\(\) inside the context"):
        late.backward()
