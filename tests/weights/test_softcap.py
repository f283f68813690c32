import math

import pytest
from torch.testing import assert_close

from gattn.errors import ContractError
from gattn.testing import check_weight_function
from gattn.weights import ALiBi, Dot, L1Distance, Rotary, Softcap


@pytest.mark.parametrize(
    "weight",
    [
        Softcap(Dot(), 2.0),
        Softcap(Dot() + ALiBi(3), 2.0),
        Softcap(Rotary(L1Distance()), 2.0) + ALiBi(3),
        Softcap(lambda q, k, pairs: (q * k).sum(-1), 3.0),
    ],
    ids=repr,
)
def test_contract(weight):
    check_weight_function(weight)


def test_caps_what_it_wraps(query, key, score, loop):
    slopes = ALiBi(3).slopes.tolist()
    alibi = ALiBi(3).double()

    def inside(h, i, j, q, k):
        return 0.7 * math.tanh((q @ k - slopes[h] * abs(i - j)) / 0.7)

    def outside(h, i, j, q, k):
        return 0.7 * math.tanh(q @ k / 0.7) - slopes[h] * abs(i - j)

    assert_close(score(Softcap(Dot() + alibi, 0.7), query, key), loop(inside, query, key))
    assert_close(score(Softcap(Dot(), 0.7) + alibi, query, key), loop(outside, query, key))


def test_is_no_dot_product(query, key):
    assert Softcap(Dot(), 2.0).dot_form(query, key) is None


def test_refuses_a_cap_of_0():
    with pytest.raises(ContractError, match="cap must be above 0"):
        Softcap(Dot(), 0)
