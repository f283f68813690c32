"""Factors of branches, regressed from sums that were rounded, held to those they were made with."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gattn.models.stream import rounding
from gattn.models.stream.rounding import factor_of

DTYPES = [torch.bfloat16, torch.float16, torch.float32]


def drawn(seed, small, dtype):
    """A stream with some large dimensions, and a branch that is small beside it."""
    generator = torch.Generator().manual_seed(seed)
    stream, branch, other = torch.randn(3, 16, 64, generator=generator)
    stream[:, 3] *= 100
    return stream.to(dtype), (small * branch).to(dtype), (small * other).to(dtype)


@settings(max_examples=80)
@given(
    seed=st.integers(0, 10**6),
    small=st.sampled_from([1e-5, 1e-4, 1e-3, 3e-3, 1e-2, 0.1, 1.0]),
    factor=st.sampled_from([0.05, 0.22, 0.7, 1.0, 1.5, 8.0]),
    dtype=st.sampled_from(DTYPES),
)
def test_a_factor_is_right_or_not_told(seed, small, factor, dtype):
    stream, branch, other = drawn(seed, small, dtype)
    eps = torch.finfo(dtype).eps
    found = factor_of(branch, stream + factor * branch, [stream])
    within = {torch.float32: 1e-3}.get(dtype, 0.06)
    if found is not None:
        assert found == pytest.approx(factor, rel=within if small > 1e3 * eps else 0.06)
    assert found is not None or small * factor < 5 * eps
    both = factor_of(branch, stream + factor * branch + other, [stream, other])
    assert both is None or both == pytest.approx(factor, rel=0.06)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("small", [1e-6, 1e-4, 1e-2, 1.0])
def test_what_is_something_else_has_no_factor(small, dtype):
    stream, branch, other = drawn(0, small, dtype)
    assert factor_of(branch, stream - branch, [stream]) is None
    assert factor_of(branch, stream + branch.roll(1, 0), [stream]) is None
    assert factor_of(branch, stream * 1.5 + branch, [stream]) is None
    if small >= 1e-2:
        assert factor_of(branch, stream + branch + other, [stream]) is None
        assert factor_of(branch, stream + branch.tanh() * 2, [stream]) != 1


def test_what_rounding_swallows_is_not_told():
    stream, branch, _ = drawn(0, 1e-5, torch.bfloat16)
    assert (stream + branch).ne(stream).float().mean() < 0.01
    assert factor_of(branch, stream + branch, [stream]) is None
    assert factor_of(torch.zeros_like(branch), stream, [stream]) == 1


def test_an_exact_one_is_one():
    for dtype in DTYPES:
        stream, branch, _ = drawn(0, 0.1, dtype)
        assert factor_of(branch, stream + branch, [stream]) == 1.0


# One token tells most sums that are none; it must let all others pass, and be worth its while.


@settings(max_examples=200)
@given(
    seed=st.integers(0, 10**6),
    small=st.sampled_from([1e-5, 1e-3, 1e-2, 0.1, 1.0, 100.0]),
    factor=st.sampled_from([0.05, 0.22, 1.0, 8.0]),
    dtype=st.sampled_from([*DTYPES, torch.float64]),
    has_other=st.booleans(),
)
def test_one_token_lets_every_sum_pass(seed, small, factor, dtype, has_other):
    stream, branch, other = drawn(seed, small, dtype)
    others = [stream, other] if has_other else [stream]
    total = sum(others[1:], others[0] + factor * branch)
    for n in range(len(stream)):
        assert rounding._may_be(branch[n], total[n], [x[n] for x in others])
    found = factor_of(branch, total, others)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(rounding, "_may_be", lambda *_: True)
        assert factor_of(branch, total, others) == found


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64])
def test_one_token_tells_what_is_no_sum(dtype, monkeypatch):
    """No regression runs over all tokens where the first one is none."""
    stream, branch, other = drawn(0, 1.0, dtype)
    stream[:, 3] /= 100  # Next to large numbers, rounding hides much.
    monkeypatch.setattr(rounding, "_Regression", None)
    for total in (stream + other, stream.roll(1, 0), 1.5 * stream + branch, branch + other):
        assert factor_of(branch, total, [stream]) is None
    with pytest.raises(TypeError):
        factor_of(branch, stream + branch, [stream])
