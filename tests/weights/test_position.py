import pytest
import torch
from torch.testing import assert_close
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.t5.modeling_t5 import T5Attention

from gattn.errors import ContractError
from gattn.testing import check_weight_function
from gattn.weights import ALiBi, RelativePosition, T5RelativeBias


@pytest.mark.parametrize(
    "weight",
    [
        ALiBi(3),
        T5RelativeBias(3),
        T5RelativeBias(3, 8, 6, bidirectional=False),
        RelativePosition(3, 2),
    ],
    ids=repr,
)
def test_contract(weight):
    check_weight_function(weight)


def test_alibi_slopes():
    eight = [2.0**-h for h in range(1, 9)]
    assert_close(ALiBi(8).slopes.tolist(), eight)
    between = [0.707107, 0.353553, 0.176777, 0.088388]
    assert_close(ALiBi(12).slopes.tolist(), eight + between, rtol=0, atol=1e-6)


@pytest.mark.parametrize("heads", [1, 2, 3, 6, 8, 12, 20])
def test_alibi_slopes_are_blooms(heads):
    theirs = build_alibi_tensor(torch.ones(1, 2), heads, torch.float32)[:, 0, 1]
    assert_close(ALiBi(heads).slopes, theirs)


def test_alibi_needs_a_head():
    with pytest.raises(ContractError, match="at least one head"):
        ALiBi(0)


def test_alibi_is_negative_on_both_sides(query, key, score, loop):
    slopes = ALiBi(3).slopes.tolist()
    expected = loop(lambda h, i, j, q, k: -slopes[h] * abs(i + 2 - j), query, key)
    assert_close(score(ALiBi(3).double(), query, key, query_offset=2), expected)


@pytest.mark.parametrize(
    ("bidirectional", "buckets"),
    [
        (True, {0: 0, -1: 1, 1: 17, -8: 8, 8: 24, -20: 10, 20: 26, -200: 15, 200: 31}),
        (False, {-15: 15, -16: 16, -20: 17, -64: 26, -127: 31, 5: 0}),
    ],
)
def test_t5_buckets(bidirectional, buckets):
    weight = T5RelativeBias(2, bidirectional=bidirectional)
    assert weight.bucket(torch.tensor(list(buckets))).tolist() == list(buckets.values())


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("num_buckets", "max_distance"), [(32, 128), (16, 50), (8, 200)])
def test_t5_buckets_are_transformers(bidirectional, num_buckets, max_distance):
    offsets = torch.arange(-600, 601)
    weight = T5RelativeBias(1, num_buckets, max_distance, bidirectional)
    theirs = T5Attention._relative_position_bucket(
        offsets, bidirectional, num_buckets, max_distance
    )
    assert torch.equal(weight.bucket(offsets), theirs)


def test_t5_bias_reads_its_bucket(query, key, score, loop):
    weight = T5RelativeBias(3).double().requires_grad_(False)
    weight.bias.normal_()
    bucket = {0: 0, **{-n: n for n in range(1, 5)}, **{n: 16 + n for n in range(1, 7)}}
    expected = loop(lambda h, i, j, q, k: weight.bias[bucket[j - i], h], query, key)
    assert_close(score(weight, query, key), expected)


def test_relative_position_clips(query, key, score, loop):
    weight = RelativePosition(3, 2).double().requires_grad_(False)
    weight.bias.normal_()
    expected = loop(lambda h, i, j, q, k: weight.bias[2 + max(-2, min(2, j - i)), h], query, key)
    assert_close(score(weight, query, key), expected)


def test_refuses_sizes_without_a_meaning():
    with pytest.raises(ContractError, match="at least 4 buckets and a max_distance above 0"):
        T5RelativeBias(2, num_buckets=3)
    with pytest.raises(ContractError, match="max_distance above 8"):
        T5RelativeBias(2, max_distance=8)
    with pytest.raises(ContractError, match="max_distance must be 0 or more"):
        RelativePosition(2, -1)
