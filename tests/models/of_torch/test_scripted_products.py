"""A product that torch.jit scripted hides where a softmax meets its values: it is refused."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from gattn import capturing
from gattn.errors import CaptureError

_HEADS, _DIM, _TOKENS = 2, 4, 6
_WIDTH = _HEADS * _DIM


@torch.jit.script
def _hidden(a: Tensor, v: Tensor) -> Tensor:
    return torch.matmul(a, v)


def _softmax(q: Tensor, k: Tensor) -> Tensor:
    return (q @ k.mT / _DIM**0.5).softmax(-1)


class _Layer(nn.Module):
    def __init__(self, attend) -> None:
        super().__init__()
        self.qkv, self.attend = nn.Linear(_WIDTH, 3 * _WIDTH), attend

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, _HEADS, _DIM)).permute(2, 0, 3, 1, 4)
        return x + self.attend(q, k, v).transpose(1, 2).flatten(2)


def _is_refused(attend) -> None:
    torch.manual_seed(0)
    model, x = _Layer(attend).eval(), torch.randn(2, _TOKENS, _WIDTH)
    with torch.no_grad():
        for _ in range(3):  # torch.jit learns what runs.
            model(x)
        hides = pytest.raises(CaptureError, match="computes attention that cannot be seen")
        with hides, capturing(model):
            model(x)


def _multiplied(a: Tensor) -> Tensor:
    return a * 1.5


@pytest.mark.parametrize("between", [_multiplied, torch.neg])
def test_a_sum_of_one_softmax_is_none_of_another_that_is_multiplied_before_it(between):
    def attend(q, k, v):
        one, other = _softmax(q, k), _softmax(k, q)
        products = one[..., None] * v[:, :, None]
        changed = between(other)
        return products.sum(-2) + _hidden(other, v) + 0 * changed.sum()

    _is_refused(attend)


def test_a_softmax_of_which_half_meets_values_in_a_hidden_product_is_refused():
    def attend(q, k, v):
        a = _softmax(q, k)
        return torch.cat([a[:, :1] @ v[:, :1], _hidden(a[:, 1:], v[:, 1:])], 1)

    _is_refused(attend)


def test_a_half_that_is_seen_twice_is_half():
    def attend(q, k, v):
        a = _softmax(q, k)
        one = a[:, :1] @ v[:, :1] + a[:, :1] @ k[:, :1]
        return torch.cat([one, _hidden(a[:, 1:], v[:, 1:])], 1)

    _is_refused(attend)


def test_a_softmax_whose_halves_are_both_seen_is_shown():
    def attend(q, k, v):
        a = _softmax(q, k)
        return torch.cat([a[:, n : n + 1] @ v[:, n : n + 1] for n in range(_HEADS)], 1)

    torch.manual_seed(0)
    model, x = _Layer(attend).eval(), torch.randn(1, _TOKENS, _WIDTH)
    with torch.no_grad(), capturing(model) as run:
        model(x)
        q, k, _ = model.qkv(x).unflatten(-1, (3, _HEADS, _DIM)).permute(2, 0, 3, 1, 4)
    (stack,) = run.trace.stacks.values()
    for head, (_, one) in enumerate(sorted(stack.items())):
        found = torch.as_tensor(one.to_dense())
        torch.testing.assert_close(found, _softmax(q, k)[0, head], check_dtype=False)
