"""Attention to keys and values that a module has learned: a codebook, or slots of a memory."""

import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from gattn import capturing
from gattn.errors import CaptureError

WIDTH, HEADS, DIM, SLOTS = 8, 2, 4, 5
SHAPES = [(SLOTS, WIDTH), (HEADS, SLOTS, DIM), (1, HEADS, SLOTS, DIM)]


class Memory(nn.Module):
    """Each token reads slots, whose keys and values are parameters or buffers."""

    def __init__(self, shape, *, is_buffer, is_expanded=False, is_kernel=False):
        super().__init__()
        self.query = nn.Linear(WIDTH, WIDTH)
        self.is_expanded, self.is_kernel = is_expanded, is_kernel
        for name in ("keys", "values"):
            slots = torch.randn(shape)
            self.register_buffer(name, slots) if is_buffer else self.register_parameter(
                name, nn.Parameter(slots)
            )

    def forward(self, x):
        keys, values = self.keys, self.values
        if self.is_expanded:
            keys, values = (slots.expand(len(x), *slots.shape[-3:]) for slots in (keys, values))
        query = self.query(x)
        if keys.dim() == 2:
            return x + (query @ keys.T / 2).softmax(-1) @ values
        query = query.unflatten(-1, (HEADS, DIM)).transpose(1, 2)
        if self.is_kernel:
            found = scaled_dot_product_attention(query, keys, values)
        else:
            self.weights = (query @ keys.mT / 2).softmax(-1)
            found = self.weights @ values
        return x + found.transpose(1, 2).flatten(2)


class Reader(nn.Module):
    """Tokens read each other."""

    def __init__(self):
        super().__init__()
        self.attend = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)

    def forward(self, x):
        return x + self.attend(x, x, x, need_weights=False)[0]


WAYS = [(shape, is_buffer, False) for shape in SHAPES for is_buffer in (False, True)]
WAYS += [((1, HEADS, SLOTS, DIM), is_buffer, True) for is_buffer in (False, True)]


def given(count=2):
    return torch.randn(count, 6, WIDTH, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(("shape", "is_buffer", "is_expanded"), WAYS)
def test_a_memory_is_named_once_beside_what_is_shown(shape, is_buffer, is_expanded):
    torch.manual_seed(0)
    memory = Memory(shape, is_buffer=is_buffer, is_expanded=is_expanded)
    model = nn.Sequential(Reader(), memory, Reader()).eval()
    with torch.no_grad(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with capturing(model) as run:
            model(given())
    (said,) = (str(one.message) for one in caught)
    assert said.startswith("1 (Memory) attends to parameters or buffers, as to a codebook: ")
    assert [len(trace.only_stack.layers) for trace in run.traces] == [2, 2]
    x = model[1](model[0](given()))
    wanted = model[2].attend(x, x, x, average_attn_weights=False)[1].detach()
    for trace, attention in zip(run.traces, wanted, strict=True):
        for head in range(HEADS):
            np.testing.assert_allclose(trace[1, head].to_dense(), attention[head], atol=1e-6)


@pytest.mark.parametrize(("shape", "is_buffer", "is_expanded"), WAYS)
def test_a_memory_alone_is_refused_with_the_reason(shape, is_buffer, is_expanded):
    model = Memory(shape, is_buffer=is_buffer, is_expanded=is_expanded).eval()
    says = r"\(Memory\) attends to parameters or buffers, as to a codebook .* keys are no tokens"
    with torch.no_grad(), pytest.raises(CaptureError, match=says), capturing(model):
        model(given())


@pytest.mark.parametrize("is_buffer", [False, True])
def test_a_memory_that_a_kernel_reads_is_shown(is_buffer):
    torch.manual_seed(0)
    model = Memory((1, HEADS, SLOTS, DIM), is_buffer=is_buffer, is_kernel=True).eval()
    with torch.no_grad(), capturing(model) as run:
        model(given(1))
    model.is_kernel = False
    model(given(1))
    for head in range(HEADS):
        found = run.trace[0, head]
        assert found.graph.is_bipartite
        wanted = model.weights[0, head].detach()
        np.testing.assert_allclose(found.to_dense(), wanted, atol=1e-6)


def test_tokens_after_a_memory_alone_are_told():
    """Nothing but the memory brings tokens on: each row is made of its own."""

    class Replaced(Memory):
        def forward(self, x):
            return super().forward(x) - x

    torch.manual_seed(0)
    memory = Replaced((1, HEADS, SLOTS, DIM), is_buffer=True)
    model = nn.Sequential(memory, nn.LayerNorm(WIDTH), Reader()).eval()
    with torch.no_grad(), pytest.warns(UserWarning, match="as to a codebook"):  # noqa: SIM117
        with capturing(model) as run:
            model(given())
    x = model[1](model[0](given()))
    wanted = model[2].attend(x, x, x, average_attn_weights=False)[1].detach()
    for trace, attention in zip(run.traces, wanted, strict=True):
        np.testing.assert_allclose(trace[0, 1].to_dense(), attention[1], atol=1e-6)


def test_a_module_that_reads_a_memory_once_and_tokens_once_is_refused():
    class Either(Memory):
        def forward(self, x, reads_memory):
            if reads_memory:
                return super().forward(x)
            query, own = self.query(x), x.unflatten(-1, (HEADS, DIM)).transpose(1, 2)
            query = query.unflatten(-1, (HEADS, DIM)).transpose(1, 2)
            found = (query @ own.mT / 2).softmax(-1) @ own
            return x + found.transpose(1, 2).flatten(2)

    class Both(nn.Module):
        def __init__(self, order):
            super().__init__()
            self.order, self.either = order, Either((1, HEADS, 6, DIM), is_buffer=True)

        def forward(self, x):
            for reads_memory in self.order:
                x = self.either(x, reads_memory)
            return x

    for order in ((True, False), (False, True)):
        model = Both(order).eval()
        with torch.no_grad(), pytest.warns(UserWarning, match="was not proved"):  # noqa: SIM117
            with pytest.raises(CaptureError, match="cannot be seen"), capturing(model):
                model(given())
