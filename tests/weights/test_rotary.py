import cmath

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close
from transformers.models.gptj.modeling_gptj import apply_rotary_pos_emb as gptj_rotary
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb as llama_rotary

from gattn.errors import ContractError, ShapeError
from gattn.testing import check_weight_function
from gattn.weights import ALiBi, Dot, L1Distance, Positions, Rotary, ScaledDotProduct


@pytest.mark.parametrize(
    "weight",
    [
        Rotary(ScaledDotProduct()),
        Rotary(Dot(), base=100.0, interleaved=True),
        Rotary(Dot(), dim=2),
        Rotary(L1Distance()),
        Rotary(Dot() + ALiBi(3)),
        Rotary(lambda q, k, pairs: (q - k).abs().sum(-1)),
    ],
    ids=repr,
)
def test_contract(weight):
    check_weight_function(weight)


def angles(positions, dim, base=10000.0):
    return positions[:, None] * base ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)


def test_half_split_is_llamas(query, key):
    angle = angles(torch.arange(5) + 40, 4).repeat(1, 2)[None]
    theirs, _ = llama_rotary(query, query, angle.cos(), angle.sin())
    assert_close(Rotary(Dot()).rotate(query, torch.arange(5) + 40), theirs)


def test_interleaved_is_gptjs(query):
    angle = angles(torch.arange(5), 4)[None]
    theirs = gptj_rotary(query.transpose(1, 2), angle.sin(), angle.cos()).transpose(1, 2)
    assert_close(Rotary(Dot(), interleaved=True).rotate(query, torch.arange(5)), theirs)


def test_pairs_turn_as_complex_numbers(query, key, score, loop):
    def turned(x, position):
        pairs = [complex(x[m], x[m + 1]) for m in (0, 2)]
        return [z * cmath.exp(1j * position * 50 ** (-m / 2)) for m, z in enumerate(pairs)]

    def formula(h, i, j, q, k):
        sides = zip(turned(q, i + 3), turned(k, j), strict=True)
        return sum((a * b.conjugate()).real for a, b in sides)

    weight = Rotary(Dot(), base=50.0, interleaved=True)
    assert_close(score(weight, query, key, query_offset=3), loop(formula, query, key))


@settings(max_examples=25)
@given(shift=st.integers(-1000, 1000), interleaved=st.booleans())
def test_scores_do_not_feel_a_shift(shift, interleaved):
    draw = torch.Generator().manual_seed(3)
    query = torch.randn(1, 2, 5, 8, generator=draw, dtype=torch.float64)
    weight = Rotary(ScaledDotProduct(), interleaved=interleaved)
    positions = torch.arange(5)
    plain = weight.dot_form(*weight.prepare(query, query, Positions(positions, positions)))
    moved = Positions(positions + shift, positions + shift)
    shifted = weight.dot_form(*weight.prepare(query, query, moved))
    assert_close(plain.query @ plain.key.mT, shifted.query @ shifted.key.mT, rtol=0, atol=1e-9)


def test_only_the_first_features_turn(query):
    rotated = Rotary(Dot(), dim=2).rotate(query, torch.arange(5))
    assert_close(rotated[..., 2:], query[..., 2:])
    assert_close(rotated[..., :2], Rotary(Dot()).rotate(query[..., :2], torch.arange(5)))


def test_half_precision_turns_by_precise_angles():
    x = torch.ones(1, 1, 1, 2, dtype=torch.bfloat16)
    far = torch.tensor([4099])
    expected = Rotary(Dot()).rotate(x.double(), far)
    assert_close(Rotary(Dot()).rotate(x, far).double(), expected, rtol=0, atol=0.02)


def test_keeps_the_dot_form_of_what_it_wraps(query):
    assert Rotary(Dot()).dot_form(query, query) is not None
    assert Rotary(L1Distance()).dot_form(query, query) is None


@pytest.mark.parametrize("dim", [0, 3])
def test_refuses_odd_dims(dim):
    with pytest.raises(ContractError, match="even number"):
        Rotary(Dot(), dim=dim)


@pytest.mark.parametrize(("weight", "size"), [(Rotary(Dot()), 3), (Rotary(Dot(), dim=4), 2)])
def test_refuses_vectors_that_cannot_turn(weight, size):
    with pytest.raises(ShapeError, match="turns an even number of features"):
        weight.rotate(torch.ones(1, 1, 2, size), torch.arange(2))
